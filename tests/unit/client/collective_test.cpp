// Goal: every rank gets the right sum with the same bits, or every rank is told which rank failed,
// in time.
// Method: threads as ranks over real TCP on loopback; the expected result is computed in integers
// or in fp64; ranks that die, lie, differ or never come.

#include <ffrecord/client/collective.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <tuple>

#include "client/collective/links.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/net/transport/endpoint.h"
#include "seed.h"

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using Options = CollectiveEngine::Options;
using Secret = std::array<std::byte, 16>;
using Clock = std::chrono::steady_clock;

constexpr Secret kSecret{std::byte{1}, std::byte{2}, std::byte{3}};

constexpr Algorithm kAlgorithms[] = {Algorithm::kRing, Algorithm::kHalvingDoubling,
                                     Algorithm::kRecursiveDoubling, Algorithm::kDoubleTree};

// Engines of all ranks of a group, not yet connected.
struct Group {
  Group(std::uint32_t world_size, const Options& options) {
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      engines.push_back(CollectiveEngine::Create(rank, world_size, options).value());
      addresses.push_back(engines.back().address());
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

std::vector<float> RandomFloats(std::uint32_t seed, std::size_t count) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> exponent(-20, 20);
  std::uniform_real_distribution<float> mantissa(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(mantissa(random), exponent(random));
  return values;
}

void ExpectExactSums(std::uint32_t n, std::optional<Algorithm> algorithm) {
  SCOPED_TRACE(testing::Message() << "n " << n << " algorithm "
                                  << (algorithm ? static_cast<int>(*algorithm) : -1));
  Group group(n, {.timeout = 20s, .chunk_size_bytes = 256, .algorithm = algorithm});
  group.Connect();
  const auto before = group.engines[0].stats().operations;
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    for (const std::size_t count :
         {std::size_t{0}, std::size_t{1}, std::size_t{n - 1}, std::size_t{n}, std::size_t{n + 1},
          std::size_t{31}, std::size_t{n * 64 + 1}, std::size_t{5'003}}) {
      std::vector<std::int64_t> data(count);
      for (std::size_t i = 0; i < count; ++i)
        data[i] = static_cast<std::int64_t>(i * 1'000'003 + rank * 7);

      const auto reduced = AllReduce(engine, data);

      ASSERT_TRUE(reduced) << reduced.error().message;
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(data[i], static_cast<std::int64_t>(n * i * 1'000'003 + n * (n - 1) / 2 * 7))
            << "count " << count << " at " << i;
      }
    }
  });
  EXPECT_EQ(group.engines[0].stats().operations - before, 8U);
}

TEST(CollectiveTest, IntegerSumsAreExactForEveryGroupAndArraySize) {
  for (const std::uint32_t n : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 13U, 16U}) {
    ExpectExactSums(n, std::nullopt);
    if (n > 8 && n != 13) continue;
    for (const Algorithm algorithm : kAlgorithms) ExpectExactSums(n, algorithm);
  }
}

TEST(CollectiveTest, FloatSumsAreCloseAndHaveTheSameBitsOnAllRanksAndInAllRuns) {
  const std::uint32_t seed = test::Seed();
  struct Case {
    std::uint32_t n;
    Algorithm algorithm;
  };
  std::vector<Case> cases;
  for (const std::uint32_t n : {2U, 3U, 5U, 8U})
    for (const Algorithm algorithm : kAlgorithms) cases.push_back({n, algorithm});
  for (const auto& [n, algorithm] : cases) {
    constexpr std::size_t kCount = 30'001;
    std::vector<std::vector<float>> inputs;
    for (std::uint32_t rank = 0; rank < n; ++rank)
      inputs.push_back(RandomFloats(seed + rank, kCount));
    std::vector<float> first_run;
    for (int run = 0; run < 2; ++run) {
      auto outputs = inputs;
      Group group(n, {.timeout = 20s, .chunk_size_bytes = 4096, .algorithm = algorithm});
      group.Connect();
      group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
        ASSERT_TRUE(AllReduce(engine, outputs[rank]));
      });

      for (std::uint32_t rank = 1; rank < n; ++rank)
        ASSERT_EQ(std::memcmp(outputs[rank].data(), outputs[0].data(), kCount * 4), 0);
      if (run == 0) first_run = outputs[0];
      ASSERT_EQ(std::memcmp(outputs[0].data(), first_run.data(), kCount * 4), 0);
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      double sum = 0;
      double sum_of_magnitudes = 0;
      for (const auto& input : inputs) {
        sum += static_cast<double>(input[i]);
        sum_of_magnitudes += std::abs(static_cast<double>(input[i]));
      }
      ASSERT_NEAR(static_cast<double>(first_run[i]), sum, (n - 1) * 0x1p-24 * sum_of_magnitudes);
    }
  }
}

