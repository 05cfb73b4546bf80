// Goal: a batch under way goes by the newest map: what nobody brings is asked at once of those whom
// the new map names, what somebody brings is not asked for twice, and no node writes into memory
// that was given back, however often the map changes.
// Method: the state machine alone, with a virtual clock and maps that are written out, each of
// which is gone once there is a newer one.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "replica_maps_fixture.h"

namespace ffrecord::net {
namespace {

// --- Whom a part is asked of ---------------------------------------------------------------------

TEST_F(ReplicaMapsTest, WhatNobodyBringsIsAskedOfTheNewOwnerAtOnce) {
  EndLeg(BeginOn({{0, 1}}).leg, ErrorCode::kUnavailable);
  EXPECT_FALSE(IsSought());
  EndLeg(Only<Reads::Send>().leg, ErrorCode::kUnavailable);
  EXPECT_TRUE(IsSought());
  TakeMap({{2}});
  const auto send = Only<Reads::Send>();
  EXPECT_EQ(send.node, 2);
  EXPECT_TRUE(send.is_direct);
  // The back-off of the map before asks for nothing twice.
  Pass(90ms);
  EXPECT_EQ(Asked(), Nodes{});
  Arrive(send.leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kOk);
  EndLeg(send.leg);
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
}

TEST_F(ReplicaMapsTest, ANewMapAloneAsksForNothingTwice) {
  BeginOn({{0, 1}, {0, 1}});
  const auto sends = All<Reads::Send>();
  TakeMap({{2, 3}, {0, 2}});
  EXPECT_TRUE(actions_.empty());
  for (const auto& send : sends) {
    Arrive(send.leg, 0);
    EndLeg(send.leg);
  }
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
}

TEST_F(ReplicaMapsTest, WhatAFormerNodeDoesNotBringIsAskedByTheNewMap) {
  for (const ErrorCode status :
       {ErrorCode::kNotFound, ErrorCode::kUnavailable, ErrorCode::kCorruption}) {
    Start(6);
    const auto send = BeginOn({{0}});
    TakeMap({{3}});
    EXPECT_TRUE(actions_.empty());
    EndLeg(send.leg, status);
    EXPECT_EQ(Asked(), Nodes{3});
  }
}

TEST_F(ReplicaMapsTest, OfManyPartsThoseAreAskedAgainThatNobodyBrings) {
  // 0 answers, 1 and 2 are gone.
  BeginOn({{0}, {1}, {2}, {1}});
  const auto sends = All<Reads::Send>();
  ASSERT_EQ(sends.size(), 3U);
  EndLeg(sends[1].leg, ErrorCode::kUnavailable);
  EndLeg(sends[2].leg, ErrorCode::kUnavailable);
  TakeMap({{4}, {5}, {2}, {4}});
  const auto again = All<Reads::Send>();
  ASSERT_EQ(again.size(), 2U);
  EXPECT_EQ(again[0].node, 5);
  EXPECT_EQ(again[0].parts, std::vector<std::uint32_t>{1});
  EXPECT_EQ(again[1].node, 4);
  EXPECT_EQ(again[1].parts, std::vector<std::uint32_t>{3});
}

TEST_F(ReplicaMapsTest, WhatNodesHaveSaidIsRememberedByTheNewMap) {
  Arrive(BeginOn({{0, 1}}).leg, 0, ErrorCode::kCorruption);
  EndLeg(Only<Reads::Send>().leg, ErrorCode::kUnavailable);
  TakeMap({{2, 1, 0}});  // Where 0 has another place.
  EXPECT_EQ(Asked(), Nodes{2});
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  EXPECT_EQ(Asked(), Nodes{});  // 1 may come back; 0 is damaged.
  Pass(20ms);
  for (const NodeIndex node : Asked()) EXPECT_NE(node, 0);
}

TEST_F(ReplicaMapsTest, NodesThatDoNotHaveAPartAreNotAskedAgainInItsRound) {
  Arrive(BeginOn({{0, 1}}).leg, 0, ErrorCode::kNotFound);
  EndLeg(Only<Reads::Send>().leg, ErrorCode::kUnavailable);
  TakeMap({{2, 0}});
  ASSERT_EQ(Asked(), Nodes{2});
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  Pass(Reads::kMovedPause - 1ms);  // Longer than the back-off.
  EXPECT_EQ(Asked(), Nodes{});
  Pass(1ms);
  EXPECT_FALSE(Asked().empty());
}

TEST_F(ReplicaMapsTest, OwnersThatBecomeOthersAreNotHedgedTo) {
  health_->NoteParts(1000);
  const WrittenMap two_owners({0, 1}, 2);
  BeginBy(two_owners, 1);
  const WrittenMap one_owner({0, 1}, 1);
  Step(Reads::NewMap{&one_owner});
  Pass(ReplicaHealth::kHedgeAfterUnlearned + 1ms);
  EXPECT_EQ(Asked(), Nodes{});
}

TEST_F(ReplicaMapsTest, NodesThatAreNewAreAsked) {
  EndLeg(BeginOn({{0}}).leg, ErrorCode::kUnavailable);
  health_->Grow(9);
  reads_->Grow(9);
  TakeMap({{8}});
  EXPECT_EQ(Asked(), Nodes{8});
}

// --- Silence, and memory -------------------------------------------------------------------------

TEST_F(ReplicaMapsTest, ASilentOwnerIsReplacedAndWritesNoMoreBeforeItsPartEnds) {
  const auto first = BeginOn({{0}});
  Pass(100ms);
  EXPECT_TRUE(IsSought());
  EXPECT_EQ(Asked(), Nodes{});
  TakeMap({{3}});
  const auto second = Only<Reads::Send>();
  EXPECT_EQ(second.node, 3);
  EXPECT_FALSE(second.is_direct);
  Arrive(second.leg, 0);
  EXPECT_EQ(Only<Reads::Cancel>().leg, first.leg);
  EXPECT_EQ(Only<Reads::Drop>().node, 0);
  EndLeg(second.leg);
  EXPECT_TRUE(actions_.empty());
  EndLeg(first.leg, ErrorCode::kUnavailable);
  EXPECT_EQ(Only<Reads::EndPart>().leg, second.leg);
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
}

TEST_F(ReplicaMapsTest, AFormerNodeThatFallsSilentIsReplacedAndMayStillBeTheFirst) {
  const auto first = BeginOn({{0}});
  TakeMap({{3}});
  Pass(100ms);
  const auto second = Only<Reads::Send>();
  EXPECT_EQ(second.node, 3);
  Step(Reads::Heard{0, now_});  // It brings it again.
  EndLeg(second.leg, ErrorCode::kUnavailable);
  EXPECT_EQ(Asked(), Nodes{});
  EXPECT_FALSE(IsSought());
  Arrive(first.leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().leg, 0U);
  EndLeg(first.leg);
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
}

TEST_F(ReplicaMapsTest, WhereTheNewOwnerIsSilentTooTheNextMapIsFollowed) {
  const auto first = BeginOn({{0}});
  Pass(100ms);
  TakeMap({{1}});
  const auto second = Only<Reads::Send>();
  Pass(100ms);
  EXPECT_TRUE(IsSought());
  TakeMap({{2}});
  const auto third = Only<Reads::Send>();
  EXPECT_EQ(third.node, 2);
  EXPECT_FALSE(third.is_direct);
  Arrive(third.leg, 0);
  EXPECT_EQ(All<Reads::Cancel>().size(), 2U);
  EndLeg(second.leg, ErrorCode::kUnavailable);
  EXPECT_TRUE(All<Reads::EndPart>().empty());
  EndLeg(first.leg, ErrorCode::kUnavailable);
  EXPECT_EQ(Only<Reads::EndPart>().leg, third.leg);
}

TEST_F(ReplicaMapsTest, AMapThatGoesBackFindsWhatIsUnderWay) {
  const auto first = BeginOn({{0, 1}});
  Pass(100ms);
  const auto second = Only<Reads::Send>();
  TakeMap({{2}});
  EXPECT_EQ(Asked(), Nodes{});  // The second one brings it.
  TakeMap({{1, 0}});
  EXPECT_EQ(Asked(), Nodes{});
  EndLeg(second.leg, ErrorCode::kUnavailable);
  EXPECT_EQ(Asked(), Nodes{});  // The first is still under way.
  Step(Reads::Heard{first.node, now_});
  Arrive(first.leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().leg, 0U);
}

TEST_F(ReplicaMapsTest, AHedgeUnderWayGoesOnAsTheMapChanges) {
  health_->NoteParts(1000);
  const auto first = BeginOn({{0, 1}}, kSize);
  Pass(ReplicaHealth::kHedgeAfterUnlearned);
  const auto hedge = Only<Reads::Send>();
  TakeMap({{4, 5}});
  EXPECT_TRUE(actions_.empty());
  Step(Reads::Heard{first.node, now_});
  Pass(ReplicaHealth::kHedgeAfterUnlearned);  // The hedge is late too.
  EXPECT_EQ(Asked(), Nodes{});                // Two bring it already.
  Arrive(hedge.leg, 0);
  EXPECT_EQ(Only<Reads::Cancel>().leg, first.leg);
  EndLeg(first.leg, ErrorCode::kUnavailable);
  EXPECT_EQ(Only<Reads::EndPart>().leg, hedge.leg);
}

TEST_F(ReplicaMapsTest, WhatAFormerNodeBringsLateIsHedgedByTheNewMap) {
  health_->NoteParts(1000);
  const auto first = BeginOn({{0}}, kSize);
  TakeMap({{4, 5}});
  Pass(ReplicaHealth::kHedgeAfterUnlearned);
  const auto hedge = Only<Reads::Send>();
  EXPECT_FALSE(hedge.is_direct);
  Arrive(first.leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().leg, 0U);
}

// --- Ends ----------------------------------------------------------------------------------------

TEST_F(ReplicaMapsTest, WhatNoNodeOfTheNewMapHasEndsAlthoughFormerNodesMightComeBack) {
  EndLeg(BeginOn({{0, 1}}).leg, ErrorCode::kUnavailable);
  EndLeg(Only<Reads::Send>().leg, ErrorCode::kUnavailable);
  TakeMap({{2, 3}});
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  EXPECT_TRUE(All<Reads::EndPart>().empty());  // It may be on its way.
  Pass(Reads::kMovedPause);
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kNotFound);
}

TEST_F(ReplicaMapsTest, WhatNewOwnersDoNotHaveYetIsSoughtTwiceThereToo) {
  Arrive(BeginOn({{0}}).leg, 0, ErrorCode::kNotFound);
  TakeMap({{1}});
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  EXPECT_TRUE(All<Reads::EndPart>().empty());
  Pass(Reads::kMovedPause);
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kNotFound);
}

