// Goal: blocks come back to the pool when their last user lets go, and only then.
// Method: take blocks, watch the pool's counters.

#include "libffrecord/base/buffer_pool.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace ffrecord {
namespace {

TEST(BufferPoolTest, ABlockIsReusedAfterItsLastUserLetsGo) {
  auto& pool = BufferPool::Process();
  auto first = pool.Take(100'000).value();
  auto second_user = first;
  const void* address = first->data();
  first.reset();

  const auto other = pool.Take(100'000).value();
  EXPECT_NE(other->data(), address);

  second_user.reset();
  const auto again = pool.Take(99'000).value();
  EXPECT_EQ(again->data(), address);
  EXPECT_EQ(again->size(), 99'000U);
}

TEST(BufferPoolTest, BlocksAreAlignedAndHoldWhatWasAsked) {
  auto& pool = BufferPool::Process();
  for (std::size_t size = 0; size < (1U << 22); size = size * 5 / 4 + 1) {
    const auto block = pool.Take(size).value();
    ASSERT_EQ(block->size(), size);
    ASSERT_EQ(reinterpret_cast<std::uintptr_t>(block->data()) % BufferPool::kAlignment, 0U);
    std::fill(block->begin(), block->end(), std::byte{1});
  }
}

TEST(BufferPoolTest, AnImpossibleSizeIsAnError) {
  const auto block = BufferPool::Process().Take(std::size_t{1} << 60);
  ASSERT_FALSE(block);
  EXPECT_EQ(block.error().code, ErrorCode::kIo);
}

TEST(BufferPoolTest, ChildrenOfABusyProcessAreNotStuck) {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) EXPECT_TRUE(BufferPool::Process().Take(100));
  });
  for (int round = 0; round < 200; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);  // A child that is stuck dies of it.
      ::_exit(BufferPool::Process().Take(100) ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << round;
  }
  stop = true;
  busy.join();
}

}  // namespace
}  // namespace ffrecord