TEST(CollectiveTest, AveragesExtremesAndDoublesAreRight) {
  constexpr std::uint32_t n = 3;
  Group group(n, {.timeout = 20s});
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    const float r = static_cast<float>(rank);
    const float nan = std::numeric_limits<float>::signaling_NaN();
    std::vector<float> average{r, 3 * r, 1, -r};
    ASSERT_TRUE(AllReduce(engine, average, ReduceOp::kAverage));
    EXPECT_EQ(average, (std::vector<float>{1, 3, 1, -1}));

    std::vector<float> least{r, -r, rank == 1 ? nan : r};
    ASSERT_TRUE(AllReduce(engine, least, ReduceOp::kMin));
    EXPECT_EQ(least[0], 0);
    EXPECT_EQ(least[1], -2);
    EXPECT_EQ(std::bit_cast<std::uint32_t>(least[2]), 0x7FC00000U);

    std::vector<std::int32_t> most{static_cast<std::int32_t>(rank), -5};
    ASSERT_TRUE(AllReduce(engine, most, ReduceOp::kMax));
    EXPECT_EQ(most, (std::vector<std::int32_t>{2, -5}));

    std::vector<double> sum(7, 0x1p-40 + rank);
    ASSERT_TRUE(AllReduce(engine, sum));
    for (const double value : sum) EXPECT_EQ(value, 3 + 3 * 0x1p-40);
  });
}

TEST(CollectiveTest, ArraysNeedNoAlignment) {
  constexpr std::uint32_t n = 3;
  Group group(n, {.timeout = 20s, .chunk_size_bytes = 100});
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    std::vector<std::byte> bytes(1 + 1000 * sizeof(double) + 1, std::byte{0xAA});
    for (std::size_t i = 0; i < 1000; ++i) {
      const double value = static_cast<double>(i * rank);
      std::memcpy(bytes.data() + 1 + i * sizeof(value), &value, sizeof(value));
    }
    const auto token = engine.AllReduce(bytes.data() + 1, 1000, ReduceType::kF64, ReduceOp::kSum);
    ASSERT_TRUE(engine.Wait(token.value()));
    for (std::size_t i = 0; i < 1000; ++i) {
      double value;
      std::memcpy(&value, bytes.data() + 1 + i * sizeof(value), sizeof(value));
      ASSERT_EQ(value, static_cast<double>(i * 3));
    }
    EXPECT_EQ(bytes.front(), std::byte{0xAA});
    EXPECT_EQ(bytes.back(), std::byte{0xAA});
  });
}

TEST(CollectiveTest, ManyOperationsInFlightEndInOrderAndEachWithItsOwnResult) {
  constexpr std::uint32_t n = 4;
  constexpr std::size_t kOperations = 60;
  Group group(n, {.timeout = 20s, .chunk_size_bytes = 1024});
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    std::mt19937 random(rank);
    std::vector<std::vector<std::int32_t>> data;
    for (std::size_t i = 0; i < kOperations; ++i)
      data.emplace_back(i * i % 3'000, static_cast<std::int32_t>(i + rank));
    CollectiveEngine::Token first = 0;
    for (std::size_t i = 0; i < kOperations; ++i) {
      const auto token =
          engine.AllReduce(data[i].data(), data[i].size(), ReduceType::kI32, ReduceOp::kSum);
      if (i == 0) first = token ? token.value() : 0;
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    }
    for (std::size_t i = 0; i < kOperations; ++i) {
      const auto completion = engine.WaitAny(20s);
      ASSERT_TRUE(completion) << completion.error().message;
      ASSERT_TRUE(completion.value().outcome);
      ASSERT_EQ(completion.value().token, first + i);
      EXPECT_LE(completion.value().began_ns, completion.value().ended_ns);
      for (const std::int32_t value : data[i])
        ASSERT_EQ(value, static_cast<std::int32_t>(n * i + n * (n - 1) / 2));
    }
    EXPECT_EQ(engine.WaitAny(1ms).error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(engine.Wait(first).error().code, ErrorCode::kInvalidArgument);  // Returned already.
  });
}

