#pragma once

#include <cstdint>

#include "client/collective/schedule.h"

namespace ffrecord::client {

// What moving bytes between two ranks costs, in seconds; equal on all ranks, for they must choose
// alike. The defaults are those of a fast network.
struct LinkCost {
  double latency_s = 30e-6;
  double byte_s = 1e-9;
};

// Seconds that an all-reduce of so many bytes takes by that algorithm.
double AllReduceCost(Algorithm algorithm, std::uint32_t world_size, std::uint64_t size_bytes,
                     std::uint64_t chunk_size_bytes, const LinkCost& link);

// The algorithm that takes the least time.
Algorithm CheapestAllReduce(std::uint32_t world_size, std::uint64_t size_bytes,
                            std::uint64_t chunk_size_bytes, const LinkCost& link);
Algorithm CheapestBroadcast(std::uint32_t world_size, std::uint64_t size_bytes,
                            std::uint64_t chunk_size_bytes, const LinkCost& link);

}  // namespace ffrecord::client
