// Goal: the schedules of all ranks fit together, for every collective, algorithm, group and array.
// Method: a model of all ranks moves sets of contributions instead of numbers, step by step: each
// part that is sent must be received, in the same order on each connection, and at the end every
// element must hold every rank's contribution exactly once.

#include "client/collective/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "client/collective/cost_model.h"

namespace ffrecord::client {
namespace {

// How often each rank's part is in an element.
using Parts = std::vector<std::uint8_t>;

struct ModelRank {
  Schedule schedule;
  std::vector<Parts> elements;
  std::vector<bool> is_complete;
};

class Model {
 public:
  Model(const Plan& plan, std::uint32_t n, const Machines& machines = {}) : plan_(plan), n_(n) {
    for (std::uint32_t rank = 0; rank < n; ++rank) {
      ModelRank model{MakeSchedule(plan, rank, n, machines),
                      std::vector<Parts>(plan.count, Parts(n)), std::vector<bool>(plan.count)};
      for (auto& element : model.elements) element[rank] = 1;
      ranks_.push_back(std::move(model));
    }
  }

  // One step after another; every message of a step is sent before any is received.
  void Run() {
    std::uint32_t steps = 0;
    for (const auto& rank : ranks_) {
      for (const auto& send : rank.schedule.sends) steps = std::max(steps, send.step + 1);
      for (const auto& arrival : rank.schedule.arrivals) steps = std::max(steps, arrival.step + 1);
    }
    for (std::uint32_t step = 0; step < steps; ++step) {
      for (std::uint32_t from = 0; from < n_; ++from)
        for (const auto& send : ranks_[from].schedule.sends)
          if (send.step == step) Send(from, send);
      for (std::uint32_t to = 0; to < n_; ++to) {
        std::vector<Range> places;
        for (const auto& arrival : ranks_[to].schedule.arrivals) {
          if (arrival.step != step) continue;
          for (const Range& other : places) ASSERT_FALSE(other.Touches(arrival.range));
          places.push_back(arrival.range);
          ASSERT_NO_FATAL_FAILURE(Receive(to, arrival));
        }
      }
    }
    for (const auto& [link, messages] : wire_) ASSERT_TRUE(messages.empty());
  }

  const ModelRank& rank(std::uint32_t index) const { return ranks_[index]; }

 private:
  struct Message {
    Transfer transfer;
    std::vector<Parts> elements;
  };

  void Send(std::uint32_t from, const Transfer& send) {
    ASSERT_LT(send.peer, n_);
    ASSERT_NE(send.peer, from);
    const auto& elements = ranks_[from].elements;
    wire_[{from, send.peer}].push_back(
        {send,
         {elements.begin() + static_cast<std::ptrdiff_t>(send.range.begin),
          elements.begin() + static_cast<std::ptrdiff_t>(send.range.end)}});
  }

  void Receive(std::uint32_t to, const Arrival& arrival) {
    auto& messages = wire_[{arrival.peer, to}];
    ASSERT_FALSE(messages.empty());
    const Message message = std::move(messages.front());
    messages.pop_front();
    ASSERT_EQ(message.transfer.step, arrival.step);
    ASSERT_EQ(message.transfer.peer, to);
    ASSERT_EQ(message.transfer.range, arrival.range);
    for (std::uint64_t i = 0; i < arrival.range.size(); ++i) {
      const std::uint64_t at = arrival.range.begin + i;
      auto& element = ranks_[to].elements[at];
      if (arrival.reduces) {
        for (std::uint32_t rank = 0; rank < n_; ++rank) element[rank] += message.elements[i][rank];
        if (arrival.completes) {
          ASSERT_EQ(element, Parts(n_, 1)) << "a sum is called complete and is not";
          ranks_[to].is_complete[at] = true;
        }
      } else {
        element = message.elements[i];
      }
    }
  }

