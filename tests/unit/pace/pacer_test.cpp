// Goal: chunks go in the gaps between phases, end before the predicted begin, and are never kept
// longer than a class allows.
// Method: the state machine alone, told of phases at chosen times.

#include "libffrecord/pace/pacer.h"

#include <gtest/gtest.h>

#include <limits>

namespace ffrecord::pace {
namespace {

using namespace std::chrono_literals;
using Why = Pacer::Why;

constexpr std::uint64_t kChunk = 256 << 10;

class PacerTest : public testing::Test {
 protected:
  // A chunk takes a millisecond.
  static PacingOptions Options() {
    return {.prefetch = {0, 100ms},
            .checkpoint = {0, 500ms},
            .repair = {0, 2000ms},
            .link_bytes_per_s = kChunk * 1000};
  }

  void Use(const PacingOptions& options) { pacer_.emplace(options, now_); }
  void Begin() { pacer_->BeginPhase(PhaseKind::kCollective, 1, now_); }
  void End() { pacer_->EndPhase(PhaseKind::kCollective, now_); }
  void Pass(Clock::duration time) { now_ += time; }

  // A step of 40 ms: 10 ms, a phase of 20 ms, 10 ms.
  void Step() {
    Pass(10ms);
    Begin();
    Pass(20ms);
    End();
    Pass(10ms);
    pacer_->EndStep(now_);
  }

  static Pacer::Request Chunk(TrafficClass traffic, std::uint64_t size_bytes = kChunk) {
    return {.traffic = traffic, .size_bytes = size_bytes, .least_size_bytes = size_bytes};
  }
  // A new request for a chunk.
  Pacer::Answer Ask(TrafficClass traffic = TrafficClass::kCheckpoint) {
    auto request = Chunk(traffic);
    request.asked = now_;
    const auto answer = pacer_->Ask(request, now_);
    pacer_->Abandon(request);
    return answer;
  }
  PacingCounters counters() const { return pacer_->counters(); }
  PacingCounters::Class counters(TrafficClass traffic) const {
    return counters().classes[static_cast<std::size_t>(traffic)];
  }