TEST_F(ReplicaMapsTest, AMapThatNamesNobodySaysNothingOfAnExtent) {
  EndLeg(BeginOn({{0}}).leg, ErrorCode::kUnavailable);
  TakeMap({{}});
  EXPECT_TRUE(All<Reads::EndPart>().empty());
  Pass(1s);
  EXPECT_TRUE(All<Reads::EndPart>().empty());
  EXPECT_TRUE(IsSought());
  TakeMap({{1}});
  EXPECT_EQ(Asked(), Nodes{1});
  Arrive(Only<Reads::Send>().leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kOk);
}

TEST_F(ReplicaMapsTest, WhatNobodyIsKnownToHaveIsUnavailableAtTheDeadline) {
  TakeMap({{}});
  Step(Reads::Begin{1, {{0, kSize}}, now_ + 2s});
  EXPECT_TRUE(IsSought());
  Pass(2s);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kUnavailable);
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
}

TEST_F(ReplicaMapsTest, ABatchThatIsOverAsksNobodyNew) {
  const auto first = BeginOn({{0}});
  Step(Reads::GiveUp{1});
  TakeMap({{1}});
  EXPECT_TRUE(actions_.empty());
  EndLeg(first.leg, ErrorCode::kUnavailable);
  EXPECT_EQ(Asked(), Nodes{});
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
}

