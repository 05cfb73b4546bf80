// Goal: threads of a process wait at its gate and are let go by its signals; a signal neither waits
// nor allocates, and without pacing nothing is held.
// Method: the process's gate, on a virtual clock; operator new that counts.

#include "libffrecord/pace/gate.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>
#include <vector>

#include "libffrecord/base/patience.h"
#include "libffrecord/base/timed_waits.h"
#include "virtual_clock.h"

namespace {

thread_local std::uint64_t allocations = 0;

}  // namespace

// Not inlined: g++ would find free() beside new.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace ffrecord {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kChunk = 256 << 10;
// Nothing goes but in gaps.
const PacingOptions kPatient{.prefetch = {0, 60'000ms},
                             .checkpoint = {0, 60'000ms},
                             .repair = {0, 60'000ms},
                             .phase_limit = 60'000ms,
                             .stale_after = 600'000ms};

const PacingCounters::Class& Of(const PacingCounters& counters, TrafficClass traffic) {
  return counters.classes[static_cast<std::size_t>(traffic)];
}

class GateTest : public testing::Test {
 protected:
  ~GateTest() override { StopPacing(); }

  // A thread that waits for its turn and then counts itself.
  std::thread Sender(TrafficClass traffic) {
    return std::thread([this, traffic] {
      AwaitTurn(traffic, kChunk);
      ++gone_;
    });
  }

  test::VirtualClock clock_;
  std::atomic<int> gone_ = 0;
};

TEST_F(GateTest, WithoutPacingNothingIsHeldAndNoSignalCounts) {
  BeginPhase(PhaseKind::kCollective, 1);
  AwaitTurn(TrafficClass::kRepair, kChunk);
  EXPECT_FALSE(IsPacing());
  EXPECT_EQ(GetPacingCounters().phases, 0U);
}

TEST_F(GateTest, ASignalAllocatesNothing) {
  ASSERT_TRUE(StartPacing(kPatient));
  const std::uint64_t before = allocations;
  for (int i = 0; i < 10'000; ++i) {  // Ten times what the ring holds.
    BeginPhase(PhaseKind::kCollective, 1);
    BeginPhase(PhaseKind::kPointToPoint, 1);
    EndPhase(PhaseKind::kPointToPoint);
    EndPhase(PhaseKind::kCollective);
    EndStep();
  }
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(GetPacingCounters().phases, 20'000U);
}

TEST_F(GateTest, TheEndOfThePhaseLetsAllGoThatWait) {
  ASSERT_TRUE(StartPacing(kPatient));
  BeginPhase(PhaseKind::kCollective, 1);
  std::vector<std::thread> senders;
  for (int i = 0; i < 4; ++i) senders.push_back(Sender(TrafficClass::kCheckpoint));
  clock_.RunFor(1s);
  EXPECT_EQ(gone_, 0);

  EndPhase(PhaseKind::kCollective);
  clock_.RunUntilIdle();

  EXPECT_EQ(gone_, 4);
  for (std::thread& sender : senders) sender.join();
  const auto counters = GetPacingCounters();
  EXPECT_EQ(Of(counters, TrafficClass::kCheckpoint).held_chunks, 4U);
  EXPECT_NEAR(Of(counters, TrafficClass::kCheckpoint).held_s, 4.0, 0.1);
}

TEST_F(GateTest, TurningPacingOffLetsAllGo) {
  ASSERT_TRUE(StartPacing(kPatient));
  BeginPhase(PhaseKind::kCollective, 1);
  std::thread sender = Sender(TrafficClass::kRepair);
  clock_.RunUntilIdle();
  StopPacing();
  sender.join();
  EXPECT_EQ(gone_, 1);
  EXPECT_EQ(GetPacingCounters().phases, 1U) << "they stay";
}

TEST_F(GateTest, ANewStartForgetsThePhasesOfTheOld) {
  ASSERT_TRUE(StartPacing(kPatient));
  BeginPhase(PhaseKind::kCollective, 1);
  std::thread sender = Sender(TrafficClass::kCheckpoint);
  clock_.RunUntilIdle();
  ASSERT_TRUE(StartPacing(kPatient));
  sender.join();
  EXPECT_EQ(GetPacingCounters().phases, 0U);
}

TEST_F(GateTest, ALowQueueLetsPrefetchGoEvenIfItWasReportedBeforePacingBegan) {
  ReportLoaderQueue(true);
  ASSERT_TRUE(StartPacing(kPatient));
  BeginPhase(PhaseKind::kCollective, 1);
  AwaitTurn(TrafficClass::kPrefetch, kChunk);
  ReportLoaderQueue(false);
  std::thread sender = Sender(TrafficClass::kPrefetch);
  clock_.RunUntilIdle();
  EXPECT_EQ(gone_, 0);

  ReportLoaderQueue(true);
  clock_.RunUntilIdle();

  EXPECT_EQ(gone_, 1);
  sender.join();
  ReportLoaderQueue(false);
  EXPECT_EQ(GetPacingCounters().promotions, 2U);
}

TEST_F(GateTest, NoHoldIsLongerThanTheClassAllows) {
  auto options = kPatient;
  options.checkpoint.longest_hold = 500ms;
  ASSERT_TRUE(StartPacing(options));
  BeginPhase(PhaseKind::kCollective, 1);
  const auto began = Clock::now();
  AwaitTurn(TrafficClass::kCheckpoint, kChunk);
  EXPECT_GE(Clock::now() - began, 500ms);
  EXPECT_EQ(Of(GetPacingCounters(), TrafficClass::kCheckpoint).expired_holds, 1U);
}

TEST_F(GateTest, AThreadWhosePatienceIsOverIsNotHeld) {
  ASSERT_TRUE(StartPacing(kPatient));
  BeginPhase(PhaseKind::kCollective, 1);
  const Patience::GiveUp give_up = [] { return true; };
  const Patience patience(give_up);
  AwaitTurn(TrafficClass::kCheckpoint, kChunk);
  EXPECT_EQ(Of(GetPacingCounters(), TrafficClass::kCheckpoint).held_now, 0U);
}

TEST_F(GateTest, ACallerThatGivesUpIsToldSo) {
  ASSERT_TRUE(StartPacing(kPatient));
  const auto never = [] { return false; };
  EXPECT_TRUE(AwaitTurn(TrafficClass::kCheckpoint, kChunk, never));
  BeginPhase(PhaseKind::kCollective, 1);
  const auto began = Clock::now();

  EXPECT_FALSE(AwaitTurn(TrafficClass::kCheckpoint, kChunk, [] { return true; }));

  EXPECT_LT(Clock::now() - began, 1s);
  EXPECT_EQ(Of(GetPacingCounters(), TrafficClass::kCheckpoint).held_now, 0U);
}

TEST_F(GateTest, ATurnThatIsAbandonedIsNotHeld) {
  ASSERT_TRUE(StartPacing(kPatient));
  BeginPhase(PhaseKind::kCollective, 1);
  pace::Turn turn(TrafficClass::kPrefetch);
  ASSERT_FALSE(turn.Come(kChunk));
  EXPECT_EQ(Of(GetPacingCounters(), TrafficClass::kPrefetch).held_now, 1U);

  turn.Abandon();
  turn.Abandon();

  EXPECT_EQ(Of(GetPacingCounters(), TrafficClass::kPrefetch).held_now, 0U);
  EXPECT_FALSE(turn.Come(kChunk));
}

TEST_F(GateTest, BadOptionsChangeNothing) {
  ASSERT_TRUE(StartPacing(kPatient));
  BeginPhase(PhaseKind::kCollective, 1);
  auto options = kPatient;
  options.chunk_size_bytes = 3;
  EXPECT_FALSE(StartPacing(options));
  EXPECT_TRUE(IsPacing());
  EXPECT_EQ(GetPacingCounters().phases, 1U);
}

// More phases at once than there is room for, of many threads: what is lost is counted, and what
// waits goes on.
TEST_F(GateTest, SignalsOfManyThreadsAreAllCounted) {
  ASSERT_TRUE(StartPacing(kPatient));
  constexpr int kThreads = 4, kPhases = 5000;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([] {
      for (int phase = 0; phase < kPhases; ++phase) {
        BeginPhase(PhaseKind::kCollective, 1);
        EndPhase(PhaseKind::kCollective);
      }
    });
  for (std::thread& thread : threads) thread.join();
  const auto counters = GetPacingCounters();
  EXPECT_GE(counters.phases + counters.lost_signals, std::uint64_t{kThreads} * kPhases);
  AwaitTurn(TrafficClass::kCheckpoint, kChunk);
}

// A clock of its own: the child has no driver.
TEST(ForkedGateTest, AForkedChildBeginsWithPacingOff) {
  ASSERT_TRUE(StartPacing(kPatient));
  BeginPhase(PhaseKind::kCollective, 1);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool was_on = IsPacing();
    AwaitTurn(TrafficClass::kRepair, kChunk);
    ::_exit(was_on ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(IsPacing());
  StopPacing();
}

}  // namespace
}  // namespace ffrecord
