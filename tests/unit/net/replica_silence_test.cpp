// Goal: what a silent node owes is asked for elsewhere, into other memory, and so are a few parts
// that take longer than others; the first answer counts, and no node can write into memory that was
// given back.
// Method: the state machine alone, with a virtual clock; events are given by hand, actions looked
// at.

#include "libffrecord/net/replicas/replica_reads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <variant>
#include <vector>

#include "replica_reads_fixture.h"

namespace ffrecord::net {
namespace {

// --- Silence -------------------------------------------------------------------------------------

TEST_F(ReplicaReadsTest, WhatASilentNodeOwesIsAskedElsewhereIntoOtherMemory) {
  Begin(1, 40, 30s, 4 << 20);  // Too large to be hedged.
  const auto first = Only<Reads::Send>();
  Arrive(first.leg, 0);
  Pass(99ms);
  EXPECT_TRUE(All<Reads::Send>().empty());
  Pass(1ms);
  const auto second = Only<Reads::Send>();
  EXPECT_NE(second.node, first.node);
  EXPECT_FALSE(second.is_direct);
  EXPECT_EQ(second.parts.size(), 39U);
  EXPECT_TRUE(All<Reads::Cancel>().empty());  // It may still be the first.
}

TEST_F(ReplicaReadsTest, AWinnersBytesAreCopiedOnceTheLoserWritesNoMore) {
  Begin(1, 2, 30s, 4 << 20);
  const auto first = Only<Reads::Send>();
  Pass(100ms);
  const auto second = Only<Reads::Send>();

  Arrive(second.leg, 0);
  EXPECT_TRUE(actions_.empty());  // The first leg is still wanted.
  Arrive(second.leg, 1);
  EXPECT_EQ(Only<Reads::Cancel>().leg, first.leg);
  EXPECT_EQ(Only<Reads::Drop>().node, first.node);
  EXPECT_TRUE(All<Reads::EndPart>().empty());
  EndLeg(second.leg);
  EXPECT_TRUE(actions_.empty());  // Its memory is needed.

  EndLeg(first.leg, ErrorCode::kDeadlineExceeded);
  const auto ends = All<Reads::EndPart>();
  ASSERT_EQ(ends.size(), 2U);
  for (std::uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(ends[i].status, ErrorCode::kOk);
    EXPECT_EQ(ends[i].leg, second.leg);
    EXPECT_EQ(ends[i].entry, i);
  }
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
  // Not before the copies.
  const auto released = std::ranges::find_if(actions_, [&](const auto& action) {
    const auto* release = std::get_if<Reads::Release>(&action);
    return release != nullptr && release->leg == second.leg;
  });
  ASSERT_NE(released, actions_.end());
  EXPECT_TRUE(std::all_of(released, actions_.end(), [](const auto& action) {
    return !std::holds_alternative<Reads::EndPart>(action);
  }));
}

TEST_F(ReplicaReadsTest, ASuspectedNodeThatAnswersFirstWinsInPlace) {
  Begin(1, 1, 30s, 4 << 20);
  const auto first = Only<Reads::Send>();
  Pass(100ms);
  const auto second = Only<Reads::Send>();
  Arrive(first.leg, 0);
  const auto end = Only<Reads::EndPart>();
  EXPECT_EQ(end.leg, 0U);
  EXPECT_EQ(Only<Reads::Cancel>().leg, second.leg);
  EndLeg(first.leg);
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);  // The other one writes into its own memory.
  EXPECT_EQ(Only<Reads::Release>().leg, first.leg);
  EndLeg(second.leg, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(Only<Reads::Release>().leg, second.leg);
}

TEST_F(ReplicaReadsTest, ANodeThatIsHeardIsNotSilent) {
  Begin(1, 1, 30s, 64 << 20);
  const auto first = Only<Reads::Send>();
  for (int i = 0; i < 10; ++i) {
    Pass(90ms);
    EXPECT_TRUE(All<Reads::Send>().empty());
    Step(Reads::Heard{first.node, now_});
  }
}

TEST_F(ReplicaReadsTest, ASilentNodeIsNotAskedByOtherBatchesButProbedOncePerSecond) {
  Start(2);
  Begin(1, 1, 30s, 4 << 20);
  const auto first = Only<Reads::Send>();
  Pass(100ms);
  const NodeIndex other = Only<Reads::Send>().node;
  Reads::BatchId batch = 2;
  const auto read = [&](bool is_probed) {
    Begin(batch++, 1);
    const auto sends = All<Reads::Send>();
    ASSERT_EQ(sends.size(), is_probed ? 2U : 1U);
    EXPECT_EQ(sends.front().node, other);
    EXPECT_TRUE(sends.front().is_direct);
    EXPECT_EQ(sends.back().is_direct, !is_probed);
    Arrive(sends.front().leg, 0);
    EXPECT_EQ(All<Reads::EndPart>().size(), 1U);  // It does not wait for the probe.
    EXPECT_TRUE(All<Reads::Cancel>().empty());    // Which goes on.
    EndLeg(sends.front().leg);
    EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
  };
  read(false);
  now_ += 999ms;
  read(false);
  now_ += 1ms;
  read(true);
  read(false);
}

TEST_F(ReplicaReadsTest, ASilentNodeWithoutAnAlternativeIsWaitedFor) {
  Start(1);
  Begin(1, 1, 10s);
  const auto first = Only<Reads::Send>();
  Pass(5s);
  EXPECT_TRUE(All<Reads::Send>().empty());
  EXPECT_TRUE(All<Reads::EndPart>().empty());
  Arrive(first.leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kOk);
}

TEST_F(ReplicaReadsTest, IfTheAlternativeIsLostTooThePartComesBackToIt) {
  Start(2);
  Begin(1, 1, 30s, 4 << 20);
  const auto first = Only<Reads::Send>();
  Pass(100ms);
  const auto second = Only<Reads::Send>();
  EndLeg(second.leg, ErrorCode::kUnavailable);
  EXPECT_TRUE(All<Reads::Send>().empty());
  Pass(20ms);
  const auto third = Only<Reads::Send>();
  EXPECT_EQ(third.node, second.node);  // And not the silent one, which has been asked already.
  EXPECT_FALSE(third.is_direct);
}

TEST_F(ReplicaReadsTest, SilenceIsMeasuredFromTheFirstRequest) {
  Begin(1, 1, 30s, 4 << 20);
  const auto first = Only<Reads::Send>();
  Arrive(first.leg, 0);
  EndLeg(first.leg);
  now_ += 10s;
  Begin(2, 1, 30s, 4 << 20);
  Pass(99ms);
  EXPECT_TRUE(actions_.empty());
}

TEST_F(ReplicaReadsTest, RequestsThatFollowDoNotProlongASilence) {
  Start(2);
  health_->SetDistance(0, 0);
  Begin(1, 1, 30s, 4 << 20);
  Pass(60ms);
  Begin(2, 1, 30s, 4 << 20);
  EXPECT_EQ(Only<Reads::Send>().node, 0U);
  Pass(40ms);
  EXPECT_EQ(All<Reads::Send>().size(), 2U);  // What both batches wait for.
}

TEST_F(ReplicaReadsTest, WhatWasHeardBeforeASilenceDoesNotEndIt) {
  Start(2);
  Begin(1, 1, 30s, 4 << 20);
  const NodeIndex silent = Only<Reads::Send>().node;
  const auto before = now_;
  Pass(100ms);
  ASSERT_EQ(All<Reads::Send>().size(), 1U);
  Step(Reads::Heard{silent, before});
  const auto other = sent_.rbegin()->second;
  Arrive(other.leg, 0);
  EXPECT_EQ(Only<Reads::Drop>().node, silent);  // Its connection is not trusted any more.
}

TEST_F(ReplicaReadsTest, TimeInWhichTheOwnerIsAwayDoesNotCount) {
  Begin(1, 1, 2s, 4 << 20);
  now_ += 10s;
  Step(Reads::Away{10s});
  EXPECT_TRUE(actions_.empty());
  Pass(99ms);
  EXPECT_TRUE(actions_.empty());
  Pass(1ms);
  EXPECT_EQ(All<Reads::Send>().size(), 1U);
  Pass(1s);
  EXPECT_TRUE(All<Reads::EndPart>().empty());
}

// --- Hedges --------------------------------------------------------------------------------------

class HedgeTest : public ReplicaReadsTest {
 protected:
  void SetUp() override {
    for (int i = 0; i < 200; ++i) health_->NoteLatency(5ms);
  }
};

TEST_F(HedgeTest, OnlyOneInTwentyPartsIsHedged) {
  health_->NoteParts(0);
  Begin(1, 100);
  const auto first = Only<Reads::Send>();
  Pass(4ms);
  EXPECT_TRUE(All<Reads::Send>().empty());
  Pass(20ms);
  const auto hedge = Only<Reads::Send>();
  EXPECT_EQ(hedge.parts.size(), 5U);
  EXPECT_FALSE(hedge.is_direct);
  EXPECT_NE(hedge.node, first.node);
}

TEST_F(HedgeTest, FewHedgesAreSavedUp) {
  health_->NoteParts(1'000'000);
  health_->NoteParts(1'000'000);
  std::uint32_t count = 0;
  while (health_->TakeHedge()) ++count;
  EXPECT_EQ(count, ReplicaHealth::kHedgesMax);
}

TEST_F(HedgeTest, AHedgeThatWinsEndsItsPartWithTheRestOfTheLeg) {
  Begin(1, 20);
  const auto first = Only<Reads::Send>();
  Pass(10ms);
  const auto hedge = Only<Reads::Send>();
  ASSERT_EQ(hedge.parts, std::vector<std::uint32_t>{0});
  Arrive(hedge.leg, 0);
  EXPECT_TRUE(actions_.empty());
  for (std::uint32_t i = 1; i < 20; ++i) {
    Arrive(first.leg, i);
    EXPECT_EQ(All<Reads::EndPart>().size(), 1U);
  }
  EXPECT_EQ(Only<Reads::Cancel>().leg, first.leg);
  EXPECT_TRUE(All<Reads::Drop>().empty());  // It is slow, not silent.
  EndLeg(first.leg, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(Only<Reads::EndPart>().leg, hedge.leg);
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
  EXPECT_TRUE(health_->MayAsk(first.node, now_));  // A cancelled leg is no error.
}

// A node that was cut off just before it would have been suspected: the next batch would wait for
// it, and for a connection to it, once more.
TEST_F(HedgeTest, ANodeThatDoesNotSayThatACancelledLegHasEndedIsSilent) {
  health_->NoteParts(2 * HedgeBudget::kRequestsPerHedge);
  for (const bool is_heard : {true, false}) {
    Begin(is_heard ? 1 : 2, 1);
    const auto first = Only<Reads::Send>();
    Pass(10ms);
    const auto hedge = Only<Reads::Send>();
    Arrive(hedge.leg, 0);
    EXPECT_EQ(Only<Reads::Cancel>().leg, first.leg);
    EndLeg(hedge.leg);
    now_ += 100ms;
    if (is_heard) Step(Reads::Heard{first.node, now_ - 1ms});
    EndLeg(first.leg, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
    EXPECT_EQ(health_->MayAsk(first.node, now_), is_heard);
  }
}

TEST_F(HedgeTest, AHedgeThatFailsIsNoMatterWhileTheFirstGoesOn) {
  Begin(1, 20);
  const auto first = Only<Reads::Send>();
  Pass(10ms);
  const auto hedge = Only<Reads::Send>();
  Arrive(hedge.leg, 0, ErrorCode::kNotFound);
  EXPECT_TRUE(All<Reads::Send>().empty());
  EXPECT_TRUE(All<Reads::EndPart>().empty());
  Arrive(first.leg, 0, ErrorCode::kNotFound);
  EXPECT_EQ(Only<Reads::Send>().parts, std::vector<std::uint32_t>{0});  // The third node.
}

// Its owner polls again when there is the next batch: that is no time of the node's.
TEST_F(HedgeTest, WhatALoserAnswersLateSaysNothingAboutLatencies) {
  const auto before = health_->HedgeAfter();
  for (Reads::BatchId batch = 1; batch <= 4; ++batch) {
    Begin(batch, 20);
    const auto first = Only<Reads::Send>();
    Pass(health_->HedgeAfter());
    const auto hedge = Only<Reads::Send>();
    for (std::uint32_t i = 0; i < 20; ++i) Arrive(first.leg, i);
    EndLeg(first.leg);
    EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
    now_ += 5s;
    Arrive(hedge.leg, 0);
    EndLeg(hedge.leg);
  }
  EXPECT_LT(health_->HedgeAfter(), 4 * before);
}

TEST_F(HedgeTest, LargePartsAreNotHedged) {
  Begin(1, 100, 30s, Reads::kHedgedBytesMax + 1);
  Pass(50ms);
  EXPECT_TRUE(All<Reads::Send>().empty());
}

TEST_F(HedgeTest, ANodeThatIsSlowByHabitIsNotTakenForSilent) {
  for (int i = 0; i < 2000; ++i) health_->NoteLatency(150ms);
  Begin(1, 1, 30s, 4 << 20);
  Pass(590ms);
  EXPECT_TRUE(All<Reads::Send>().empty());
  Pass(300ms);
  EXPECT_EQ(All<Reads::Send>().size(), 1U);
}

TEST_F(HedgeTest, AFewLateAnswersDoNotMakeItWaitLongerForASilentNode) {
  for (int i = 0; i < 20; ++i) health_->NoteLatency(400ms);
  Begin(1, 1, 30s, 4 << 20);
  Pass(100ms);
  EXPECT_EQ(All<Reads::Send>().size(), 1U);
}

}  // namespace
}  // namespace ffrecord::net