TEST(CollectiveTest, EachRankSendsWhatTheRingBoundSays) {
  constexpr std::uint32_t n = 4;
  constexpr std::uint64_t kCount = 1 << 20;
  Group group(n, {.timeout = 20s, .algorithm = Algorithm::kRing});
  group.Connect();
  group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
    std::vector<float> data(kCount, 1);
    const auto before = engine.stats();
    ASSERT_TRUE(AllReduce(engine, data));
    const auto after = engine.stats();
    const double bound = 2.0 * (n - 1) / n * kCount * 4;
    EXPECT_NEAR(static_cast<double>(after.bytes_sent - before.bytes_sent), bound, bound * 0.001);
    EXPECT_NEAR(static_cast<double>(after.bytes_received - before.bytes_received), bound,
                bound * 0.001);
    EXPECT_GT(after.reduce_ns, 0U);
  });
}

TEST(CollectiveTest, ReduceScatterThenAllGatherIsAnAllReduce) {
  for (const std::uint32_t n : {1U, 2U, 3U, 5U}) {
    Group group(n, {.timeout = 20s, .chunk_size_bytes = 256});
    group.Connect();
    group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
      for (const std::uint64_t count : {0U, 1U, 2U, 777U}) {
        std::vector<std::int32_t> data(count);
        for (std::size_t i = 0; i < count; ++i) data[i] = static_cast<std::int32_t>(i * 10 + rank);
        std::int32_t none = 0;
        void* const at = count == 0 ? &none : data.data();
        const auto scattered =
            engine.ReduceScatter(at, count, ReduceType::kI32, ReduceOp::kSum).value();
        ASSERT_TRUE(engine.Wait(scattered));
        const auto own = CollectiveEngine::PartOf(count, n, rank);
        for (std::uint64_t i = 0; i < count; ++i) {
          if (i < own.begin || i >= own.end) {
            data[i] = -1;  // Not ours: what is there must not matter.
            continue;
          }
          ASSERT_EQ(data[i], static_cast<std::int32_t>(n * i * 10 + n * (n - 1) / 2));
        }
        const auto gathered = engine.AllGather(at, count, ReduceType::kI32).value();
        ASSERT_TRUE(engine.Wait(gathered));
        for (std::uint64_t i = 0; i < count; ++i)
          ASSERT_EQ(data[i], static_cast<std::int32_t>(n * i * 10 + n * (n - 1) / 2));
      }
    });
  }
}

