// Goal: where only some nodes should hold an extent, they are asked before all others; the others
// are asked in their order, and only when no owner is left.
// Method: the state machine alone, with a virtual clock and a map that is written out.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "replica_reads_fixture.h"

namespace ffrecord::net {
namespace {

class ReplicaOwnersTest : public ReplicaReadsTest {
 protected:
  ReplicaOwnersTest() : ReplicaReadsTest(5) {}

  // The nodes that are asked one after the other while each of them ends its leg so.
  std::vector<NodeIndex> AskedWhile(ErrorCode status, std::size_t count) {
    std::vector<NodeIndex> asked;
    while (asked.size() < count && !All<Reads::Send>().empty()) {
      const auto send = All<Reads::Send>().front();
      asked.push_back(send.node);
      if (status == ErrorCode::kUnavailable)
        EndLeg(send.leg, status);
      else
        Arrive(send.leg, 0, status);
    }
    return asked;
  }

  const WrittenMap two_owners_{{3, 1, 4, 0, 2}, 2};
};

TEST_F(ReplicaOwnersTest, ReadsGoToOwnersByTurns) {
  std::vector<NodeIndex> nodes;
  for (Reads::BatchId batch = 1; batch <= 4; ++batch) {
    BeginBy(two_owners_, batch);
    const auto send = Only<Reads::Send>();
    nodes.push_back(send.node);
    Arrive(send.leg, 0);
    EndLeg(send.leg);
  }
  EXPECT_EQ(nodes, (std::vector<NodeIndex>{3, 1, 3, 1}));
}

TEST_F(ReplicaOwnersTest, WhatIsNotWithItsOwnersIsSoughtAtTheOthersInTheirOrder) {
  BeginBy(two_owners_, 1);
  EXPECT_EQ(AskedWhile(ErrorCode::kNotFound, 9), (std::vector<NodeIndex>{3, 1, 4, 0, 2}));
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kNotFound);
}

TEST_F(ReplicaOwnersTest, AnExtentThatMovedWhileItWasSoughtIsFoundInASecondRound) {
  WrittenMap map({0, 1}, 1);
  map.moves_ = true;
  BeginBy(map, 1);
  EXPECT_EQ(AskedWhile(ErrorCode::kNotFound, 9), (std::vector<NodeIndex>{0, 1}));
  Pass(Reads::kMovedPause - 1ms);
  EXPECT_TRUE(All<Reads::Send>().empty());
  EXPECT_TRUE(All<Reads::EndPart>().empty());
  Pass(1ms);
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  Arrive(Only<Reads::Send>().leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kOk);
}

TEST_F(ReplicaOwnersTest, ANodeThatDidNotHaveItIsAskedAgainWhileAnotherOneIsAway) {
  WrittenMap map({0, 1}, 1);
  map.moves_ = true;
  BeginBy(map, 1);
  EndLeg(Only<Reads::Send>().leg, ErrorCode::kUnavailable);
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  Pass(20ms);  // The back-off of the first round.
  std::vector<NodeIndex> asked;
  for (const auto& send : All<Reads::Send>()) asked.push_back(send.node);
  EXPECT_EQ(asked, (std::vector<NodeIndex>{1}));
  Arrive(All<Reads::Send>().front().leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kOk);
}

// Each node has said once that it does not have it, but not in one round.
TEST_F(ReplicaOwnersTest, AnExtentIsAbsentOnlyIfNoNodeHasItInOneRound) {
  WrittenMap map({0, 1}, 2);
  map.moves_ = true;
  BeginBy(map, 1);
  const auto first = Only<Reads::Send>();
  EndLeg(first.leg, ErrorCode::kUnavailable);
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  Pass(20ms);
  const auto again = All<Reads::Send>();
  ASSERT_FALSE(again.empty());
  EXPECT_NE(again.front().node, first.node);
  EndLeg(again.front().leg, ErrorCode::kUnavailable);
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  Pass(40ms);  // A back-off, and not the pause of what no node has.
  EXPECT_FALSE(All<Reads::Send>().empty());
}

TEST_F(ReplicaOwnersTest, AnExtentThatNoNodeHasIsSoughtTwice) {
  WrittenMap map({0, 1}, 1);
  map.moves_ = true;
  BeginBy(map, 1);
  EXPECT_EQ(AskedWhile(ErrorCode::kNotFound, 9).size(), 2U);
  Pass(Reads::kMovedPause);
  EXPECT_EQ(AskedWhile(ErrorCode::kNotFound, 9).size(), 2U);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kNotFound);
}

