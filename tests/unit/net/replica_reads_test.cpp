// Goal: each part of a batch is asked for where it can be had, and again where it failed; each
// batch ends once, by its deadline, and no node can write into memory that was given back. Nodes
// that are silent or slow: replica_silence_test.cpp. Method: the state machine alone, with a
// virtual clock; events are given by hand, actions looked at.

#include "libffrecord/net/replicas/replica_reads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "replica_reads_fixture.h"

namespace ffrecord::net {
namespace {

// --- The plain way -------------------------------------------------------------------------------

TEST_F(ReplicaReadsTest, ABatchGoesToOneNodeAndEndsOnceItsLegHasEnded) {
  Begin(1, 2);
  const auto send = Only<Reads::Send>();
  EXPECT_TRUE(send.is_direct);
  EXPECT_EQ(send.parts, (std::vector<std::uint32_t>{0, 1}));

  Arrive(send.leg, 1);
  const auto end = Only<Reads::EndPart>();
  EXPECT_EQ(end.part, 1U);
  EXPECT_EQ(end.status, ErrorCode::kOk);
  EXPECT_EQ(end.leg, 0U);
  Arrive(send.leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().part, 0U);
  EXPECT_TRUE(All<Reads::EndBatch>().empty());  // The node has not said that it writes no more.
  EndLeg(send.leg);
  EXPECT_EQ(Only<Reads::EndBatch>().batch, 1U);
  EXPECT_EQ(Only<Reads::Release>().leg, send.leg);
  EXPECT_EQ(reads_->NextTime(), Reads::Time::max());
}

TEST_F(ReplicaReadsTest, ABatchOfNothingEnds) {
  Begin(1, 0);
  EXPECT_EQ(Only<Reads::EndBatch>().batch, 1U);
}

TEST_F(ReplicaReadsTest, PartsOfAnExtentStayTogetherAndExtentsAreSpreadByBytes) {
  std::vector<Reads::PartSize> parts;
  for (std::uint32_t i = 0; i < 30; ++i) parts.push_back({i / 10, kSize});
  Step(Reads::Begin{1, parts, now_ + 1s});
  std::set<NodeIndex> nodes;
  for (const auto& send : All<Reads::Send>()) {
    EXPECT_EQ(send.parts.size(), 10U);
    for (const std::uint32_t part : send.parts) EXPECT_EQ(part / 10, send.parts.front() / 10);
    nodes.insert(send.node);
  }
  EXPECT_EQ(nodes.size(), 3U);
}

TEST_F(ReplicaReadsTest, TheNearNodeIsPreferredEvenWhenItIsBusier) {
  health_->SetDistance(0, 1);
  health_->SetDistance(1, 0);
  health_->SetDistance(2, 1);
  for (Reads::BatchId batch = 1; batch < 5; ++batch) {
    Begin(batch, 1);
    EXPECT_EQ(Only<Reads::Send>().node, 1U);
  }
}

TEST_F(ReplicaReadsTest, BytesOnTheirWayAreCountedUntilTheyHaveEnded) {
  Begin(1, 1, 30s, 5000);
  const auto first = Only<Reads::Send>();
  Begin(2, 1);
  const auto second = Only<Reads::Send>();
  Begin(3, 1);
  const auto third = Only<Reads::Send>();
  EXPECT_EQ((std::set<NodeIndex>{first.node, second.node, third.node}).size(), 3U);
  Arrive(first.leg, 0);
  Begin(4, 1);
  EXPECT_EQ(Only<Reads::Send>().node, first.node);
}

TEST_F(ReplicaReadsTest, ReadsOneAfterTheOtherGoToAllNodesByTurns) {
  std::vector<NodeIndex> nodes;
  for (Reads::BatchId batch = 1; batch <= 6; ++batch) nodes.push_back(ReadOne(batch));
  EXPECT_EQ(nodes, (std::vector<NodeIndex>{0, 1, 2, 0, 1, 2}));
}

TEST_F(ReplicaReadsTest, ANodeOfWhichItIsKnownThatItIsFarIsNoBetterThanOthers) {
  std::set<NodeIndex> nodes;
  for (Reads::BatchId batch = 1; batch <= 3; ++batch) {
    const NodeIndex node = ReadOne(batch);
    health_->SetDistance(node, ReplicaHealth::kFar);  // As it was connected to.
    nodes.insert(node);
  }
  EXPECT_EQ(nodes.size(), 3U);
}

TEST_F(ReplicaReadsTest, ADamagedCopyIsAskedForWhereThereIsNoOther) {
  Start(2);
  health_->NoteDamage(0, 0, now_);
  for (Reads::BatchId batch = 1; batch <= 3; ++batch) EXPECT_EQ(ReadOne(batch), 1U);
  Begin(4, 1);
  auto send = Only<Reads::Send>();
  EXPECT_EQ(send.node, 1U);
  EndLeg(send.leg, ErrorCode::kUnavailable);  // In trouble from now on, and asked.
  send = Only<Reads::Send>();
  EXPECT_EQ(send.node, 0U);
  EndLeg(send.leg, ErrorCode::kUnavailable);
  now_ += ReplicaHealth::kDamageKept;
  EXPECT_FALSE(health_->IsDamaged(0, 0, now_));  // Perhaps it was mended.
}

// --- Failures ------------------------------------------------------------------------------------

class EachRefusal : public ReplicaReadsTest, public testing::WithParamInterface<ErrorCode> {};

TEST_P(EachRefusal, MovesTheEntryAloneToTheNextNodeAtOnce) {
  Begin(1, 2);
  const auto first = Only<Reads::Send>();
  Arrive(first.leg, 0, GetParam());
  const auto second = Only<Reads::Send>();
  EXPECT_NE(second.node, first.node);
  EXPECT_EQ(second.parts, std::vector<std::uint32_t>{0});
  EXPECT_TRUE(second.is_direct);  // The first one has said that it writes no more.
  Arrive(first.leg, 1);
  EndLeg(first.leg);
  EXPECT_TRUE(All<Reads::EndBatch>().empty());
  Arrive(second.leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kOk);
  EndLeg(second.leg);
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(Statuses, EachRefusal,
                         testing::Values(ErrorCode::kCorruption, ErrorCode::kNotFound,
                                         ErrorCode::kIo, ErrorCode::kUnavailable,
                                         ErrorCode::kDenied, ErrorCode::kDeadlineExceeded));

class EachPassingTrouble : public ReplicaReadsTest,
                           public testing::WithParamInterface<ErrorCode> {};

TEST_P(EachPassingTrouble, IsNotTheNodesLastWord) {
  Start(1);
  Begin(1, 1);
  const auto first = Only<Reads::Send>();
  Arrive(first.leg, 0, GetParam());
  EndLeg(first.leg);
  EXPECT_TRUE(All<Reads::EndPart>().empty());
  Pass(5s);
  EXPECT_EQ(Only<Reads::Send>().node, 0U);
}

INSTANTIATE_TEST_SUITE_P(Statuses, EachPassingTrouble,
                         testing::Values(ErrorCode::kUnavailable, ErrorCode::kDeadlineExceeded));

TEST_F(ReplicaReadsTest, ANodeThatIsTooBusyForAnEntryRests) {
  Begin(1, 2);
  const auto busy = Only<Reads::Send>();
  Arrive(busy.leg, 0, ErrorCode::kUnavailable);
  EXPECT_FALSE(health_->MayAsk(busy.node, now_ + 9ms));
  EXPECT_TRUE(health_->MayAsk(busy.node, now_ + 10ms));
}

TEST_F(ReplicaReadsTest, DamagesThatAreNotedAreBounded) {
  for (std::uint32_t extent = 0; extent <= ReplicaHealth::kDamagesMax; ++extent)
    health_->NoteDamage(extent, 0, now_);
  EXPECT_TRUE(health_->IsDamaged(ReplicaHealth::kDamagesMax - 1, 0, now_));
  EXPECT_FALSE(health_->IsDamaged(ReplicaHealth::kDamagesMax, 0, now_));
  now_ += ReplicaHealth::kDamageKept;  // Old ones make room.
  health_->NoteDamage(ReplicaHealth::kDamagesMax, 0, now_);
  EXPECT_TRUE(health_->IsDamaged(ReplicaHealth::kDamagesMax, 0, now_));
}

TEST_F(ReplicaReadsTest, ALostConnectionMovesAllThatHasNotArrived) {
  Begin(1, 3);
  const auto first = Only<Reads::Send>();
  Arrive(first.leg, 1);
  EndLeg(first.leg, ErrorCode::kUnavailable);
  const auto second = Only<Reads::Send>();
  EXPECT_EQ(second.parts, (std::vector<std::uint32_t>{0, 2}));
  EXPECT_TRUE(second.is_direct);
  EXPECT_NE(second.node, first.node);
}

// The status of a part after these answers, one from each node.
class AllHaveFailed : public ReplicaReadsTest {
 protected:
  ErrorCode EndAfter(std::vector<ErrorCode> statuses) {
    Begin(1, 1);
    for (const ErrorCode status : statuses) {
      const auto send = Only<Reads::Send>();
      Arrive(send.leg, 0, status);
    }
    return Only<Reads::EndPart>().status;
  }
};

TEST_F(AllHaveFailed, WithTheStatusThatSaysMost) {
  EXPECT_EQ(EndAfter({ErrorCode::kNotFound, ErrorCode::kCorruption, ErrorCode::kIo}),
            ErrorCode::kCorruption);
}
TEST_F(AllHaveFailed, WithIoBeforeAbsence) {
  EXPECT_EQ(EndAfter({ErrorCode::kNotFound, ErrorCode::kIo, ErrorCode::kNotFound}), ErrorCode::kIo);
}
TEST_F(AllHaveFailed, WithAbsenceOnlyIfNobodyHasIt) {
  EXPECT_EQ(EndAfter({ErrorCode::kNotFound, ErrorCode::kNotFound, ErrorCode::kNotFound}),
            ErrorCode::kNotFound);
}

TEST_F(ReplicaReadsTest, WhileOneMayComeBackItIsAskedAgainAndTheOthersAreNot) {
  Begin(1, 1);
  auto send = Only<Reads::Send>();
  Arrive(send.leg, 0, ErrorCode::kCorruption);
  send = Only<Reads::Send>();
  const NodeIndex away = send.node;
  EndLeg(send.leg, ErrorCode::kUnavailable);
  send = Only<Reads::Send>();
  Arrive(send.leg, 0, ErrorCode::kNotFound);
  EXPECT_TRUE(actions_.empty());

  int rounds = 0;
  std::vector<Reads::Duration> waits;
  for (; rounds < 8; ++rounds) {
    const auto before = now_;
    now_ = reads_->NextTime();
    waits.push_back(now_ - before);
    Step(Reads::Tick{});
    send = Only<Reads::Send>();
    EXPECT_EQ(send.node, away);
    EndLeg(send.leg, ErrorCode::kUnavailable);
  }
  EXPECT_GE(waits.front(), 5ms);
  EXPECT_LE(waits.front(), 10ms);
  EXPECT_GE(waits.back(), 500ms);  // Doubled, and no more than a second.
  EXPECT_LE(waits.back(), 1000ms);
  now_ = reads_->NextTime();
  Step(Reads::Tick{});
  Arrive(Only<Reads::Send>().leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kOk);
}

TEST_F(ReplicaReadsTest, AtTheDeadlineItIsUnavailableAndNotCorrupt) {
  Start(2);
  Begin(1, 1, 3s);
  const auto deadline = now_ + 3s;
  const auto first = Only<Reads::Send>();
  Arrive(first.leg, 0, ErrorCode::kCorruption);
  const auto second = Only<Reads::Send>();
  EndLeg(first.leg);
  EndLeg(second.leg, ErrorCode::kUnavailable);
  std::optional<ErrorCode> status;
  while (!status) {
    ASSERT_LE(reads_->NextTime(), deadline);
    now_ = reads_->NextTime();
    Step(Reads::Tick{});
    for (const auto& end : All<Reads::EndPart>()) status = end.status;
    const bool has_ended = !All<Reads::EndBatch>().empty();
    EXPECT_EQ(has_ended, status.has_value());
    for (const auto& send : All<Reads::Send>()) EndLeg(send.leg, ErrorCode::kUnavailable);
  }
  EXPECT_EQ(now_, deadline);
  EXPECT_EQ(status, ErrorCode::kUnavailable);
}

TEST_F(ReplicaReadsTest, ABusyNodeIsLeftAloneForAsLongAsItWants) {
  Start(1);
  Begin(1, 1);
  const auto until = now_ + 4s;
  Step(Reads::LegEnded{Only<Reads::Send>().leg, ErrorCode::kUnavailable, until});
  for (auto at = now_; at < until; at = now_) {
    EXPECT_TRUE(All<Reads::Send>().empty());
    now_ = reads_->NextTime();
    if (now_ < until) Step(Reads::Tick{});
  }
  EXPECT_TRUE(health_->MayAsk(0, until));  // It has answered: that is no error.
  now_ = std::max(now_, until);
  Step(Reads::Tick{});
  EXPECT_EQ(All<Reads::Send>().size(), 1U);
}

// --- Ends ----------------------------------------------------------------------------------------

TEST_F(ReplicaReadsTest, AtTheDeadlineLegsAreCancelledAndTheBatchEndsWhenNothingIsWritten) {
  Begin(1, 2, 1s, 4 << 20);
  const auto first = Only<Reads::Send>();
  Arrive(first.leg, 0);
  Pass(100ms);
  const auto second = Only<Reads::Send>();
  Step(Reads::Heard{second.node, now_});
  Pass(99ms);
  Step(Reads::Heard{second.node, now_});
  Pass(801ms);
  const auto end = Only<Reads::EndPart>();
  EXPECT_EQ(end.part, 1U);
  EXPECT_EQ(end.status, ErrorCode::kDeadlineExceeded);
  EXPECT_GE(All<Reads::Cancel>().size(), 2U);
  EXPECT_TRUE(All<Reads::EndBatch>().empty());
  EndLeg(first.leg, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(Only<Reads::EndBatch>().batch, 1U);
  EndLeg(second.leg, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(Only<Reads::Release>().leg, second.leg);
}

TEST_F(ReplicaReadsTest, ABatchThatIsGivenUpTellsNoMoreAndEndsWhenNothingIsWritten) {
  Begin(1, 3);
  const auto first = Only<Reads::Send>();
  Step(Reads::GiveUp{1});
  EXPECT_EQ(Only<Reads::Cancel>().leg, first.leg);
  EXPECT_TRUE(All<Reads::EndBatch>().empty());
  Arrive(first.leg, 1);
  EXPECT_TRUE(actions_.empty());
  EndLeg(first.leg, ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(All<Reads::EndPart>().empty());
  EXPECT_EQ(Only<Reads::EndBatch>().batch, 1U);
}

TEST_F(ReplicaReadsTest, ABatchThatIsGivenUpAfterItsEndHasEndedOnce) {
  Begin(1, 0);
  EXPECT_EQ(Only<Reads::EndBatch>().batch, 1U);
  Step(Reads::GiveUp{1});  // By an owner that has not told it yet.
  EXPECT_TRUE(actions_.empty());
}

TEST_F(ReplicaReadsTest, AWinnerOfABatchThatIsGivenUpIsReleased) {
  Begin(1, 2, 30s, 4 << 20);
  const auto first = Only<Reads::Send>();
  Pass(100ms);
  const auto second = Only<Reads::Send>();
  Arrive(second.leg, 0);
  Step(Reads::GiveUp{1});
  EndLeg(second.leg, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(Only<Reads::Release>().leg, second.leg);
  EndLeg(first.leg, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(Only<Reads::EndBatch>().batch, 1U);
}

}  // namespace
}  // namespace ffrecord::net
