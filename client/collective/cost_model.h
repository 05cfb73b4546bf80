#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <ffrecord/result.h>

#include "client/collective/schedule.h"

namespace ffrecord::client {

// The cost of moving bytes between two ranks, in seconds; equal on all ranks, for they must choose
// alike. The defaults are those of a fast network.
struct LinkCost {
  double latency_s = 30e-6;
  double byte_s = 1e-9;
};

// The costs that the ranks of a group have measured together.
struct GroupCost {
  LinkCost link;
  // Cost of a whole hierarchical all-reduce over several machines: latency, and seconds for each
  // byte of the array. Where it can be had.
  std::optional<LinkCost> hierarchy = std::nullopt;
  bool is_one_machine = false;  // All links are shared memory.
  bool allows_halving = true;   // By halving-doubling.
};

// Measures the cost of the network by all-reduces of a few sizes. All ranks call it at the same
// point, and have the slowest one's figures. `run` takes the maximum of an array over all ranks by
// a plan, and waits for that.
using RunMaximum = std::function<Result<void>(const Plan& plan, void* data, ReduceType type)>;
Result<GroupCost> MeasureCost(std::uint32_t world_size, std::uint64_t chunk_size_bytes,
                              bool has_hierarchy, const RunMaximum& run);

// Seconds that an all-reduce of so many bytes takes by that algorithm. Requires one machine, or
// `hierarchy`, for the hierarchical one.
double AllReduceCost(Algorithm algorithm, std::uint32_t world_size, std::uint64_t size_bytes,
                     std::uint64_t chunk_size_bytes, const GroupCost& group);

// The algorithm that takes the least time.
Algorithm CheapestAllReduce(std::uint32_t world_size, std::uint64_t size_bytes,
                            std::uint64_t chunk_size_bytes, const GroupCost& group);
Algorithm CheapestBroadcast(std::uint32_t world_size, std::uint64_t size_bytes,
                            std::uint64_t chunk_size_bytes, const LinkCost& link);

// The chunk size of an operation in a group with `chunk_size_bytes` that nobody has tuned.
std::uint64_t ChunkSizeFor(const Plan& plan, std::uint64_t element_size_bytes,
                           std::uint32_t world_size, std::uint64_t chunk_size_bytes);

}  // namespace ffrecord::client