  const Plan plan_;
  const std::uint32_t n_;
  std::vector<ModelRank> ranks_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<Message>> wire_;
};

std::vector<std::uint64_t> Counts(std::uint32_t n) { return {0, 1, 2, n - 1, n, n + 1, 3 * n + 2}; }

constexpr Algorithm kAll[] = {Algorithm::kRing, Algorithm::kHalvingDoubling,
                              Algorithm::kRecursiveDoubling, Algorithm::kDoubleTree};

TEST(ScheduleTest, PartsCoverTheArrayAndDifferByOneElementAtMost) {
  for (std::uint32_t n = 1; n <= 33; ++n) {
    for (const std::uint64_t count : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{n - 1},
                                      std::uint64_t{1'000}, std::uint64_t{1} << 44}) {
      std::uint64_t end = 0;
      for (std::uint32_t part = 0; part < n; ++part) {
        const Range range = PartOf(count, n, part);
        ASSERT_EQ(range.begin, end);
        ASSERT_GE(range.size(), count / n);
        ASSERT_LE(range.size(), count / n + 1);
        end = range.end;
      }
      ASSERT_EQ(end, count);
    }
  }
}

TEST(ScheduleTest, AnAllReduceAddsEveryRanksPartOnceOnEveryRank) {
  for (const Algorithm algorithm : kAll) {
    for (std::uint32_t n = 2; n <= 33; ++n) {
      for (const std::uint64_t count : Counts(n)) {
        SCOPED_TRACE(testing::Message() << "algorithm " << static_cast<int>(algorithm) << " n " << n
                                        << " count " << count);
        Model model({.algorithm = algorithm, .count = count}, n);
        ASSERT_NO_FATAL_FAILURE(model.Run());
        std::vector<std::uint32_t> completed(count);
        for (std::uint32_t rank = 0; rank < n; ++rank) {
          for (std::uint64_t i = 0; i < count; ++i) {
            ASSERT_EQ(model.rank(rank).elements[i], Parts(n, 1)) << "rank " << rank << " at " << i;
            completed[i] += model.rank(rank).is_complete[i];
          }
        }
        // Who completes a sum divides it for an average: once for what is passed on.
        for (const std::uint32_t times : completed) ASSERT_GE(times, 1U);
      }
    }
  }
}

// `each` ranks on each of `count` machines, given out in turn.
Machines EvenMachines(std::uint32_t count, std::uint32_t each) {
  std::vector<std::uint32_t> machine_of_rank;
  for (std::uint32_t rank = 0; rank < count * each; ++rank) machine_of_rank.push_back(rank % count);
  return Machines(machine_of_rank);
}

TEST(ScheduleTest, AHierarchyAddsEveryRanksPartOnceOnEveryRankAndSendsItsPartBetweenMachines) {
  for (const std::uint32_t m : {1U, 2U, 3U, 5U}) {
    for (const std::uint32_t g : {2U, 3U, 4U, 8U}) {
      const std::uint32_t n = m * g;
      const Machines machines = EvenMachines(m, g);
      for (const std::uint64_t count : Counts(n)) {
        SCOPED_TRACE(testing::Message() << m << " machines of " << g << ", count " << count);
        Model model({.algorithm = Algorithm::kHierarchical, .count = count}, n, machines);
        ASSERT_NO_FATAL_FAILURE(model.Run());
        std::vector<std::uint32_t> completed(count);
        for (std::uint32_t rank = 0; rank < n; ++rank) {
          std::uint64_t far = 0;
          for (const auto& send : model.rank(rank).schedule.sends)
            if (!machines.Share(rank, send.peer)) far += send.range.size();
          ASSERT_LE(far, 2 * (m - 1) * (count / n + 1));
          for (std::uint64_t i = 0; i < count; ++i) {
            ASSERT_EQ(model.rank(rank).elements[i], Parts(n, 1)) << "rank " << rank << " at " << i;
            completed[i] += model.rank(rank).is_complete[i];
          }
        }
        for (const std::uint32_t times : completed) ASSERT_EQ(times, 1U);
      }
    }
  }
}

// Sizes past a block: its parts go in steps of their own, and every element still goes once.
TEST(ScheduleTest, BlocksOfAHierarchyCoverAnyArray) {
  const Machines machines = EvenMachines(1, 3);
  for (const std::uint64_t count : {std::uint64_t{1} << 20, (std::uint64_t{1} << 44) - 1}) {
    std::uint64_t reduced = 0;
    std::uint64_t copied = 0;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      const Schedule schedule =
          MakeSchedule({.algorithm = Algorithm::kHierarchical, .count = count}, rank, 3, machines);
      ASSERT_LT(schedule.arrivals.size(), 4U * 4096 + 1);
      for (const auto& arrival : schedule.arrivals)
        (arrival.reduces ? reduced : copied) += arrival.range.size();
    }
    EXPECT_EQ(reduced, 2 * count);
    EXPECT_EQ(copied, 2 * count);
  }
}

TEST(ScheduleTest, ReduceScatterLeavesEachRankItsPartAndAllGatherBringsAll) {
  for (std::uint32_t n = 2; n <= 17; ++n) {
    for (const std::uint64_t count : Counts(n)) {
      Model scattered({.collective = Collective::kReduceScatter, .count = count}, n);
      ASSERT_NO_FATAL_FAILURE(scattered.Run());
      Model gathered({.collective = Collective::kAllGather, .count = count}, n);
      ASSERT_NO_FATAL_FAILURE(gathered.Run());
      for (std::uint32_t rank = 0; rank < n; ++rank) {
        const Range own = PartOf(count, n, rank);
        for (std::uint64_t i = own.begin; i < own.end; ++i) {
          ASSERT_EQ(scattered.rank(rank).elements[i], Parts(n, 1));
          Parts only_theirs(n);
          only_theirs[rank] = 1;
          for (std::uint32_t other = 0; other < n; ++other)
            ASSERT_EQ(gathered.rank(other).elements[i], only_theirs);
        }
      }
    }
  }
}

TEST(ScheduleTest, ABroadcastBringsTheRootsArrayToAll) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling}) {
    for (std::uint32_t n = 2; n <= 17; ++n) {
      for (std::uint32_t root = 0; root < n; ++root) {
        Model model({Collective::kBroadcast, algorithm, root, 5}, n);
        ASSERT_NO_FATAL_FAILURE(model.Run()) << "n " << n << " root " << root;
        Parts only_the_roots(n);
        only_the_roots[root] = 1;
        for (std::uint32_t rank = 0; rank < n; ++rank)
          for (const Parts& element : model.rank(rank).elements)
            ASSERT_EQ(element, only_the_roots) << "n " << n << " root " << root;
      }
    }
  }
}