// --- When a map is sought ------------------------------------------------------------------------

TEST_F(ReplicaMapsTest, AMapIsSoughtAgainWhileNobodyAnswersAndNoLonger) {
  EndLeg(BeginOn({{0}}).leg, ErrorCode::kUnavailable);
  ASSERT_TRUE(IsSought());
  std::size_t count = 0;
  for (int i = 0; i < 20; ++i) {  // For a second.
    Pass(Reads::kSeekEvery);
    count += All<Reads::SeekMap>().size();
    for (const auto& send : All<Reads::Send>()) EndLeg(send.leg, ErrorCode::kUnavailable);
  }
  EXPECT_GE(count, 10U);
  EXPECT_LE(count, 20U);
  TakeMap({{1}});
  ASSERT_EQ(Asked(), Nodes{1});
  Step(Reads::Heard{1, now_});
  Pass(90ms);
  EXPECT_FALSE(IsSought());
}

TEST_F(ReplicaMapsTest, NoMapIsSoughtWhileANodeBringsAPartOrIsBusyWithIt) {
  TakeMap({{0, 1}}, true);
  Step(Reads::Begin{1, {{0, kLarge}}, now_ + 30s});
  EXPECT_FALSE(IsSought());
  for (int i = 0; i < 10; ++i) {
    const auto send = Only<Reads::Send>();
    EXPECT_EQ(send.node, 0);
    Arrive(send.leg, 0, ErrorCode::kUnavailable);
    EXPECT_FALSE(IsSought());
    EndLeg(send.leg);
    do {
      now_ = std::max(now_, reads_->NextTime());
      Step(Reads::Tick{});
      EXPECT_FALSE(IsSought());
    } while (All<Reads::Send>().empty());
  }
}

TEST_F(ReplicaMapsTest, NoMapIsSoughtWhereNothingMoves) {
  Begin(1, 1);
  std::vector<Reads::LegId> legs{Only<Reads::Send>().leg};
  for (int i = 0; i < 8 && !legs.empty(); ++i) {
    EndLeg(legs.front(), ErrorCode::kUnavailable);
    legs.clear();
    for (const auto& send : All<Reads::Send>()) legs.push_back(send.leg);
    EXPECT_FALSE(IsSought());
  }
  Pass(1s);
  EXPECT_FALSE(IsSought());
}