// Half of the bytes, the same bits on all ranks, and an error within the documented bound.
TEST(CollectiveTest, SumsSentAsBf16AreCloseAndTheSameOnAllRanks) {
  const std::uint32_t seed = test::Seed();
  constexpr std::size_t kCount = 20'001;
  for (const std::uint32_t n : {2U, 3U, 5U, 8U}) {
    for (const Algorithm algorithm : kAlgorithms) {
      SCOPED_TRACE(testing::Message() << "n " << n << " algorithm " << static_cast<int>(algorithm));
      std::vector<std::vector<float>> inputs;
      for (std::uint32_t rank = 0; rank < n; ++rank)
        inputs.push_back(RandomFloats(seed + rank, kCount));
      auto outputs = inputs;
      Group group(n, {.timeout = 20s,
                      .chunk_size_bytes = 4096,
                      .algorithm = algorithm,
                      .wire = WireType::kBf16});
      group.Connect();
      group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
        ASSERT_TRUE(AllReduce(engine, outputs[rank], ReduceOp::kAverage));
        if (algorithm == Algorithm::kRing) {
          const double bound = 2.0 * (n - 1) / n * kCount * 2;
          EXPECT_NEAR(static_cast<double>(engine.stats().bytes_sent), bound, bound * 0.1);
        }
        std::vector<std::int32_t> exact(100, 1 << 20 | 1);  // Integers cross as they are.
        ASSERT_TRUE(AllReduce(engine, exact));
        ASSERT_EQ(exact,
                  std::vector<std::int32_t>(100, static_cast<std::int32_t>(n) * (1 << 20 | 1)));
      });

      for (std::uint32_t rank = 1; rank < n; ++rank)
        ASSERT_EQ(std::memcmp(outputs[rank].data(), outputs[0].data(), kCount * 4), 0);
      for (std::size_t i = 0; i < kCount; ++i) {
        double sum = 0;
        double sum_of_magnitudes = 0;
        for (const auto& input : inputs) {
          sum += input[i];
          sum_of_magnitudes += std::abs(static_cast<double>(input[i]));
        }
        ASSERT_NEAR(outputs[0][i], sum / n, (n + 1) * std::ldexp(sum_of_magnitudes / n, -8));
      }
    }
  }
}

TEST(CollectiveTest, ABroadcastGoesOutFromAnyRankByAnyWay) {
  constexpr std::uint32_t n = 5;
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling}) {
    Group group(n, {.timeout = 20s, .chunk_size_bytes = 512, .algorithm = algorithm});
    group.Connect();
    group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
      for (std::uint32_t root = 0; root < n; ++root) {
        std::vector<double> data(1'000, rank == root ? 1.0 + root : -1);
        const auto token =
            engine.Broadcast(data.data(), data.size(), ReduceType::kF64, root).value();
        ASSERT_TRUE(engine.Wait(token));
        ASSERT_EQ(data, std::vector<double>(1'000, 1.0 + root));
      }
    });
  }
}

TEST(CollectiveTest, ABarrierEndsOnlyWhenAllHaveComeToIt) {
  constexpr std::uint32_t n = 5;
  Group group(n, {.timeout = 20s});
  group.Connect();
  std::atomic<std::uint32_t> arrived = 0;
  group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
    for (std::uint32_t round = 1; round <= 50; ++round) {
      ++arrived;
      ASSERT_TRUE(engine.Wait(engine.Barrier().value()));
      ASSERT_GE(arrived, round * n);
    }
  });
}

// A collective of another kind, or from another root, is another operation. Who only sends may have
// ended before a difference shows; then the next one fails.
TEST(CollectiveTest, DifferentCollectivesAreNamed) {
  Group group(3, {.timeout = 20s});
  group.Connect();
  std::atomic<int> named = 0;
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    std::vector<float> data(10);
    const auto token = engine.Broadcast(data.data(), 10, ReduceType::kF32, rank == 2 ? 0 : 1);
    auto ended = engine.Wait(token.value());
    if (ended) {
      const auto barrier = engine.Barrier();
      ended = barrier ? engine.Wait(barrier.value()) : Result<void>(barrier.error());
    }
    ASSERT_FALSE(ended);
    const std::string& message = ended.error().message;
    if (ended.error().code == ErrorCode::kInvalidArgument &&
        message.find("broadcast from rank 1") != std::string::npos &&
        message.find("broadcast from rank 0") != std::string::npos)
      ++named;
  });
  EXPECT_GE(named, 1);
}

// --- Failures ------------------------------------------------------------------------------------

