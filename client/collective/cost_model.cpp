#include "client/collective/cost_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <limits>
#include <vector>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/clock.h"

namespace ffrecord::client {
namespace {

// Rounds of each probe by which a group learns what the network costs.
constexpr int kProbeRounds = 5;
// Adding two arrays in memory, each of their bytes: measured as 6 to 10 GB/s on one core.
constexpr double kReduceByteS = 0.12e-9;
// The cost to the processor of a further message of the same step, in latencies. An assumption: it
// moves only the size from which arrays are split, and that by little.
constexpr double kNextMessage = 0.25;
// Halving-doubling has another partner in each step, and pieces of two steps share a wire: those
// that somebody waits for come late. On 4 ranks at 1 Gbit/s, 4 and 16 MiB take 1.27 and 1.24 times
// as long as by the ring, of which each wire carries one stream; below 256 KiB it is the quicker.
constexpr double kChangesPartner = 1.2;

// A step of the ring has so many pieces, unless they become too small to be worth it: one is on the
// wire while another is checked and added.
constexpr std::uint64_t kPiecesOfStep = 4;
constexpr std::uint64_t kPieceSizeMin = 64 << 10;

}  // namespace

double AllReduceCost(Algorithm algorithm, std::uint32_t world_size, std::uint64_t size_bytes,
                     std::uint64_t chunk_size_bytes, const GroupCost& group) {
  const LinkCost& link = group.link;
  const double n = world_size;
  const double bytes = static_cast<double>(size_bytes);
  const double chunk = std::min(bytes, static_cast<double>(chunk_size_bytes));
  const auto corners = std::bit_floor(world_size);
  const double dimensions = std::countr_zero(corners);
  const double whole = link.latency_s + bytes * link.byte_s;
  // A rank behind a corner brings an array there, and fetches one.
  const double fold = corners == world_size ? 0 : 2 * whole + bytes * kReduceByteS;
  const double share = (corners - 1.0) / corners;
  switch (algorithm) {
    case Algorithm::kRing:
      return 2 * (n - 1) * link.latency_s + 2 * (n - 1) / n * bytes * link.byte_s +
             (n - 1) / n * bytes * kReduceByteS;
    case Algorithm::kHalvingDoubling:
      return 2 * dimensions * link.latency_s + kChangesPartner * 2 * share * bytes * link.byte_s +
             share * bytes * kReduceByteS + fold;
    case Algorithm::kRecursiveDoubling:
      return dimensions * (whole + bytes * kReduceByteS) + fold;
    case Algorithm::kHierarchical:
      // Two steps, in each of which every message but the first costs a part of a latency.
      if (group.is_one_machine)
        return (2 + 2 * (n - 2) * kNextMessage) * link.latency_s +
               (n - 1) / n * bytes * (2 * link.byte_s + kReduceByteS);
      FFR_ASSERT(group.hierarchy.has_value());
      return group.hierarchy->latency_s + bytes * group.hierarchy->byte_s;
    case Algorithm::kDoubleTree:
      break;
  }
  const double depth = std::bit_width(world_size - 1);
  return 2 * depth * (link.latency_s + chunk * link.byte_s) + 2 * bytes * link.byte_s +
         bytes * kReduceByteS;
}

Algorithm CheapestAllReduce(std::uint32_t world_size, std::uint64_t size_bytes,
                            std::uint64_t chunk_size_bytes, const GroupCost& group) {
  std::vector<Algorithm> offered{Algorithm::kRecursiveDoubling};
  if (group.is_one_machine || group.hierarchy) offered.push_back(Algorithm::kHierarchical);
  // On one machine all ranks reach each other alike: of those that split the array, that one has
  // the fewest steps.
  if (!group.is_one_machine) {
    offered.insert(offered.begin(), Algorithm::kRing);
    offered.push_back(Algorithm::kDoubleTree);
    if (group.allows_halving) offered.push_back(Algorithm::kHalvingDoubling);
  }
  return *std::ranges::min_element(offered, {}, [&](Algorithm algorithm) {
    return AllReduceCost(algorithm, world_size, size_bytes, chunk_size_bytes, group);
  });
}

Algorithm CheapestBroadcast(std::uint32_t world_size, std::uint64_t size_bytes,
                            std::uint64_t chunk_size_bytes, const LinkCost& link) {
  const double bytes = static_cast<double>(size_bytes);
  const double chunk = std::min(bytes, static_cast<double>(chunk_size_bytes));
  const double hops = world_size - 1.0;
  const double ring = hops * (link.latency_s + chunk * link.byte_s) + bytes * link.byte_s;
  const double doublings = std::bit_width(world_size - 1);
  const double cube = doublings * (link.latency_s + bytes * link.byte_s);
  return cube <= ring ? Algorithm::kRecursiveDoubling : Algorithm::kRing;
}

Result<GroupCost> MeasureCost(std::uint32_t world_size, std::uint64_t chunk_size_bytes,
                              bool has_hierarchy, const RunMaximum& run) {
  // Not many more pieces than a step has of a large array.
  const std::uint64_t size_bytes = std::clamp<std::uint64_t>(
      16 * chunk_size_bytes, sizeof(std::int32_t) * world_size, 256 << 10);
  std::vector<std::byte> probe(size_bytes);
  // Seconds of an operation. The least of some rounds is that of an undisturbed one.
  const auto measure = [&](Algorithm algorithm, std::uint64_t count) -> Result<double> {
    double least_s = std::numeric_limits<double>::max();
    for (int round = 0; round < kProbeRounds; ++round) {
      const auto before = Clock::now();
      FFR_TRY(run({.algorithm = algorithm, .count = count}, probe.data(), ReduceType::kI32));
      least_s = std::min(least_s, std::chrono::duration<double>(Clock::now() - before).count());
    }
    return least_s;
  };
  const auto line = [&](Algorithm algorithm) -> Result<LinkCost> {
    const double small_s = FFR_TRY(measure(algorithm, world_size));
    const double large_s = FFR_TRY(measure(algorithm, size_bytes / sizeof(std::int32_t)));
    return LinkCost{small_s, std::max(0.0, large_s - small_s) / static_cast<double>(size_bytes)};
  };
  const LinkCost ring = FFR_TRY(line(Algorithm::kRing));
  LinkCost hierarchy;
  if (has_hierarchy) hierarchy = FFR_TRY(line(Algorithm::kHierarchical));

  // A step of the ring carries a part of the array.
  const double steps = 2 * (world_size - 1);
  std::array<double, 4> figures{ring.latency_s / steps, ring.byte_s / steps * world_size,
                                hierarchy.latency_s, hierarchy.byte_s};
  const Plan agree{.algorithm = Algorithm::kRecursiveDoubling, .count = figures.size()};
  FFR_TRY(run(agree, figures.data(), ReduceType::kF64));
  GroupCost cost{.link = {.latency_s = figures[0], .byte_s = figures[1]}};
  if (has_hierarchy) cost.hierarchy = {.latency_s = figures[2], .byte_s = figures[3]};
  return cost;
}

std::uint64_t ChunkSizeFor(const Plan& plan, std::uint64_t element_size_bytes,
                           std::uint32_t world_size, std::uint64_t chunk_size_bytes) {
  if (plan.algorithm != Algorithm::kRing || plan.collective == Collective::kBroadcast)
    return chunk_size_bytes;
  const std::uint64_t step_size_bytes = plan.count * element_size_bytes / world_size;
  return std::clamp(step_size_bytes / kPiecesOfStep, std::min(kPieceSizeMin, chunk_size_bytes),
                    chunk_size_bytes);
}

}  // namespace ffrecord::client
