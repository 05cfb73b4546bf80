// Goal: each wait of the product ends at its time, by the machine's clock and by a test's; a test's
// clock goes on only while all threads wait, and a thread that has something to do is done first.
// Method: each wait under both clocks; threads that pass a token, hold a lock, or are busy while
// time would pass.

#include "libffrecord/base/clock.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/patient_wait.h"
#include "libffrecord/base/timed_waits.h"
#include "virtual_clock.h"

namespace ffrecord {
namespace {

using namespace std::chrono_literals;
using test::VirtualClock;

// By both clocks. Waits are so long that a real one would be noticed.
class ClockTest : public testing::TestWithParam<bool> {
 protected:
  const bool is_virtual_ = GetParam();
  std::optional<VirtualClock> clock_ =
      is_virtual_ ? std::make_optional<VirtualClock>() : std::nullopt;
  const Clock::duration time_ = is_virtual_ ? Clock::duration(10h) : Clock::duration(5ms);
  const Clock::time_point begin_ = Clock::now();

  Clock::duration passed() const { return Clock::now() - begin_; }
  void ExpectItsTime() const {
    EXPECT_GE(passed(), time_);
    if (is_virtual_) {
      EXPECT_LT(passed(), time_ + 1s);
    }
  }
};

TEST_P(ClockTest, ASleepEnds) {
  SleepFor(time_);
  ExpectItsTime();
}

TEST_P(ClockTest, AWaitForAConditionEndsAtItsTime) {
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  while (WaitUntil(changed, lock, begin_ + time_) == std::cv_status::no_timeout) continue;
  EXPECT_TRUE(lock.owns_lock());
  ExpectItsTime();
  EXPECT_FALSE(WaitFor(changed, lock, time_, [] { return false; }));
}

TEST_P(ClockTest, AWaitForAConditionEndsOnceItIsSo) {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_so = false;
  std::jthread other([&] {
    const std::lock_guard lock(mutex);
    is_so = true;
    changed.notify_one();
  });
  std::unique_lock lock(mutex);
  EXPECT_TRUE(WaitFor(changed, lock, 100h, [&] { return is_so; }));
  EXPECT_LT(passed(), 100h);
}

TEST_P(ClockTest, APollEndsAtItsTime) {
  const EventFd event = EventFd::Make().value();
  pollfd waited{event.fd(), POLLIN, 0};
  EXPECT_EQ(PollFor({&waited, 1}, time_), 0);
  EXPECT_EQ(waited.revents, 0);
  ExpectItsTime();
  EXPECT_EQ(PollFor({&waited, 1}, 0ms), 0);
  EXPECT_EQ(PollFor({&waited, 1}, -1ms), 0) << "a time that has passed";
}

TEST_P(ClockTest, APollEndsOnceSomethingHasCome) {
  const EventFd event = EventFd::Make().value();
  std::jthread other([&] { event.Ring(); });
  pollfd waited{event.fd(), POLLIN, 0};
  EXPECT_EQ(PollFor({&waited, 1}, 100h), 1);
  EXPECT_EQ(waited.revents, POLLIN);
  EXPECT_LT(passed(), 100h);
}

TEST_P(ClockTest, AnEpollEndsAtItsTimeAndOnceSomethingHasCome) {
  const UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  const EventFd event = EventFd::Make().value();
  epoll_event wanted{.events = EPOLLIN, .data = {.u64 = 7}};
  ASSERT_EQ(::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, event.fd(), &wanted), 0);
  std::array<epoll_event, 4> events{};
  EXPECT_EQ(EpollFor(epoll.get(), events, std::chrono::ceil<std::chrono::milliseconds>(time_)), 0);
  ExpectItsTime();
  std::jthread other([&] { event.Ring(); });
  EXPECT_EQ(EpollFor(epoll.get(), events, 1h), 1);
  const std::uint64_t told = events[0].data.u64;  // The kernel packs the struct.
  EXPECT_EQ(told, 7U);
  EXPECT_EQ(EpollFor(epoll.get(), events, -1ms), 1) << "without end";
}

TEST_P(ClockTest, ATimerIsReadableAtItsTime) {
  ClockTimer timer = ClockTimer::Make().value();
  pollfd waited{timer.fd(), POLLIN, 0};
  timer.Set(begin_ + time_);
  if (is_virtual_) {  // Otherwise this test may be late.
    EXPECT_EQ(PollFor({&waited, 1}, time_ / 2), 0);
  }
  EXPECT_EQ(PollFor({&waited, 1}, 1000 * time_), 1);
  ExpectItsTime();
  EXPECT_EQ(PollFor({&waited, 1}, 0ms), 1) << "until it is set anew";
  timer.Set(Clock::time_point::max());
  EXPECT_EQ(PollFor({&waited, 1}, time_), 0);
  timer.Set(begin_);  // In the past.
  EXPECT_EQ(PollFor({&waited, 1}, 1000 * time_), 1);
}

TEST_P(ClockTest, AWaitForAFutureEndsAtItsTimeAndOnceItIsReady) {
  std::promise<void> promise;
  const auto result = promise.get_future();
  EXPECT_FALSE(WaitUntil(result, begin_ + time_));
  ExpectItsTime();
  std::jthread other([&] { promise.set_value(); });
  EXPECT_TRUE(WaitUntil(result, begin_ + 100h));
  EXPECT_LT(passed(), 100h);
}

TEST_P(ClockTest, ACallerIsAskedWhileAWaitLasts) {
  int questions = 0;
  const Patience::GiveUp give_up = [&] { return ++questions == 3; };
  Patience patience(give_up);
  SleepPatiently(begin_ + 100h);
  EXPECT_EQ(questions, 3);
  EXPECT_GE(passed(), 3 * Patience::kInterval);
}

INSTANTIATE_TEST_SUITE_P(Clocks, ClockTest, testing::Bool(), [](const auto& is_virtual) {
  return is_virtual.param ? "Virtual" : "Machine";
});

TEST(VirtualClockTest, TimeStandsStillWhileAThreadRuns) {
  VirtualClock clock;
  std::atomic<bool> has_slept = false;
  std::jthread sleeper([&] {
    SleepFor(1ms);
    has_slept = true;
  });
  const auto begin = Clock::now();
  for (const auto end = std::chrono::steady_clock::now() + 50ms;
       std::chrono::steady_clock::now() < end;)
    EXPECT_EQ(Clock::now(), begin);
  EXPECT_FALSE(has_slept);
  clock.RunFor(1ms);
  EXPECT_TRUE(has_slept);
}

TEST(VirtualClockTest, AllThatIsDueIsDoneBeforeTimeGoesOn) {
  VirtualClock clock;
  const auto begin = Clock::now();
  constexpr int kThreads = 8;
  constexpr int kRounds = 20;
  std::array<EventFd, kThreads> token;
  for (EventFd& event : token) event = EventFd::Make().value();
  std::atomic<int> turns = 0;
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        pollfd waited{token[i].fd(), POLLIN, 0};
        ASSERT_EQ(PollFor({&waited, 1}, 1h), 1);
        token[i].Clear();
        EXPECT_EQ(Clock::now(), begin + turns / kThreads * 1min);
        if (++turns % kThreads != 0) token[i + 1].Ring();
      }
    });
  for (int round = 0; round < kRounds; ++round) {
    token[0].Ring();
    clock.RunFor(1min);
    EXPECT_EQ(turns, kThreads * (round + 1));
  }
}

TEST(VirtualClockTest, AThreadThatIsDueMayWaitForALockUntilLater) {
  VirtualClock clock;
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> is_held = false;
  std::jthread waiting([&] {
    std::unique_lock lock(mutex);
    is_held = true;
    (void)WaitFor(changed, lock, 1s, [] { return false; });
  });
  while (!is_held) std::this_thread::yield();
  const auto begin = Clock::now();
  {
    const std::lock_guard lock(mutex);
    SleepFor(10s);
  }
  waiting.join();
  EXPECT_EQ(Clock::now(), begin + 10s);
}

TEST(VirtualClockTest, TheCalendarGoesOnToo) {
  VirtualClock clock;
  const auto begin = WallClock::now();
  clock.RunFor(24h);
  EXPECT_GE(WallClock::now() - begin, 24h);
  EXPECT_LT(WallClock::now() - begin, 25h);
}

}  // namespace
}  // namespace ffrecord