void ExpectLeaverIsNamed(std::uint32_t n, std::uint32_t leaver, Algorithm algorithm) {
  SCOPED_TRACE(testing::Message() << "n " << n << " leaver " << leaver << " algorithm "
                                  << static_cast<int>(algorithm));
  Group group(n, {.timeout = 20s, .algorithm = algorithm});
  group.Connect();
  const auto before = Clock::now();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    std::vector<float> data(4 << 20, 1);
    if (rank == leaver) {
      // Others are sending by now; the kernel does not take all of it.
      const auto has_sent = [](const CollectiveEngine& other) {
        return other.stats().bytes_sent >= (1 << 20);
      };
      while (std::ranges::none_of(group.engines, has_sent)) std::this_thread::yield();
      engine.Shutdown();
      EXPECT_EQ(AllReduce(engine, data).error().code, ErrorCode::kUnavailable);
      return;
    }
    const std::string name = "rank " + std::to_string(leaver) + " at";
    const auto reduced = AllReduce(engine, data);
    ASSERT_FALSE(reduced);
    EXPECT_EQ(reduced.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(reduced.error().message, HasSubstr(name));
    const auto later = AllReduce(engine, data);
    ASSERT_FALSE(later);
    EXPECT_EQ(later.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(later.error().message, HasSubstr(name));
  });
  EXPECT_LT(Clock::now() - before, 10s);
}

TEST(CollectiveTest, ARankThatLeavesInTheMiddleIsNamedToAllOthersAtOnce) {
  for (const Algorithm algorithm : kAlgorithms)
    for (const std::uint32_t n : {2U, 3U, 5U})
      for (std::uint32_t leaver = 0; leaver < n; ++leaver)
        ExpectLeaverIsNamed(n, leaver, algorithm);
}

// Rank 1 of 2, played by the test with frames of its own, up to where the first operation is due.
class FakeRank {
 public:
  explicit FakeRank(CollectiveEngine& other)
      : listener_(net::TcpListener::Listen({"127.0.0.1", 0}).value()) {
    const std::vector<std::string> addresses{other.address(), listener_.address().ToString()};
    std::thread joins([&] {
      const auto connected = other.Connect(addresses, kSecret);
      ASSERT_TRUE(connected) << connected.error().message;
    });
    auto links = JoinGroup({.secret = kSecret,
                            .rank = 1,
                            .world_size = 2,
                            .chunk_size_bytes = Options{}.chunk_size_bytes},
                           addresses, listener_, Clock::now() + 20s)
                     .value();
    to_ = std::move(links.to.front().endpoint);
    from_ = std::move(links.from.front().endpoint);
    Send({.step = 1, .type = ReduceType::kI64, .algorithm = Algorithm::kRecursiveDoubling}, {});
    EXPECT_EQ(net::NextEvent(*from_, Clock::now() + 20s, "the barrier").value(),
              net::Endpoint::Event::kFrame);
    joins.join();
  }

  void Send(CollectiveData data, std::span<const std::byte> payload,
            std::uint64_t check_spoilt = 0) {
    data.payload_check = Xxh3(payload) ^ check_spoilt;
    Send(net::FrameType::kCollectiveData, data.Encode(), payload);
  }
  void Send(net::FrameType type, std::span<const std::byte> body,
            std::span<const std::byte> payload) {
    ASSERT_TRUE(to_->Send({.type = type}, body, {&payload, 1}));
    // Not asserted: the engine may refuse a frame by its head and hang up before the rest is sent.
    std::ignore = net::Flush(*to_, Clock::now() + 5s);
  }
  void Close() {
    to_ = nullptr;
    from_ = nullptr;
  }

 private:
  net::TcpListener listener_;
  std::unique_ptr<net::Endpoint> to_;
  std::unique_ptr<net::Endpoint> from_;
};