TEST(ScheduleTest, PeersAreAllThatAnyScheduleNames) {
  for (std::uint32_t n = 2; n <= 40; ++n) {
    std::map<std::pair<std::uint32_t, std::uint32_t>, int> directions;
    for (std::uint32_t rank = 0; rank < n; ++rank) {
      const Peers peers = PeersOf(rank, n);
      for (const std::uint32_t to : peers.to) directions[{rank, to}] |= 1;
      for (const std::uint32_t from : peers.from) directions[{from, rank}] |= 2;
      const auto expect_known = [&](const Plan& plan) {
        const Schedule schedule = MakeSchedule(plan, rank, n);
        for (const auto& send : schedule.sends)
          ASSERT_TRUE(std::ranges::binary_search(peers.to, send.peer));
        for (const auto& arrival : schedule.arrivals)
          ASSERT_TRUE(std::ranges::binary_search(peers.from, arrival.peer));
      };
      for (const Algorithm algorithm : kAll) expect_known({.algorithm = algorithm, .count = 3});
      for (std::uint32_t root = 0; root < n; ++root)
        for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kRecursiveDoubling})
          expect_known({Collective::kBroadcast, algorithm, root, 3});
    }
    for (const auto& [link, ends] : directions) ASSERT_EQ(ends, 3) << "n " << n;
  }
}

