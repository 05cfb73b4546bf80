// Goal: what is lost is told exactly, and what can still be had is not taken for lost.
// Method: one node whose peers and store are in the test's hands.

#include <gtest/gtest.h>

#include "one_node.h"
#include "server/cluster/placement.h"

namespace ffrecord::server::cluster {
namespace {

using namespace std::chrono_literals;
using test::OneNode;

class ClusterLossesTest : public testing::Test {
 protected:
  void AnswerThatNobodyHasIt() {
    for (int round = 0; round < 3; ++round) {
      one_.Run(1s);
      one_.AnswerHoldings(Holding::kAbsent);
    }
  }
  const std::set<ExtentId>& Unheld() const { return one_.node->replication().unheld(); }

  OneNode one_;
};

// Its new owners look for it.
TEST_F(ClusterLossesTest, WhatIsOthersToHoldByNowIsNotLostHere) {
  const auto owned = one_.ExtentOf(true, 21);
  one_.Publish("set", {owned}, 2, 31);
  AnswerThatNobodyHasIt();
  ASSERT_TRUE(Unheld().contains(owned.id));

  auto nodes = one_.slots.map.nodes;
  for (PlacedNode& node : nodes)
    if (node.id == "n1") node.weight = 0;
  SlotsRecord drained;
  drained.map = Place(one_.slots.map, nodes, {.row_size = 3}).value();
  one_.Put(std::string(kSlotsKey), drained.Encode());
  AnswerThatNobodyHasIt();

  EXPECT_TRUE(Unheld().empty());
}

// Its holder is back, and this node has no room for it.
TEST_F(ClusterLossesTest, WhatAnotherNodeHasIsNotLostThoughItDoesNotCome) {
  const auto owned = one_.ExtentOf(true, 21);
  one_.Publish("set", {owned}, 2, 31);
  AnswerThatNobodyHasIt();
  ASSERT_TRUE(Unheld().contains(owned.id));

  one_.extents.has_room = false;
  one_.Run(2s);
  one_.AnswerHoldings(Holding::kHeld);

  EXPECT_TRUE(Unheld().empty());
}

// Every node knows it.
TEST_F(ClusterLossesTest, TheListOfFilesOfAKnownNameIsWrittenOutAnew) {
  const auto owned = one_.ExtentOf(true, 21);
  for (std::uint64_t attempt = 31;; ++attempt) {
    one_.Publish("set", {owned}, 2, attempt);
    if (!one_.extents.extents.empty()) break;
  }
  const ManifestExtent list = one_.extents.extents.begin()->second;
  one_.extents.extents.clear();
  one_.Run(2s);
  one_.AnswerHoldings(Holding::kAbsent);

  const auto pulls = one_.Asked<PullExtent>();
  ASSERT_EQ(pulls.size(), 1U);
  EXPECT_EQ(pulls.front().extent, list);
  EXPECT_TRUE(pulls.front().nodes.empty());
  EXPECT_FALSE(pulls.front().part);
  EXPECT_EQ(Unheld(), std::set{owned.id});
  one_.Answer<PullExtent>([&](const PullExtent&) {
    one_.extents.extents[list.id] = list;
    return Result<void>();
  });
  AnswerThatNobodyHasIt();
  EXPECT_EQ(Unheld(), std::set{owned.id});
  EXPECT_TRUE(one_.Asked<PullExtent>().empty());
}

TEST_F(ClusterLossesTest, AListThatAnotherNodeHasIsPulledFromThere) {
  for (std::uint64_t attempt = 31; one_.extents.extents.empty(); ++attempt)
    one_.Publish("set", {}, 2, attempt);
  one_.extents.extents.clear();
  one_.Run(2s);
  one_.AnswerHoldings(Holding::kHeld);

  const auto pulls = one_.Asked<PullExtent>();
  ASSERT_EQ(pulls.size(), 1U);
  EXPECT_EQ(pulls.front().nodes.size(), 3U);
}

// The list that a node knows may differ from the published one.
TEST_F(ClusterLossesTest, AListThatDoesNotComeOfWhatIsKnownIsLost) {
  for (std::uint64_t attempt = 31; one_.extents.extents.empty(); ++attempt)
    one_.Publish("set", {}, 2, attempt);
  const ExtentId list = one_.extents.extents.begin()->first;
  one_.extents.extents.clear();
  one_.Run(2s);
  one_.AnswerHoldings(Holding::kAbsent);
  ASSERT_FALSE(Unheld().contains(list));

  one_.Answer<PullExtent>([&](const PullExtent&) {
    return Result<void>(Error{ErrorCode::kCorruption, "other bytes"});
  });

  EXPECT_TRUE(Unheld().contains(list));
}

}  // namespace
}  // namespace ffrecord::server::cluster