TEST(CollectiveTest, WhatAPeerMayNotSendEndsTheOperationAndNothingElse) {
  constexpr std::uint64_t kCount = 1000;
  const std::vector<std::byte> half(kCount / 2 * 4);
  const std::vector<std::byte> less(half.size() - 4);
  // What rank 0 awaits first: its own half.
  const CollectiveData good{.sequence = 1, .count = kCount};
  CollectiveData other_step = good;
  other_step.step = 1;
  CollectiveData other_place = good;
  other_place.first = kCount / 2;
  CollectiveData other_operation = good;
  other_operation.sequence = 3;
  const std::vector<std::byte> no_body(3);
  struct Case {
    std::function<void(FakeRank&)> act;
    ErrorCode code;
    std::string_view named;
  };
  const Case all[] = {
      {[&](FakeRank& fake) { fake.Send(good, half, 1); }, ErrorCode::kCorruption,
       "fails its check"},
      {[&](FakeRank& fake) { fake.Send(good, less); }, ErrorCode::kCorruption, "out of order"},
      {[&](FakeRank& fake) { fake.Send(other_step, half); }, ErrorCode::kCorruption, "order"},
      {[&](FakeRank& fake) { fake.Send(other_place, half); }, ErrorCode::kCorruption, "order"},
      {[&](FakeRank& fake) { fake.Send(other_operation, half); }, ErrorCode::kCorruption,
       "is at operation 3"},
      {[&](FakeRank& fake) { fake.Send(net::FrameType::kCollectiveData, no_body, {}); },
       ErrorCode::kCorruption, "malformed"},
      {[&](FakeRank& fake) { fake.Send(net::FrameType::kPing, GroupWaiting{9}.Encode(), {}); },
       ErrorCode::kCorruption, "waits for rank 9"},
      {[&](FakeRank& fake) { fake.Send(net::FrameType::kHello, {}, {}); }, ErrorCode::kCorruption,
       "type 1"},
      {[&](FakeRank& fake) { fake.Send(net::FrameType::kError, {}, {}); }, ErrorCode::kCorruption,
       "malformed"},
      {[&](FakeRank& fake) {
         fake.Send(good, half);
         fake.Close();
       },
       ErrorCode::kUnavailable, "rank 1 at"},
  };
  for (const Case& one : all) {
    auto engine =
        CollectiveEngine::Create(0, 2, {.timeout = 20s, .algorithm = Algorithm::kRing}).value();
    FakeRank fake(engine);
    std::vector<float> data(kCount, 1);
    const auto token =
        engine.AllReduce(data.data(), data.size(), ReduceType::kF32, ReduceOp::kSum).value();

    one.act(fake);

    const auto reduced = engine.Wait(token);
    ASSERT_FALSE(reduced) << one.named;
    EXPECT_EQ(reduced.error().code, one.code) << reduced.error().message;
    EXPECT_THAT(reduced.error().message, HasSubstr(one.named));
    EXPECT_THAT(reduced.error().message, HasSubstr("rank 1"));
  }
}

void ExpectAbsenteeIsNamed(std::uint32_t n, Algorithm algorithm) {
  constexpr auto kTimeout = 2s;
  Group group(n, {.timeout = kTimeout, .algorithm = algorithm});
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    if (rank == 1) return;
    const auto before = Clock::now();
    std::vector<float> data(3 << 20, 1);
    const auto reduced = AllReduce(engine, data);
    ASSERT_FALSE(reduced);
    EXPECT_GE(Clock::now() - before, kTimeout / 2);
    EXPECT_LT(Clock::now() - before, kTimeout + 20s);
    EXPECT_EQ(reduced.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(reduced.error().message, HasSubstr("rank 1 does not answer"))
        << "algorithm " << static_cast<int>(algorithm);
  });
  // It learns of it too.
  std::vector<float> data(1);
  EXPECT_EQ(AllReduce(group.engines[1], data).error().code, ErrorCode::kDeadlineExceeded);
}

TEST(CollectiveTest, ARankThatNeverSubmitsIsNamedToAllWhenTimeIsUp) {
  std::vector<std::thread> groups;  // Side by side, for they only wait.
  groups.emplace_back(ExpectAbsenteeIsNamed, 2, Algorithm::kRing);
  for (const Algorithm algorithm : kAlgorithms)
    groups.emplace_back(ExpectAbsenteeIsNamed, 4, algorithm);
  for (auto& group : groups) group.join();
}

TEST(CollectiveTest, OperationsThatDifferAreNamedOnAllRanks) {
  for (const std::uint32_t n : {2U, 4U}) {
    for (const bool by_size : {false, true}) {
      Group group(n, {.timeout = 20s});
      group.Connect();
      group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
        std::vector<float> data(rank == 1 && by_size ? 101 : 100);
        const auto reduced =
            AllReduce(engine, data, rank == 1 && !by_size ? ReduceOp::kMax : ReduceOp::kSum);
        ASSERT_FALSE(reduced);
        EXPECT_EQ(reduced.error().code, ErrorCode::kInvalidArgument) << reduced.error().message;
        EXPECT_THAT(reduced.error().message, HasSubstr("sum of 100 f32"));
        EXPECT_THAT(reduced.error().message,
                    HasSubstr(by_size ? "sum of 101 f32" : "maximum of 100 f32"));
        EXPECT_THAT(reduced.error().message, HasSubstr("rank 1"));
      });
    }
  }
}

