#include "client/collective/schedule.h"

#include <array>
#include <bit>
#include <utility>

#include "libffrecord/base/assert.h"

namespace ffrecord::client {
namespace {

// --- Ring ----------------------------------------------------------------------------------------

// Segment k travels from rank k + 1 once around: each rank adds its part, and the last one, rank k,
// owns the sum. Then it travels once more and is copied. A rank sends in each step the segment that
// it received in the step before. The two halves are a reduce-scatter and an all-gather.
Schedule Ring(const Plan& plan, std::uint32_t rank, std::uint32_t n) {
  const std::uint32_t begin = plan.collective == Collective::kAllGather ? n - 1 : 0;
  const std::uint32_t end = plan.collective == Collective::kReduceScatter ? n - 1 : 2 * (n - 1);
  const auto segment = [&](std::uint32_t step) {
    return PartOf(plan.count, n, (rank + 2 * n - step - 1) % n);
  };
  Schedule schedule;
  for (std::uint32_t step = begin; step < end; ++step) {
    schedule.sends.push_back({step, (rank + 1) % n, segment(step)});
    schedule.arrivals.push_back(
        {{step, (rank + n - 1) % n, segment(step + 1)}, step + 1 < n, step + 2 == n});
  }
  return schedule;
}

// From the root along the ring, to all but the root again.
Schedule Chain(const Plan& plan, std::uint32_t rank, std::uint32_t n) {
  const std::uint32_t hops = (rank + n - plan.root) % n;
  const Range all{0, plan.count};
  Schedule schedule;
  if (hops > 0) schedule.arrivals.push_back({{hops - 1, (rank + n - 1) % n, all}});
  if (hops + 1 < n) schedule.sends.push_back({hops, (rank + 1) % n, all});
  return schedule;
}

// --- Hypercube -----------------------------------------------------------------------------------

// Ranks below the largest power of two are the corners of a hypercube: neighbours differ in one
// bit. Any other rank stands behind a corner, which adds its array first and passes the result on.
class Hypercube {
 public:
  Hypercube(std::uint64_t count, std::uint32_t rank, std::uint32_t n)
      : all_{0, count},
        rank_(rank),
        corners_(std::bit_floor(n)),
        dimensions_(static_cast<std::uint32_t>(std::countr_zero(corners_))),
        has_follower_(rank + corners_ < n) {}

  Schedule RecursiveDoubling() {
    if (!FoldIn()) return std::move(schedule_);
    for (std::uint32_t bit = 0; bit < dimensions_; ++bit) {
      Send(1 + bit, Across(bit), all_);
      Reduce(1 + bit, Across(bit), all_, bit + 1 == dimensions_);
    }
    return FoldOut(1 + dimensions_);
  }

  Schedule HalvingDoubling() {
    if (!FoldIn()) return std::move(schedule_);
    // Parts [first, first + held) of as many as there are corners.
    std::uint32_t first = 0;
    std::uint32_t held = corners_;
    for (std::uint32_t bit = 0; bit < dimensions_; ++bit) {
      held /= 2;
      const bool keeps_upper = (rank_ >> bit & 1) != 0;
      Send(1 + bit, Across(bit), Parts(first + (keeps_upper ? 0 : held), held));
      if (keeps_upper) first += held;
      Reduce(1 + bit, Across(bit), Parts(first, held), bit + 1 == dimensions_);
    }
    std::uint32_t step = 1 + dimensions_;
    for (std::uint32_t bit = dimensions_; bit-- > 0; ++step, held *= 2) {
      const std::uint32_t sibling = (first / held % 2 == 0) ? first + held : first - held;
      Send(step, Across(bit), Parts(first, held));
      Copy(step, Across(bit), Parts(sibling, held));
      first = std::min(first, sibling);
    }
    return FoldOut(step);
  }

  // Each that has the array gives it to one neighbour in each step. A root behind a corner gives it
  // to that corner first.
  Schedule Broadcast(std::uint32_t root) {
    const std::uint32_t from = root % corners_;
    if (root != from && rank_ == root) Send(0, from, all_);
    if (rank_ >= corners_) {
      if (rank_ != root) Copy(1 + dimensions_, rank_ - corners_, all_);
      return std::move(schedule_);
    }
    if (root != from && rank_ == from) Copy(0, root, all_);
    for (std::uint32_t bit = 0; bit < dimensions_; ++bit) {
      const std::uint32_t distance = rank_ ^ from;
      if (distance >> bit == 0) Send(1 + bit, Across(bit), all_);
      if (distance >> bit == 1) Copy(1 + bit, Across(bit), all_);
    }
    if (has_follower_ && rank_ + corners_ != root) Send(1 + dimensions_, rank_ + corners_, all_);
    return std::move(schedule_);
  }

