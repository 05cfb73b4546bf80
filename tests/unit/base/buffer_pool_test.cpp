// Goal: blocks come back to the pool when their last user lets go, and only then.
// Method: take blocks, watch the pool's counters.

#include "libffrecord/base/buffer_pool.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>
#include <string>

#include <atomic>
#include <thread>
#include <vector>

#include <ffrecord/memory.h>

namespace ffrecord {
namespace {

// Puts the cap back.
struct CapGuard {
  std::uint64_t before = GetMemoryUse().cap_bytes;
  ~CapGuard() { SetMemoryCap(before); }
};

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

TEST(BufferPoolTest, AnIdleBlockServesRequestsOfMoreThanHalfOfIt) {
  const CapGuard guard;
  SetMemoryCap(0);  // Nothing is idle.
  SetMemoryCap(guard.before);
  auto& pool = BufferPool::Process();
  constexpr std::size_t kSize = std::size_t{24} << 20;
  auto whole = pool.Take(kSize).value();
  auto half = pool.Take(kSize / 2).value();
  const void* const whole_address = whole->data();
  const void* const half_address = half->data();
  whole.reset();
  half.reset();

  half = pool.Take(kSize / 2).value();
  const std::size_t used_bytes = pool.used_bytes();
  whole = pool.Take(kSize / 2 + 1).value();

  EXPECT_EQ(half->data(), half_address);
  EXPECT_EQ(whole->data(), whole_address);
  EXPECT_EQ(pool.used_bytes() - used_bytes, kSize);  // As large as it is.
}

TEST(BufferPoolTest, NoMoreIsKeptThanWasLatelyInUseAtOnce) {
  auto& pool = BufferPool::Process();
  constexpr std::size_t kSize = std::size_t{8} << 20;
  std::vector<PooledBuffer> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.Take(kSize).value());
  blocks.clear();
  EXPECT_GE(pool.idle_bytes(), 4 * kSize);

  const void* address = nullptr;
  for (int turn = 0; turn < 1000; ++turn) {
    const auto block = pool.Take(kSize).value();
    EXPECT_TRUE(address == nullptr || address == block->data());
    address = block->data();
  }
  EXPECT_EQ(pool.idle_bytes() + pool.used_bytes(), kSize);
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

TEST(MemoryCapTest, IdleBlocksGoFirstAndThenTakingFails) {
  const CapGuard guard;
  auto& pool = BufferPool::Process();
  constexpr std::size_t kSize = std::size_t{8} << 20;
  {
    const auto one = pool.Take(kSize).value();
    const auto two = pool.Take(2 * kSize).value();
  }
  ASSERT_GE(GetMemoryUse().idle_bytes, 3 * kSize);

  SetMemoryCap(4 * kSize);
  EXPECT_LE(GetMemoryUse().used_bytes + GetMemoryUse().idle_bytes, 4 * kSize);
  const auto first = pool.Take(3 * kSize);  // Room for it only if what is idle goes.
  ASSERT_TRUE(first);
  EXPECT_LE(GetMemoryUse().used_bytes + GetMemoryUse().idle_bytes, 4 * kSize);
  const auto second = pool.Take(2 * kSize);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kIo);
  EXPECT_EQ(second.error().system_errno, ENOMEM);
  EXPECT_NE(second.error().message.find("the cap is " + std::to_string(4 * kSize)),
            std::string::npos)
      << second.error().message;
  EXPECT_TRUE(pool.Take(kSize));
}

TEST(MemoryCapTest, OneBlockAlwaysFits) {
  const CapGuard guard;
  SetMemoryCap(0);
  EXPECT_EQ(GetMemoryUse().idle_bytes, 0U);
  {
    const auto block = BufferPool::Process().Take(std::size_t{1} << 20);
    EXPECT_TRUE(block);
    EXPECT_FALSE(BufferPool::Process().Take(1));
  }
  EXPECT_EQ(GetMemoryUse().idle_bytes, 0U);  // Not kept: there is no room for it.
}

TEST(MemoryCapTest, FreedBlocksAreCountedByTheirWholeSize) {
  const CapGuard guard;
  auto& pool = BufferPool::Process();
  SetMemoryCap(0);
  SetMemoryCap(guard.before);
  for (std::size_t size = 1; size < (std::size_t{64} << 20); size = size * 5 / 4 + 1)
    pool.Take(size).value().reset();
  EXPECT_GT(GetMemoryUse().idle_bytes, 0U);
  SetMemoryCap(0);
  EXPECT_EQ(GetMemoryUse().idle_bytes, 0U);
}

TEST(BufferPoolTest, LargeBlocksBeginAtAHugePage) {
  const auto block = BufferPool::Process().Take(std::size_t{5} << 20).value();
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block->data()) % (std::size_t{2} << 20), 0U);
}

}  // namespace
}  // namespace ffrecord