  Clock::time_point now_ = Clock::time_point(1000s);
  std::optional<Pacer> pacer_{std::in_place, Options(), now_};
};

TEST_F(PacerTest, APhaseHoldsAllButUrgentTrafficUntilItsEnd) {
  Begin();
  EXPECT_EQ(Ask(TrafficClass::kUrgent).why, Why::kUrgent);
  for (const auto traffic :
       {TrafficClass::kPrefetch, TrafficClass::kCheckpoint, TrafficClass::kRepair})
    EXPECT_EQ(Ask(traffic).size_bytes, 0U);
  End();
  for (const auto traffic : {TrafficClass::kPrefetch, TrafficClass::kCheckpoint})
    EXPECT_EQ(Ask(traffic).why, Why::kGap);
}

TEST_F(PacerTest, NestedAndOverlappingPhasesAreOnePhase) {
  Begin();
  pacer_->BeginPhase(PhaseKind::kPointToPoint, 1, now_);
  Begin();
  End();
  End();
  EXPECT_EQ(Ask().size_bytes, 0U);
  pacer_->EndPhase(PhaseKind::kPointToPoint, now_);
  EXPECT_EQ(Ask().size_bytes, kChunk);
  EXPECT_EQ(counters().phases, 3U);
}

TEST_F(PacerTest, NoChunkIsHeldLongerThanItsClassAllows) {
  Begin();
  auto request = Chunk(TrafficClass::kPrefetch);
  request.asked = now_;
  const auto asked = now_;
  const auto held = pacer_->Ask(request, now_);
  EXPECT_EQ(held.until, asked + 100ms);

  now_ = held.until;
  EXPECT_EQ(pacer_->Ask(request, now_).why, Why::kExpired);

  EXPECT_EQ(counters(TrafficClass::kPrefetch).expired_holds, 1U);
  EXPECT_EQ(counters(TrafficClass::kPrefetch).held_size_bytes, kChunk);
  EXPECT_NEAR(counters(TrafficClass::kPrefetch).held_s, 0.1, 1e-6);
}

TEST_F(PacerTest, ARequestsOwnLimitCountsIfItIsSooner) {
  Begin();
  auto request = Chunk(TrafficClass::kRepair);
  request.asked = now_;
  request.limit = now_ + 5ms;
  EXPECT_EQ(pacer_->Ask(request, now_).until, now_ + 5ms);
}

TEST_F(PacerTest, AFloorGoesOnThroughPhases) {
  auto options = Options();
  options.checkpoint = {kChunk * 100, 500ms};  // A chunk every 10 ms.
  Use(options);
  Begin();
  std::uint64_t passed = 0;
  for (const auto end = now_ + 1s; now_ < end;) {
    auto request = Chunk(TrafficClass::kCheckpoint);
    request.asked = now_;
    auto answer = pacer_->Ask(request, now_);
    while (answer.size_bytes == 0) {
      now_ = answer.until;
      answer = pacer_->Ask(request, now_);
    }
    EXPECT_EQ(answer.why, Why::kFloor);
    passed += answer.size_bytes;
  }
  EXPECT_NEAR(static_cast<double>(passed), static_cast<double>(kChunk) * 100,
              static_cast<double>(kChunk));
}

TEST_F(PacerTest, AChunkGoesOnlyIfItEndsBeforeThePredictedBegin) {
  for (int i = 0; i < 4; ++i) Step();
  // The next phase is due in 10 ms.
  Pass(9ms);
  EXPECT_EQ(Ask().why, Why::kGap);
  Pass(1ms);
  const auto held = Ask();
  EXPECT_EQ(held.size_bytes, 0U);
  // It is late, which it never was: it is not waited for longer than a chunk takes.
  EXPECT_EQ(held.until, now_ + 1ms);
  now_ = held.until;
  EXPECT_EQ(Ask().why, Why::kGap);
}

TEST_F(PacerTest, AChunkIsCutToTheRestOfTheGap) {
  for (int i = 0; i < 4; ++i) Step();
  Pass(9ms + 500us);
  Pacer::Request request{.traffic = TrafficClass::kCheckpoint,
                         .size_bytes = 8 * kChunk,
                         .least_size_bytes = 16 << 10,
                         .asked = now_};
  const auto answer = pacer_->Ask(request, now_);
  EXPECT_LE(answer.size_bytes, kChunk / 2);
  EXPECT_GT(answer.size_bytes, kChunk / 2 - 4096);
}

TEST_F(PacerTest, APhaseThatComesTooEarlyMeetsOneChunkAtMost) {
  for (int i = 0; i < 4; ++i) Step();
  EXPECT_EQ(Ask().why, Why::kGap);
  EXPECT_EQ(Ask().size_bytes, 0U) << "the link is busy";
  Begin();
  EXPECT_EQ(Ask().size_bytes, 0U);
  EXPECT_EQ(counters().overlapped_chunks, 1U);
}

TEST_F(PacerTest, SignalsOlderThanTwoStepsLetEverythingPass) {
  for (int i = 0; i < 4; ++i) Step();
  Begin();
  Pass(80ms);
  EXPECT_EQ(Ask().size_bytes, 0U);
  Pass(1ms);
  EXPECT_EQ(Ask().why, Why::kStale);
  EXPECT_EQ(counters(TrafficClass::kCheckpoint).stale_chunks, 1U);
}

TEST_F(PacerTest, APhaseThatNeverEndsExpiresAlthoughOthersBeginAndEndAboveIt) {
  for (int i = 0; i < 4; ++i) Step();
  Begin();  // It never ends.
  Step();
  Step();
  EXPECT_EQ(counters().expired_phases, 0U);
  Step();
  Pass(5ms);
  EXPECT_EQ(Ask().why, Why::kGap);
  EXPECT_EQ(counters().expired_phases, 1U);
}

TEST_F(PacerTest, AnEndWithoutABeginIsCountedAndDoesNothing) {
  End();
  Begin();
  EXPECT_EQ(Ask().size_bytes, 0U);
  EXPECT_EQ(counters().unmatched_ends, 1U);
}

TEST_F(PacerTest, PrefetchIsUrgentWhileALoadersQueueIsLow) {
  Begin();
  pacer_->SetLowQueues(2);
  EXPECT_EQ(Ask(TrafficClass::kPrefetch).why, Why::kPromoted);
  EXPECT_EQ(Ask(TrafficClass::kCheckpoint).size_bytes, 0U);
  pacer_->SetLowQueues(0);
  EXPECT_EQ(Ask(TrafficClass::kPrefetch).size_bytes, 0U);
  EXPECT_EQ(counters().promotions, 1U);
}

TEST_F(PacerTest, RepairLetsACheckpointGoFirst) {
  EXPECT_EQ(Ask(TrafficClass::kCheckpoint).why, Why::kGap);
  auto save = Chunk(TrafficClass::kCheckpoint);
  save.asked = now_;
  EXPECT_EQ(pacer_->Ask(save, now_).size_bytes, 0U);
  Pass(1ms);
  EXPECT_EQ(Ask(TrafficClass::kRepair).size_bytes, 0U);
  EXPECT_EQ(pacer_->Ask(save, now_).why, Why::kGap);
}

TEST_F(PacerTest, ReadsAndUploadsShareNoDirection) {
  EXPECT_EQ(Ask(TrafficClass::kCheckpoint).why, Why::kGap);
  EXPECT_EQ(Ask(TrafficClass::kPrefetch).why, Why::kGap);
}

TEST_F(PacerTest, AfterSignalsWereLostNoPhaseIsOpen) {
  for (int i = 0; i < 4; ++i) Step();
  Begin();
  pacer_->LoseSignals(3, now_);
  EXPECT_EQ(Ask().why, Why::kGap);
  EXPECT_EQ(counters().lost_signals, 3U);
}

TEST_F(PacerTest, AClockThatIsSetBackHoldsNothing) {
  for (int i = 0; i < 4; ++i) Step();
  Begin();
  Pass(-900s);
  EXPECT_EQ(Ask().why, Why::kGap);
}

// 20 of 40 ms are gaps, and each phase begins up to a millisecond late.
TEST_F(PacerTest, TheGapsAreUsedAndPhasesAreLeftAlone) {
  std::uint64_t passed = 0;
  const auto send_until = [&](Clock::time_point end) {
    for (;;) {
      Pacer::Request request{.traffic = TrafficClass::kCheckpoint,
                             .size_bytes = kChunk,
                             .least_size_bytes = kChunk / 16,
                             .asked = now_};
      const auto answer = pacer_->Ask(request, now_);
      pacer_->Abandon(request);
      passed += answer.size_bytes;
      const auto next = answer.size_bytes > 0 ? now_ : answer.until;
      if (next >= end) break;
      now_ = next;
    }
    now_ = end;
  };
  constexpr int kSteps = 100;
  for (int step = 0; step < kSteps; ++step) {
    send_until(now_ + 10ms + std::chrono::microseconds(step * 370 % 1000));
    Begin();
    send_until(now_ + 20ms);
    End();
    send_until(now_ + 10ms);
    pacer_->EndStep(now_);
  }
  EXPECT_GT(static_cast<double>(passed), 0.9 * kSteps * 20 * static_cast<double>(kChunk));
  EXPECT_LT(counters().overlapped_chunks, kSteps / 5U);
  EXPECT_EQ(counters(TrafficClass::kCheckpoint).expired_holds, 0U);
}

TEST_F(PacerTest, OptionsOutOfRangeAreRefusedByName) {
  const auto refusal = [](auto change) {
    PacingOptions options;
    change(options);
    const auto checked = Pacer::Check(options);
    return checked ? std::string() : checked.error().message;
  };
  EXPECT_EQ(refusal([](auto&) {}), "");
  EXPECT_NE(refusal([](auto& options) { options.repair.longest_hold = 0ms; }).find("repair"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& options) { options.chunk_size_bytes = 1; }).find("16 KiB"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& options) { options.phase_limit = -1ms; }).find("phase_limit"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& options) { options.stale_after = 0ms; }).find("stale_after"),
            std::string::npos);
}

}  // namespace
}  // namespace ffrecord::pace