 private:
  std::uint32_t Across(std::uint32_t bit) const { return rank_ ^ (1U << bit); }
  Range Parts(std::uint32_t first, std::uint32_t number) const {
    return {PartOf(all_.end, corners_, first).begin,
            PartOf(all_.end, corners_, first + number - 1).end};
  }

  // False if we are no corner, and all our part is done by this.
  bool FoldIn() {
    if (rank_ >= corners_) {
      Send(0, rank_ - corners_, all_);
      // After the last step of all corners, by whichever algorithm.
      Copy(1 + 2 * dimensions_, rank_ - corners_, all_);
      return false;
    }
    if (has_follower_) Reduce(0, rank_ + corners_, all_, false);
    return true;
  }
  Schedule FoldOut(std::uint32_t step_min) {
    FFR_ASSERT(step_min <= 1 + 2 * dimensions_);
    if (has_follower_) Send(1 + 2 * dimensions_, rank_ + corners_, all_);
    return std::move(schedule_);
  }

  void Send(std::uint32_t step, std::uint32_t peer, Range range) {
    schedule_.sends.push_back({step, peer, range});
  }
  void Copy(std::uint32_t step, std::uint32_t peer, Range range) {
    schedule_.arrivals.push_back({{step, peer, range}});
  }
  void Reduce(std::uint32_t step, std::uint32_t peer, Range range, bool completes) {
    schedule_.arrivals.push_back({{step, peer, range}, true, completes});
  }

  const Range all_;
  const std::uint32_t rank_;
  const std::uint32_t corners_;
  const std::uint32_t dimensions_;
  const bool has_follower_;
  Schedule schedule_;
};

// --- Double binary tree --------------------------------------------------------------------------

// A binary search tree over the places 1 ... n: a place's level is the number of its trailing zero
// bits, so odd places are the leaves.
struct Tree {
  std::uint32_t n;

  static std::uint32_t Level(std::uint32_t place) {
    return static_cast<std::uint32_t>(std::countr_zero(place));
  }
  std::uint32_t height() const { return static_cast<std::uint32_t>(std::bit_width(n)); }
  std::uint32_t root() const { return std::bit_floor(n); }

  // 0 for the root. Ancestors beyond n are left out: the next one is below n.
  std::uint32_t Parent(std::uint32_t place) const {
    if (place == root()) return 0;
    do {
      const std::uint32_t bit = place & (~place + 1);
      place = (place & ~bit) | (bit << 1);
    } while (place > n);
    return place;
  }
  // Left and right, 0 where there is none.
  std::array<std::uint32_t, 2> Children(std::uint32_t place) const {
    std::uint32_t half = (place & (~place + 1)) / 2;
    if (half == 0) return {0, 0};
    std::uint32_t right = place + half;
    while (right > n && half > 1) {  // The part of a missing one that is left.
      half /= 2;
      right -= half;
    }
    return {place - (place & (~place + 1)) / 2, right > n ? 0 : right};
  }
};

// Two trees with half of the array each. The second is the first mirrored, or shifted by one for an
// odd number of ranks: who is inside of one is a leaf of the other, so all send about as much.
class DoubleTree {
 public:
  DoubleTree(std::uint64_t count, std::uint32_t rank, std::uint32_t n)
      : count_(count), rank_(rank), tree_{n} {}

  Schedule AllReduce() {
    for (const std::uint32_t which : {0U, 1U}) AddTree(which);
    const auto by_step = [](const Transfer& a, const Transfer& b) { return a.step < b.step; };
    std::ranges::sort(schedule_.sends, by_step);
    std::ranges::sort(schedule_.arrivals, by_step);
    return std::move(schedule_);
  }