TEST_F(ReplicaOwnersTest, TheOthersAreAskedBeforeAnOwnerThatIsInTrouble) {
  health_->Failed(3, now_);
  BeginBy(two_owners_, 1);
  EXPECT_EQ(AskedWhile(ErrorCode::kUnavailable, 5), (std::vector<NodeIndex>{1, 4, 0, 2, 3}));
}

TEST_F(ReplicaOwnersTest, ANearOrIdleNodeThatIsNoOwnerIsNotPreferred) {
  health_->SetDistance(2, 0);
  health_->Sent(3, 5000, now_);
  health_->Sent(1, 6000, now_);
  BeginBy(two_owners_, 1);
  EXPECT_EQ(Only<Reads::Send>().node, 3U);
}

TEST_F(ReplicaOwnersTest, WhereTheOrderIsKeptToTheFirstOwnerThatIsWellIsAsked) {
  health_->SetDistance(1, 0);
  health_->KeepToOrder(true);
  for (Reads::BatchId batch = 1; batch <= 3; ++batch) {
    BeginBy(two_owners_, batch);
    EXPECT_EQ(Only<Reads::Send>().node, 3U);
  }
  health_->Failed(3, now_);
  BeginBy(two_owners_, 4);
  EXPECT_EQ(Only<Reads::Send>().node, 1U);
  health_->Succeeded(3);
  BeginBy(two_owners_, 5);
  EXPECT_EQ(Only<Reads::Send>().node, 3U);
  health_->KeepToOrder(false);
  BeginBy(two_owners_, 6);
  EXPECT_EQ(Only<Reads::Send>().node, 1U);
}

TEST_F(ReplicaOwnersTest, OnlyOwnersAreHedgedTo) {
  health_->NoteParts(1000);
  const WrittenMap one_owner({3, 1}, 1);
  BeginBy(one_owner, 1);
  Pass(ReplicaHealth::kHedgeAfterUnlearned + 1ms);
  EXPECT_TRUE(All<Reads::Send>().empty());
  BeginBy(two_owners_, 2);
  Pass(ReplicaHealth::kHedgeAfterUnlearned + 1ms);
  EXPECT_EQ(All<Reads::Send>().size(), 1U);
}

TEST_F(ReplicaOwnersTest, OnlyOwnersAreTriedWhetherTheyAreWellAgain) {
  for (const NodeIndex node : {NodeIndex{1}, NodeIndex{4}}) health_->Failed(node, now_);
  now_ += ReplicaHealth::kProbeEvery;
  BeginBy(two_owners_, 1);
  std::vector<NodeIndex> asked;
  for (const auto& send : All<Reads::Send>()) asked.push_back(send.node);
  EXPECT_EQ(asked, (std::vector<NodeIndex>{3, 1}));
}

// --- Nodes that fetch what they lack ---

class FetchingNodesTest : public ReplicaOwnersTest {
 protected:
  FetchingNodesTest() { map_in_order_.moves_ = map_in_order_.asks_in_order_ = true; }

  // The nodes that were asked in what happened last.
  std::vector<NodeIndex> Asked() const {
    std::vector<NodeIndex> nodes;
    for (const auto& send : All<Reads::Send>()) nodes.push_back(send.node);
    return nodes;
  }
  // Lets the time pass until a node is asked, at most so long.
  Reads::Send NextSend(Reads::Duration time) {
    const auto end = now_ + time;
    do {
      now_ = std::max(now_, reads_->NextTime());
      Step(Reads::Tick{});
    } while (now_ < end && All<Reads::Send>().empty());
    EXPECT_LE(now_, end);
    return Only<Reads::Send>();
  }
  // The node is busy with all of the leg.
  void BeBusy(const Reads::Send& send) {
    for (std::uint32_t i = 0; i < send.parts.size(); ++i)
      Arrive(send.leg, i, ErrorCode::kUnavailable);
    EndLeg(send.leg);
  }