// Nodes that fetch what they lack: the new order counts, but the one that fetches it is waited for.
TEST_F(ReplicaMapsTest, WhereNodesFetchTheFirstOfTheNewOrderIsAskedNext) {
  TakeMap({{0, 1}}, true);
  Step(Reads::Begin{1, {{0, kLarge}}, now_ + 30s});
  const auto send = Only<Reads::Send>();
  TakeMap({{2, 0}}, true);
  EXPECT_EQ(Asked(), Nodes{});
  Arrive(send.leg, 0, ErrorCode::kUnavailable);  // Not yet.
  EXPECT_EQ(Asked(), Nodes{2});
}

// --- When the map changes all the time -----------------------------------------------------------

// All owners are busy. Each map names another second one, which is busy too.
TEST_F(ReplicaMapsTest, ABusyCandidateIsAskedAgainHoweverOftenTheMapChanges) {
  for (const bool in_order : {false, true}) {
    Start(6);
    TakeMap({{0, 1}}, in_order);
    Step(Reads::Begin{1, {{0, kLarge}}, now_ + 30s});
    std::size_t asked_count = 0;
    const auto refuse_all = [&](std::vector<Reads::Send> sends) {
      while (!sends.empty()) {
        const auto send = sends.back();
        sends.pop_back();
        asked_count += send.node == 0 ? 1 : 0;
        Arrive(send.leg, 0, ErrorCode::kUnavailable);
        for (const auto& next : All<Reads::Send>()) sends.push_back(next);
        EndLeg(send.leg);
        for (const auto& next : All<Reads::Send>()) sends.push_back(next);
      }
    };
    refuse_all(All<Reads::Send>());
    for (NodeIndex i = 0; i < 100; ++i) {
      TakeMap({{0, static_cast<NodeIndex>(1 + i % 4)}}, in_order);
      refuse_all(All<Reads::Send>());
      const auto end = now_ + 99ms;
      while (reads_->NextTime() <= end) {
        now_ = std::max(now_, reads_->NextTime());
        Step(Reads::Tick{});
        refuse_all(All<Reads::Send>());
      }
      now_ = end;
    }
    EXPECT_GE(asked_count, 10U) << in_order;  // In ten seconds.
    EXPECT_LE(asked_count, 200U) << in_order;
  }
}

// What was on its way has come to a node that is in every map.
TEST_F(ReplicaMapsTest, AnAbsentExtentIsSoughtAgainHoweverOftenTheMapChanges) {
  Arrive(BeginOn({{0, 1}}).leg, 0, ErrorCode::kNotFound);
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  bool is_asked_again = false;
  for (NodeIndex i = 0; i < 20 && !is_asked_again; ++i) {
    TakeMap({{0, static_cast<NodeIndex>(2 + i % 3)}});
    for (const auto& send : All<Reads::Send>())
      if (send.node != 0) Arrive(send.leg, 0, ErrorCode::kNotFound);
    Pass(100ms);
    for (const auto& send : All<Reads::Send>()) is_asked_again |= send.node == 0;
  }
  EXPECT_TRUE(is_asked_again);
}

// A part that is retried early takes no time from one that waits for longer.
TEST_F(ReplicaMapsTest, AnAbsentExtentIsNotGivenUpAsAnotherPartIsRetried) {
  BeginOn({{0}, {1}});
  const auto sends = All<Reads::Send>();
  ASSERT_EQ(sends.size(), 2U);
  EndLeg(sends[1].leg, ErrorCode::kUnavailable);
  Arrive(sends[0].leg, 0, ErrorCode::kNotFound);
  EndLeg(sends[0].leg);
  for (Reads::Duration waited{}; waited < Reads::kMovedPause - 10ms; waited += 10ms) {
    Pass(10ms);
    for (const auto& send : All<Reads::Send>()) {
      EXPECT_EQ(send.node, 1) << waited.count();
      EndLeg(send.leg, ErrorCode::kUnavailable);
    }
  }
  Pass(10ms);
  EXPECT_EQ(std::ranges::count(Asked(), NodeIndex{0}), 1);
}

// And one that waits for long does not hold up the others.
TEST_F(ReplicaMapsTest, APartIsRetriedSoonAlthoughAnotherOneIsAbsent) {
  BeginOn({{0}, {1}});
  const auto sends = All<Reads::Send>();
  ASSERT_EQ(sends.size(), 2U);
  Arrive(sends[0].leg, 0, ErrorCode::kNotFound);
  EndLeg(sends[0].leg);
  EndLeg(sends[1].leg, ErrorCode::kUnavailable);
  Pass(50ms);
  EXPECT_EQ(Asked(), Nodes{1});
}

}  // namespace
}  // namespace ffrecord::net