 private:
  void AddTree(std::uint32_t which) {
    const Range half = PartOf(count_, 2, which);
    const std::uint32_t place = PlaceOf(which, rank_);
    const std::uint32_t parent = tree_.Parent(place);
    const auto children = tree_.Children(place);
    std::vector<Arrival> sums;
    for (const std::uint32_t child : children) {
      if (child == 0) continue;
      sums.push_back({{StepUp(which, child, place), RankAt(which, child), half}, true, false});
      schedule_.sends.push_back({StepDown(which, child), RankAt(which, child), half});
    }
    if (parent == 0) {
      const auto last = std::ranges::max_element(sums, {}, &Arrival::step);
      if (last != sums.end()) last->completes = true;
    } else {
      schedule_.sends.push_back({StepUp(which, place, parent), RankAt(which, parent), half});
      schedule_.arrivals.push_back({{StepDown(which, place), RankAt(which, parent), half}});
    }
    schedule_.arrivals.insert(schedule_.arrivals.end(), sums.begin(), sums.end());
  }

  // Sums rise by level, the two of one parent one after the other; results come down after all.
  static std::uint32_t StepUp(std::uint32_t which, std::uint32_t child, std::uint32_t parent) {
    return 4 * Tree::Level(child) + (child > parent ? 2 : 0) + which;
  }
  std::uint32_t StepDown(std::uint32_t which, std::uint32_t child) const {
    return 4 * (2 * tree_.height() - Tree::Level(child)) + which;
  }

  std::uint32_t PlaceOf(std::uint32_t which, std::uint32_t rank) const {
    if (which == 0) return rank + 1;
    return tree_.n % 2 == 0 ? tree_.n - rank : (rank + 1) % tree_.n + 1;
  }
  std::uint32_t RankAt(std::uint32_t which, std::uint32_t place) const {
    if (which == 0) return place - 1;
    return tree_.n % 2 == 0 ? tree_.n - place : (place + tree_.n - 2) % tree_.n;
  }

  const std::uint64_t count_;
  const std::uint32_t rank_;
  const Tree tree_;
  Schedule schedule_;
};

}  // namespace

bool IsOffered(Collective collective, Algorithm algorithm) {
  switch (collective) {
    case Collective::kAllReduce:
      return algorithm <= Algorithm::kHierarchical;
    case Collective::kReduceScatter:
    case Collective::kAllGather:
      return algorithm == Algorithm::kRing;
    case Collective::kBroadcast:
      return algorithm == Algorithm::kRing || algorithm == Algorithm::kRecursiveDoubling;
  }
  return false;
}

Schedule MakeSchedule(const Plan& plan, std::uint32_t rank, std::uint32_t world_size,
                      const Machines& machines) {
  FFR_ASSERT(world_size > 1 && rank < world_size && IsOffered(plan.collective, plan.algorithm));
  const bool is_broadcast = plan.collective == Collective::kBroadcast;
  switch (plan.algorithm) {
    case Algorithm::kRing:
      return is_broadcast ? Chain(plan, rank, world_size) : Ring(plan, rank, world_size);
    case Algorithm::kHalvingDoubling:
      return Hypercube(plan.count, rank, world_size).HalvingDoubling();
    case Algorithm::kRecursiveDoubling: {
      Hypercube cube(plan.count, rank, world_size);
      return is_broadcast ? cube.Broadcast(plan.root) : cube.RecursiveDoubling();
    }
    case Algorithm::kHierarchical:
      return Hierarchy(plan.count, rank, machines);
    case Algorithm::kDoubleTree:
      break;
  }
  return DoubleTree(plan.count, rank, world_size).AllReduce();
}

Peers PeersOf(std::uint32_t rank, std::uint32_t world_size, const Machines& machines) {
  Peers peers;
  if (world_size == 1) return peers;
  // All else goes along the edges of these.
  std::vector<Algorithm> algorithms{Algorithm::kRing, Algorithm::kRecursiveDoubling,
                                    Algorithm::kDoubleTree};
  if (machines.ranks_each() > 0) algorithms.push_back(Algorithm::kHierarchical);
  for (const Algorithm algorithm : algorithms) {
    const auto schedule = MakeSchedule({.algorithm = algorithm}, rank, world_size, machines);
    for (const auto& send : schedule.sends) peers.to.push_back(send.peer);
    for (const auto& arrival : schedule.arrivals) peers.from.push_back(arrival.peer);
  }
  for (auto* ranks : {&peers.to, &peers.from}) {
    std::ranges::sort(*ranks);
    ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
  }
  return peers;
}

}  // namespace ffrecord::client
