// Goal: a node that answers far later than the others is asked seldom, without being lost: it comes
// back when it is as fast as they are; single late answers, and nodes that are a little slower or
// all alike, change nothing. Method: the state machine alone, with a virtual clock and nodes of
// given latencies; who is asked is counted.

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <set>

#include "replica_reads_fixture.h"

namespace ffrecord::net {
namespace {

class SlowReplicasTest : public ReplicaReadsTest {
 protected:
  using Counts = std::array<std::size_t, 3>;

  // Batches of one part each, one after the other with a pause between them; how many went to each
  // node first. Hedges and trials come as they do.
  Counts Run(std::size_t batch_count, Reads::Duration pause = 0ms) {
    Counts counts{};
    for (std::size_t i = 0; i < batch_count; ++i) {
      ++counts[RunOne()];
      now_ += pause;
    }
    return counts;
  }
  NodeIndex RunOne() {
    Begin(++last_batch_, 1);
    const NodeIndex first = All<Reads::Send>().front().node;
    bool has_ended = false;
    for (Take(); !has_ended || !due_.empty(); Take()) {
      const auto next =
          std::ranges::min_element(due_, {}, [](const auto& one) { return one.second; });
      if (reads_->NextTime() < next->second) {
        now_ = std::max(now_, reads_->NextTime());
        Step(Reads::Tick{});
        continue;
      }
      const Reads::LegId leg = next->first;
      now_ = std::max(now_, next->second);
      due_.erase(next);
      if (!cancelled_.contains(leg)) {
        Arrive(leg, 0);
        has_ended = has_ended || !All<Reads::EndPart>().empty();
        Take();
      }
      EndLeg(leg, cancelled_.contains(leg) ? ErrorCode::kDeadlineExceeded : ErrorCode::kOk);
      has_ended = has_ended || !All<Reads::EndPart>().empty();
    }
    return first;
  }

  // Of the next answer.
  std::function<Reads::Duration(NodeIndex)> latency_ = [this](NodeIndex node) {
    return latencies_[node];
  };
  std::array<Reads::Duration, 3> latencies_{1ms, 1ms, 1ms};

 private:
  // What the last step wants done.
  void Take() {
    for (const auto& send : All<Reads::Send>()) due_[send.leg] = now_ + latency_(send.node);
    for (const auto& cancel : All<Reads::Cancel>()) {
      cancelled_.insert(cancel.leg);
      due_[cancel.leg] = now_;
    }
    actions_.clear();
  }

  Reads::BatchId last_batch_ = 0;
  std::map<Reads::LegId, Reads::Time> due_;
  std::set<Reads::LegId> cancelled_;
};

TEST_F(SlowReplicasTest, TheAnswersToOneRequestAreOneSample) {
  Run(60);
  Begin(1'000, 40);
  const auto late = Only<Reads::Send>();
  now_ += 40ms;
  for (std::uint32_t entry = 0; entry < 40; ++entry) Arrive(late.leg, entry);
  EXPECT_FALSE(health_->IsSlow(late.node, now_));
}

TEST_F(SlowReplicasTest, NodesThatAreAlikeAreAskedByTurns) {
  latencies_ = {99ms, 99ms, 99ms};
  for (const std::size_t count : Run(300)) EXPECT_NEAR(static_cast<double>(count), 100, 5);
}

TEST_F(SlowReplicasTest, OneThatIsFarSlowerIsAskedSeldom) {
  latencies_ = {1ms, 99ms, 1ms};
  Run(150);
  const Counts counts = Run(1000, 1ms);
  EXPECT_LE(counts[1], 3U);
  EXPECT_NEAR(static_cast<double>(counts[0]), static_cast<double>(counts[2]), 50);
}

TEST_F(SlowReplicasTest, TrialsBecomeRareWhileTheyFail) {
  latencies_ = {1ms, 99ms, 1ms};
  Run(150);
  Run(500, 10ms);
  const Counts before = Run(3000, 20ms);  // A minute.
  EXPECT_GE(before[1], 1U);
  EXPECT_LE(before[1], 6U);
}

TEST_F(SlowReplicasTest, ItComesBackOnceItIsAsFastAsTheOthers) {
  latencies_ = {1ms, 99ms, 1ms};
  Run(150);
  Run(3000, 20ms);
  latencies_[1] = 1ms;
  Run(1800, 20ms);  // The longest pause, and somewhat more.
  EXPECT_NEAR(static_cast<double>(Run(300)[1]), 100, 10);
}

TEST_F(SlowReplicasTest, SingleLateAnswersChangeNothing) {
  std::size_t answer = 0;
  latency_ = [&](NodeIndex node) { return node == 1 && ++answer % 10 == 0 ? 90ms : 1ms; };
  Run(300);
  EXPECT_GE(Run(300)[1], 80U);
}

TEST_F(SlowReplicasTest, ALittleSlowerIsNotSlow) {
  latencies_ = {1ms, 10ms, 1ms};  // Many times as slow, but by few milliseconds.
  Run(300);
  EXPECT_GE(Run(300)[1], 80U);
  latencies_ = {20ms, 60ms, 20ms};  // By many, but not many times.
  Run(300);
  EXPECT_GE(Run(300)[1], 80U);
}

// Between the two bounds a node stays what it was.
TEST_F(SlowReplicasTest, NodesDoNotSwingBetweenTheBounds) {
  latencies_ = {10ms, 30ms, 10ms};
  Run(300);
  EXPECT_GE(Run(300)[1], 80U);
  latencies_[1] = 99ms;
  Run(300);
  latencies_[1] = 30ms;
  Run(600, 100ms);
  EXPECT_LE(Run(300)[1], 30U);
}

TEST_F(SlowReplicasTest, ItIsAskedWhereThereIsNoOther) {
  latencies_ = {1ms, 99ms, 1ms};
  Run(150);
  health_->Failed(0, now_);
  health_->Failed(2, now_);
  Begin(1'000'000, 1);
  EXPECT_EQ(All<Reads::Send>().front().node, 1U);
}

TEST_F(SlowReplicasTest, ANearNodeThatIsSlowIsNoBetter) {
  health_->SetDistance(1, 0);
  for (int i = 0; i < 40; ++i)
    for (NodeIndex node = 0; node < 3; ++node)
      health_->NoteAnswer(node, node == 1 ? 99ms : 1ms, now_);
  EXPECT_TRUE(health_->IsBetter(0, 1, now_));
  EXPECT_FALSE(health_->IsBetter(1, 0, now_));
}

// A hedge that wins keeps the slow answer from coming: how long it was waited for counts.
TEST_F(SlowReplicasTest, AnswersThatAreCancelledCountToo) {
  for (int i = 0; i < 40; ++i) {
    for (const NodeIndex node : {NodeIndex{0}, NodeIndex{2}}) health_->NoteAnswer(node, 1ms, now_);
    if (i < 10) health_->NoteAnswer(1, 1ms, now_);
    health_->NoteNoAnswer(1, 50ms, now_);
  }
  EXPECT_TRUE(health_->IsSlow(1, now_));
  health_->NoteNoAnswer(0, 1us, now_);  // That says nothing.
  EXPECT_FALSE(health_->IsSlow(0, now_));
}

}  // namespace
}  // namespace ffrecord::net