  WrittenMap map_in_order_{{3, 1, 4}, 1};
};

TEST_F(FetchingNodesTest, ANodeThatIsBusyIsWaitedForAndNoOtherIsAsked) {
  BeginBy(map_in_order_, 1);
  auto send = Only<Reads::Send>();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(send.node, 3);
    BeBusy(send);
    EXPECT_EQ(Asked(), std::vector<NodeIndex>{});
    send = NextSend(100ms);  // Not the second that the back-off has grown to.
  }
  Arrive(send.leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kOk);
}

TEST_F(FetchingNodesTest, OneBusyExtentSendsNoneOfTheOthersElsewhere) {
  Step(Reads::NewMap{&map_in_order_});
  Step(Reads::Begin{1, {{0, kSize}, {1, kSize}}, now_ + 30s});
  const auto send = Only<Reads::Send>();
  ASSERT_EQ(send.parts.size(), 2U);
  Arrive(send.leg, 0, ErrorCode::kUnavailable);
  EXPECT_EQ(Asked(), std::vector<NodeIndex>{});
  // Nor does the node get a rest: it has more than that one.
  Step(Reads::Begin{2, {{2, kSize}}, now_ + 30s});
  EXPECT_EQ(Asked(), std::vector<NodeIndex>{3});
  Arrive(send.leg, 1);
  EndLeg(send.leg);
  EXPECT_EQ(NextSend(100ms).node, 3);
}

TEST_F(FetchingNodesTest, WhereTheFirstIsSilentTheNextIsAskedAndThenWaitedFor) {
  BeginBy(map_in_order_, 1);
  ASSERT_EQ(Only<Reads::Send>().node, 3);
  auto send = NextSend(ReplicaHealth::kSilenceMax);
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(send.node, 1);
    BeBusy(send);
    EXPECT_EQ(Asked(), std::vector<NodeIndex>{});
    send = NextSend(100ms);
  }
  Arrive(send.leg, 0);
  EXPECT_EQ(All<Reads::Cancel>().size(), 1U);
}

TEST_F(FetchingNodesTest, ANodeThatCannotBeReachedOrCannotFetchItIsPassedOver) {
  for (const ErrorCode status : {ErrorCode::kDenied, ErrorCode::kNotFound, ErrorCode::kCorruption,
                                 ErrorCode::kIo, ErrorCode::kUnavailable}) {
    Start(5);
    BeginBy(map_in_order_, 1);
    EXPECT_EQ(AskedWhile(status, 3), (std::vector<NodeIndex>{3, 1, 4})) << static_cast<int>(status);
  }
}

TEST_F(FetchingNodesTest, ANodeThatAnswersAgainIsTheFirstAgainThoughItIsBusy) {
  BeginBy(map_in_order_, 1);
  EndLeg(Only<Reads::Send>().leg, ErrorCode::kUnavailable);
  const auto second = Only<Reads::Send>();
  ASSERT_EQ(second.node, 1);
  Arrive(second.leg, 0);
  EndLeg(second.leg);
  Pass(ReplicaHealth::kProbeEvery);
  BeginBy(map_in_order_, 2);
  const auto sends = All<Reads::Send>();
  ASSERT_EQ(sends.size(), 2U);  // The second again, and the first to see whether it is well.
  const auto& first = sends[0].node == 3 ? sends[0] : sends[1];
  const auto& other = sends[0].node == 3 ? sends[1] : sends[0];
  ASSERT_EQ(first.node, 3);
  BeBusy(first);
  Arrive(other.leg, 0);
  EndLeg(other.leg);
  Pass(20ms);

  BeginBy(map_in_order_, 3);
  EXPECT_EQ(Asked(), (std::vector<NodeIndex>{3}));
}

}  // namespace
}  // namespace ffrecord::net