// The bytes that bound each algorithm: what the rank that sends most sends.
TEST(ScheduleTest, NoRankSendsMoreThanItsAlgorithmPromises) {
  constexpr std::uint64_t kCount = 1 << 16;
  const auto most_sent = [](Algorithm algorithm, std::uint32_t n) {
    std::uint64_t most = 0;
    for (std::uint32_t rank = 0; rank < n; ++rank) {
      std::uint64_t sent = 0;
      for (const auto& send :
           MakeSchedule({.algorithm = algorithm, .count = kCount}, rank, n).sends)
        sent += send.range.size();
      most = std::max(most, sent);
    }
    return static_cast<double>(most) / kCount;
  };
  for (const std::uint32_t n : {2U, 4U, 16U, 64U}) {
    EXPECT_NEAR(most_sent(Algorithm::kRing, n), 2.0 * (n - 1) / n, 0.001);
    EXPECT_NEAR(most_sent(Algorithm::kHalvingDoubling, n), 2.0 * (n - 1) / n, 0.001);
    EXPECT_NEAR(most_sent(Algorithm::kRecursiveDoubling, n), std::log2(n), 0.001);
  }
  for (const std::uint32_t n : {3U, 7U, 12U, 33U, 100U}) {
    EXPECT_NEAR(most_sent(Algorithm::kRing, n), 2.0 * (n - 1) / n, 0.001);
    // Inside of one tree, half of the array goes up and to two children; as a leaf of the other,
    // half of it goes up.
    EXPECT_LE(most_sent(Algorithm::kDoubleTree, n), 2.001);
  }
}

TEST(CostModelTest, OnOneMachineArraysAreDoubledOrSplitDirectly) {
  const GroupCost group{.link = {10e-6, 0.2e-9}, .is_one_machine = true};
  EXPECT_EQ(CheapestAllReduce(4, 64, 512 << 10, group), Algorithm::kRecursiveDoubling);
  EXPECT_EQ(CheapestAllReduce(4, 64 << 20, 512 << 10, group), Algorithm::kHierarchical);
}

TEST(CostModelTest, BetweenMachinesTheHierarchyIsTakenWhereItWasMeasuredToBeQuicker) {
  GroupCost group{.link = {30e-6, 8e-9}, .hierarchy = LinkCost{200e-6, 2e-9}};
  EXPECT_EQ(CheapestAllReduce(16, 64 << 20, 512 << 10, group), Algorithm::kHierarchical);
  EXPECT_NE(CheapestAllReduce(16, 1024, 512 << 10, group), Algorithm::kHierarchical);
  group.hierarchy->byte_s = 20e-9;
  EXPECT_NE(CheapestAllReduce(16, 64 << 20, 512 << 10, group), Algorithm::kHierarchical);
}

TEST(CostModelTest, WhatDoesNotHalveGoesAround) {
  GroupCost group{.link = {30e-6, 0.8e-9}};
  group.allows_halving = false;
  EXPECT_EQ(CheapestAllReduce(16, 256 << 20, 512 << 10, group), Algorithm::kRing);
}

TEST(CostModelTest, SmallArraysAreDoubledMiddlingOnesHalvedAndLargeOnesGoAround) {
  const GroupCost ten_gigabit{.link = {30e-6, 0.8e-9}};
  const auto cheapest = [&](std::uint32_t n, std::uint64_t size_bytes) {
    return CheapestAllReduce(n, size_bytes, 512 << 10, ten_gigabit);
  };
  EXPECT_EQ(cheapest(16, 4096), Algorithm::kRecursiveDoubling);
  EXPECT_EQ(cheapest(16, 1 << 20), Algorithm::kHalvingDoubling);
  EXPECT_EQ(cheapest(16, 256 << 20), Algorithm::kRing);
  EXPECT_EQ(cheapest(3, 256 << 20), Algorithm::kRing);
  EXPECT_EQ(cheapest(2, 256 << 20), Algorithm::kRing);
  EXPECT_EQ(cheapest(2, 64), Algorithm::kRecursiveDoubling);
  const GroupCost gigabit{.link = {100e-6, 8.5e-9}};
  EXPECT_EQ(CheapestAllReduce(4, 16 << 20, 512 << 10, gigabit), Algorithm::kRing);
  // The worked example of 16 ranks at 16 KiB: 925 us by the ring, 270 by halving.
  EXPECT_NEAR(AllReduceCost(Algorithm::kRing, 16, 16 << 10, 512 << 10, ten_gigabit), 925e-6, 5e-6);
  EXPECT_NEAR(AllReduceCost(Algorithm::kHalvingDoubling, 16, 16 << 10, 512 << 10, ten_gigabit),
              270e-6, 5e-6);
}

}  // namespace
}  // namespace ffrecord::client
