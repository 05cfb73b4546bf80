#pragma once

#include <ffrecord/client/collective.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/collective/machines.h"
#include "libffrecord/base/clock.h"

// What tests of collectives share: threads as ranks.
namespace ffrecord::client::ranks {

using namespace std::chrono_literals;
using Options = CollectiveEngine::Options;
using Secret = std::array<std::byte, 16>;

inline constexpr Secret kSecret{std::byte{1}, std::byte{2}, std::byte{3}};

inline constexpr Algorithm kAlgorithms[] = {Algorithm::kRing, Algorithm::kHalvingDoubling,
                                            Algorithm::kRecursiveDoubling, Algorithm::kDoubleTree,
                                            Algorithm::kHierarchical};

// Which ranks share memory.
enum class Where : std::uint8_t {
  kApart,     // None: all go over TCP.
  kTogether,  // All.
  kInPairs,   // 0 and 1, 2 and 3, ...
};
inline constexpr Where kEverywhere[] = {Where::kApart, Where::kTogether, Where::kInPairs};

// Whether ranks may go by that algorithm there.
inline bool IsPossible(Algorithm algorithm, std::uint32_t n, Where where) {
  if (algorithm != Algorithm::kHierarchical) return true;
  return n > 1 && (where == Where::kTogether || (where == Where::kInPairs && n % 2 == 0));
}

// Engines of all ranks of a group, not yet connected.
struct Group {
  Group(std::uint32_t world_size, Options options, Where where = Where::kTogether) {
    options.shares_memory = where != Where::kApart;
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      engines.push_back(CollectiveEngine::Create(rank, world_size, options).value());
      addresses.push_back(engines.back().address());
    }
    if (where != Where::kInPairs) return;
    std::vector<int> machines;
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      machines.push_back(static_cast<int>(rank / 2));
    PlaceOn(machines);
  }

  // As if they ran on machines, for each rank one: only ranks of equal ones share memory.
  void PlaceOn(const std::vector<int>& machines) {
    for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
      auto address = MemberAddress::Parse(addresses[rank]).value();
      address.machine = std::to_string(machines[rank]);
      addresses[rank] = address.ToString();
    }
  }

  // Runs `body` for each rank in a thread of its own.
  void ForEach(const std::function<void(std::uint32_t, CollectiveEngine&)>& body) {
    std::vector<std::thread> threads;
    for (std::uint32_t rank = 0; rank < engines.size(); ++rank)
      threads.emplace_back([&, rank] { body(rank, engines[rank]); });
    for (auto& thread : threads) thread.join();
  }

  void Connect() {
    ForEach([&](std::uint32_t, CollectiveEngine& engine) {
      const auto connected = engine.Connect(addresses, kSecret);
      ASSERT_TRUE(connected) << connected.error().message;
    });
  }

  std::vector<CollectiveEngine> engines;
  std::vector<std::string> addresses;
};

template <class T>
constexpr ReduceType TypeOf() {
  if constexpr (std::is_same_v<T, float>) return ReduceType::kF32;
  if constexpr (std::is_same_v<T, double>) return ReduceType::kF64;
  if constexpr (std::is_same_v<T, std::int32_t>) return ReduceType::kI32;
  if constexpr (std::is_same_v<T, std::int64_t>) return ReduceType::kI64;
}

template <class T>
Result<void> AllReduce(CollectiveEngine& engine, std::vector<T>& data,
                       ReduceOp op = ReduceOp::kSum) {
  // A vector without elements may have no address.
  T none{};
  auto token = engine.AllReduce(data.empty() ? &none : data.data(), data.size(), TypeOf<T>(), op);
  if (!token) return std::move(token).error();
  return engine.Wait(token.value());
}

// The sums of all ranks' arrays by rank 0, after all ranks were seen to have the same bits. No rank
// shares memory.
inline std::vector<float> Reduced(std::uint32_t n, const Options& options,
                                  const std::vector<std::vector<float>>& inputs) {
  auto outputs = inputs;
  Group group(n, options, Where::kApart);
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    const auto reduced = AllReduce(engine, outputs[rank]);
    EXPECT_TRUE(reduced) << reduced.error().message;
  });
  for (const auto& output : outputs)
    EXPECT_EQ(std::memcmp(output.data(), outputs[0].data(), output.size() * sizeof(float)), 0);
  return outputs[0];
}

inline std::vector<float> RandomFloats(std::uint32_t seed, std::size_t count) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> exponent(-20, 20);
  std::uniform_real_distribution<float> mantissa(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(mantissa(random), exponent(random));
  return values;
}

}  // namespace ffrecord::client::ranks
