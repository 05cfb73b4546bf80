// Goal: work that is shared with workers is done once and whole, whatever becomes of the process.
// Method: pieces that count, and that wait for each other; forked children; work after exit() has
// begun.

#include "libffrecord/base/shared_work.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace ffrecord {
namespace {

constexpr std::size_t kPieceCount = 2000;

// Whether every piece of some work was done once, on slots that exist.
bool DoesAllOnce(std::uint32_t worker_count_max) {
  std::vector<std::atomic<int>> done(kPieceCount);
  std::atomic<bool> slots_exist{true};
  SharedWork work(worker_count_max, [&](std::size_t piece, std::uint32_t slot) {
    ++done[piece];
    if (slot > worker_count_max) slots_exist = false;
  });
  if (work.worker_count() > worker_count_max) return false;
  for (std::size_t ready = 100; ready <= kPieceCount; ready += 100) work.Ready(ready);
  work.Finish();
  return slots_exist && std::ranges::all_of(done, [](const auto& count) { return count == 1; });
}

TEST(SharedWorkTest, EveryPieceIsDoneOnce) {
  for (const std::uint32_t worker_count_max : {0U, 1U, 3U, 15U, 1000U})
    EXPECT_TRUE(DoesAllOnce(worker_count_max)) << worker_count_max;
}

TEST(SharedWorkTest, AWorkerWorksBesideTheThreadThatHasTheWork) {
  std::barrier both(2);
  std::atomic<std::uint32_t> slots{0};
  SharedWork work(1, [&](std::size_t, std::uint32_t slot) {
    both.arrive_and_wait();  // One thread alone would never leave.
    slots |= 1U << slot;
  });
  if (work.worker_count() == 0) GTEST_SKIP() << "one processor: there are no workers";
  work.Ready(2);
  work.Finish();
  EXPECT_EQ(slots, 3U);
}

TEST(SharedWorkTest, WhatIsDestroyedHasNobodyAtWorkAnyMore) {
  for (int round = 0; round < 50; ++round) {
    auto room = std::make_unique<std::vector<std::size_t>>(kPieceCount);
    {
      SharedWork work(15, [&](std::size_t piece, std::uint32_t) { (*room)[piece] = piece; });
      work.Ready(kPieceCount);
    }
    room.reset();  // A sanitizer would see a worker that writes there now.
  }
}

TEST(SharedWorkTest, ManyThreadsShareTheWorkers) {
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) right += DoesAllOnce(15) ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 120);
}

// The status with which a forked child that does this ends.
template <class Run>
int InChild(Run run) {
  const pid_t child = ::fork();
  if (child == 0) run();
  int status = -1;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST(SharedWorkTest, ChildForkedInTheMiddleHasWorkersOfItsOwn) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer's allocator may be locked for ever in a child of many threads";
#endif
  ASSERT_TRUE(DoesAllOnce(15));
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) EXPECT_TRUE(DoesAllOnce(15));
  });
  for (int round = 0; round < 10; ++round)
    EXPECT_EQ(InChild([] { ::_exit(DoesAllOnce(15) ? 7 : 8); }), 7);
  stop = true;
  busy.join();
}

TEST(SharedWorkTest, AfterExitHasBegunWorkIsDoneWithoutWorkers) {
  EXPECT_EQ(InChild([] {
              // Runs after what the pool registers later.
              static_cast<void>(std::atexit([] { ::_exit(DoesAllOnce(15) ? 7 : 8); }));
              if (!DoesAllOnce(15)) ::_exit(9);
              std::exit(0);
            }),
            7);
}

}  // namespace
}  // namespace ffrecord