TEST(CollectiveTest, AnEmptyArrayHereAndElementsThereDifferToo) {
  Group group(3, {.timeout = 20s});
  group.Connect();
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    std::vector<float> data(rank == 2 ? 5 : 0);
    EXPECT_EQ(AllReduce(engine, data).error().code, ErrorCode::kInvalidArgument);
  });
}

TEST(CollectiveTest, AWrongSecretIsDenied) {
  for (const std::uint32_t n : {2U, 3U}) {
    Group group(n, {.timeout = 20s});
    std::atomic<int> denied = 0;
    group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
      Secret secret = kSecret;
      if (rank == 1) secret[15] = std::byte{1};
      const auto connected = engine.Connect(group.addresses, secret);
      ASSERT_FALSE(connected);
      if (connected.error().code == ErrorCode::kDenied) ++denied;
      if (rank == 1) {
        EXPECT_THAT(connected.error().message, HasSubstr("secret"));
      }
      std::vector<float> data(1);
      EXPECT_FALSE(AllReduce(engine, data));
    });
    EXPECT_GE(denied, 2);  // The two ends of that connection; others may see them leave first.
  }
}

TEST(CollectiveTest, StrangersDoNotDisturbAGroupThatForms) {
  Group group(2, {.timeout = 20s});
  std::vector<std::unique_ptr<net::Endpoint>> strangers;
  for (int i = 0; i < 20; ++i) {
    const auto address = net::Address::Parse(group.addresses[static_cast<std::size_t>(i % 2)], 0);
    strangers.push_back(net::ConnectTcp(address.value(), Clock::now() + 20s).value());
    if (i % 3 == 0) strangers.back()->Close();
    if (i % 3 == 1) {
      // They may be shown the door before they have said it.
      std::ignore = strangers.back()->Send({.type = net::FrameType::kPing}, {}, {});
      std::ignore = net::Flush(*strangers.back(), Clock::now() + 1s);
    }
  }
  group.Connect();
}

TEST(CollectiveTest, AMissingRankEndsConnectInTime) {
  constexpr auto kTimeout = 500ms;
  Group group(3, {.timeout = kTimeout});
  group.ForEach([&](std::uint32_t rank, CollectiveEngine& engine) {
    if (rank == 1) return;  // Listens, but never comes.
    const auto before = Clock::now();
    const auto connected = engine.Connect(group.addresses, kSecret);
    ASSERT_FALSE(connected);
    EXPECT_TRUE(connected.error().code == ErrorCode::kDeadlineExceeded ||
                connected.error().code == ErrorCode::kUnavailable);
    EXPECT_THAT(connected.error().message, HasSubstr("rank"));
    EXPECT_LT(Clock::now() - before, kTimeout + 20s);
  });
}

TEST(CollectiveTest, ADifferentWorldOrChunkIsRefused) {
  auto zero = CollectiveEngine::Create(0, 2, {.timeout = 20s}).value();
  auto one = CollectiveEngine::Create(1, 2, {.timeout = 20s, .chunk_size_bytes = 4096}).value();
  const std::vector<std::string> addresses{zero.address(), one.address()};
  std::thread other([&] { EXPECT_FALSE(zero.Connect(addresses, kSecret)); });
  const auto connected = one.Connect(addresses, kSecret);
  other.join();
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(connected.error().message, HasSubstr("chunks of 4096 bytes"));
}

