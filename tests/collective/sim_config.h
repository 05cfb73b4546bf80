#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "client/collective/operations.h"
#include "sim_wire.h"

namespace ffrecord::test {

// What a seed makes of a group and its operations.
struct SimConfig {
  static constexpr std::chrono::milliseconds kTimeout{8'000};

  explicit SimConfig(std::uint64_t seed);

  client::ExchangeGroup GroupOf(std::uint32_t rank) const;
  bool SharesMemory(std::uint32_t a, std::uint32_t b) const { return machines.Share(a, b); }

  std::uint32_t world_size = 2;
  std::uint16_t streams = 1;
  bool is_rdma = false;
  client::Machines machines;
  client::WireType wire = client::WireType::kExact;
  std::uint64_t chunk_size_bytes = 64;
  std::uint64_t shared_piece_size_bytes = 64;
  std::uint64_t part_bytes = 64;  // That leave at a time, at most.
  std::uint64_t window_bytes = 4096;
  SimDuration latency{};
  SimDuration span{};                         // Within which operations and faults begin.
  std::vector<client::Operation> operations;  // Without their arrays.

  // A rank's array of an operation, before and after.
  std::vector<std::byte> InputOf(std::uint32_t rank, std::size_t operation) const;
  // By the schedule alone, step by step. Requires kExact.
  std::vector<std::vector<std::byte>> ResultsOf(std::size_t operation) const;

 private:
  client::Operation Draw(SimRandom& random, std::uint64_t sequence) const;

  std::uint64_t seed_;
};

}  // namespace ffrecord::test
