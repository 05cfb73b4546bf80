#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ffrecord/client/collective.h>

#include "client/collective/machines.h"

namespace ffrecord::client {

// Which rank sends which part of an array to which rank when, in each collective by each algorithm.
// Pure arithmetic; protocol.md, "Collectives", says the same in words.

// The values travel between ranks.
enum class Collective : std::uint8_t {
  kAllReduce = 0,
  kReduceScatter = 1,
  kAllGather = 2,
  kBroadcast = 3,
};

// Whether it combines elements; others only move them.
constexpr bool IsReduction(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduceScatter;
}

// Elements [begin, end) of an array.
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  std::uint64_t size() const { return end - begin; }
  // Whether what happens to one has to wait for the other. Empty ranges touch each other, so that
  // a collective over nothing is a barrier.
  bool Touches(const Range& other) const {
    if (begin == end || other.begin == other.end) return begin == end && other.begin == other.end;
    return begin < other.end && other.begin < end;
  }
  bool operator==(const Range&) const = default;
};

// Part `index` of `parts` equal ones; sizes differ by one at most.
inline Range PartOf(std::uint64_t count, std::uint32_t parts, std::uint32_t index) {
  const auto begin = [&](std::uint32_t part) {
    return count / parts * part + std::min<std::uint64_t>(part, count % parts);
  };
  return {begin(index), begin(index + 1)};
}

// A part that goes to, or comes from, `peer`.
struct Transfer {
  std::uint32_t step;  // The same on both ends.
  std::uint32_t peer;
  Range range;
};

struct Arrival : Transfer {
  bool reduces = false;    // Is added to our part; else it is final and copied.
  bool completes = false;  // That sum is complete: ours to average.
};

// One rank's part. Both lists are in the order of steps, and no two arrivals of a step touch.
//
// A part that is sent in a step holds all that arrived in earlier steps; a part that arrives is
// placed after the same, and after those that are sent from there in this step and earlier. All
// ranks that go by this order finish, however much or little they have in flight: the least
// unfinished step can go on.
struct Schedule {
  std::vector<Transfer> sends;
  std::vector<Arrival> arrivals;
};

// The collective call, on which all ranks must agree. `root` matters to a broadcast only.
struct Plan {
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  std::uint32_t root = 0;
  std::uint64_t count = 0;

  bool operator==(const Plan&) const = default;
};

// Requires world_size > 1, an algorithm that IsOffered, and for the hierarchical one `machines`
// with equally many ranks each.
Schedule MakeSchedule(const Plan& plan, std::uint32_t rank, std::uint32_t world_size,
                      const Machines& machines = {});
// That of the hierarchical all-reduce.
Schedule Hierarchy(std::uint64_t count, std::uint32_t rank, const Machines& machines);

// An all-reduce goes by any algorithm; reduce-scatter and all-gather by the ring, a broadcast by
// the ring or by recursive doubling.
bool IsOffered(Collective collective, Algorithm algorithm);

// Ranks that `rank` sends to, and that it receives from, in any collective by any algorithm;
// ascending.
struct Peers {
  std::vector<std::uint32_t> to;
  std::vector<std::uint32_t> from;
};
Peers PeersOf(std::uint32_t rank, std::uint32_t world_size, const Machines& machines = {});

}  // namespace ffrecord::client