TEST(CollectiveTest, MisuseIsRefusedAtOnce) {
  EXPECT_FALSE(CollectiveEngine::Create(2, 2, {}));
  EXPECT_FALSE(CollectiveEngine::Create(0, 0, {}));
  EXPECT_FALSE(CollectiveEngine::Create(0, 1, {.timeout = 0ms}));
  EXPECT_FALSE(CollectiveEngine::Create(0, 1, {.chunk_size_bytes = 1}));
  EXPECT_FALSE(CollectiveEngine::Create(0, 1, {.chunk_size_bytes = (8 << 20) + 1}));

  auto engine = CollectiveEngine::Create(0, 1, {}).value();
  float value = 3;
  EXPECT_FALSE(engine.AllReduce(&value, 1, ReduceType::kF32, ReduceOp::kSum));  // Not connected.
  EXPECT_FALSE(engine.Connect({}, kSecret));
  ASSERT_TRUE(engine.Connect(std::vector<std::string>{engine.address()}, kSecret));
  EXPECT_FALSE(engine.Connect(std::vector<std::string>{engine.address()}, kSecret));
  EXPECT_FALSE(engine.AllReduce(nullptr, 1, ReduceType::kF32, ReduceOp::kSum));
  EXPECT_FALSE(engine.AllReduce(&value, 1, ReduceType::kI32, ReduceOp::kAverage));
  EXPECT_FALSE(engine.AllReduce(&value, UINT64_MAX, ReduceType::kF32, ReduceOp::kSum));
  EXPECT_FALSE(engine.Broadcast(&value, 1, ReduceType::kF32, 1));
  EXPECT_FALSE(engine.Wait(99));
}

TEST(CollectiveTest, ShutdownWakesAllWhoWait) {
  Group group(2, {.timeout = 20s});
  group.Connect();
  std::vector<float> data(10);
  CollectiveEngine& engine = group.engines[0];
  const auto token = engine.AllReduce(data.data(), 10, ReduceType::kF32, ReduceOp::kSum);
  std::thread waits([&] { EXPECT_FALSE(engine.Wait(token.value())); });
  std::thread pumps([&] {
    for (;;) {
      const auto completion = engine.WaitAny(20s);
      if (completion) continue;  // Took it from the other thread.
      EXPECT_EQ(completion.error().code, ErrorCode::kUnavailable);
      return;
    }
  });
  engine.Shutdown();
  engine.Shutdown();
  waits.join();
  pumps.join();
}

// A pump tells "nothing yet" from "never again" by these codes.
TEST(CollectiveTest, AfterShutdownWaitAnyIsUnavailableThoughTheGroupHadRunOutOfTime) {
  Group group(2, {.timeout = 2s});  // For Connect too.
  group.Connect();
  CollectiveEngine& engine = group.engines[0];
  std::vector<float> data(10);
  EXPECT_EQ(AllReduce(engine, data).error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(engine.WaitAny(1ms).error().code, ErrorCode::kDeadlineExceeded);
  engine.Shutdown();
  EXPECT_EQ(engine.WaitAny(20s).error().code, ErrorCode::kUnavailable);
}

TEST(CollectiveTest, AnEndInGoodOrderDoesNotSpoilWhatOthersStillReceive) {
  for (int round = 0; round < 20; ++round) {
    Group group(3, {.timeout = 20s});
    group.Connect();
    group.ForEach([&](std::uint32_t, CollectiveEngine& engine) {
      std::vector<std::int32_t> data(50'000, 1);
      const auto reduced = AllReduce(engine, data);
      EXPECT_TRUE(reduced) << reduced.error().message;
      const CollectiveEngine gone(std::move(engine));  // Closed here, as soon as it is done.
    });
  }
}

using CollectiveDeathTest = testing::Test;

TEST(CollectiveDeathTest, AForkedChildMustNotUseIt) {
  auto engine = CollectiveEngine::Create(0, 1, {}).value();
  ASSERT_TRUE(engine.Connect(std::vector<std::string>{engine.address()}, kSecret));
  float value = 1;
  EXPECT_DEATH((void)engine.AllReduce(&value, 1, ReduceType::kF32, ReduceOp::kSum), "getpid");
  EXPECT_TRUE(engine.AllReduce(&value, 1, ReduceType::kF32, ReduceOp::kSum));
}

}  // namespace
}  // namespace ffrecord::client
