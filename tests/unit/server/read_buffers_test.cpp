// Goal: the memory of a worker's reads is used again without a word to the rest of the process, and
// is no more than it may keep.
// Method: buffers taken, filled and given back in every order, and the process's pool looked at.

#include "server/service/read/read_buffers.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "seed.h"

namespace ffrecord::server {
namespace {

TEST(ReadBuffersTest, WhatComesBackIsTakenAgain) {
  ReadBuffers buffers;
  const std::byte* const first = buffers.Take(100'000).value()->data();
  const std::size_t used_bytes = BufferPool::Process().used_bytes();
  for (const std::size_t size : {100'000U, 99'999U, 98'305U}) {  // All of one block's size.
    const auto again = buffers.Take(size).value();
    EXPECT_EQ(again->data(), first);
    EXPECT_EQ(again->size(), size);
    EXPECT_EQ(buffers.idle_bytes(), 0U);
  }
  EXPECT_EQ(BufferPool::Process().used_bytes(), used_bytes);
}

TEST(ReadBuffersTest, SizesThatDifferByMuchShareNoBlock) {
  ReadBuffers buffers;
  (void)buffers.Take(1 << 20).value();
  const std::uint64_t idle_bytes = buffers.idle_bytes();
  const auto small = buffers.Take(4096).value();
  EXPECT_EQ(small->size(), 4096U);
  EXPECT_EQ(buffers.idle_bytes(), idle_bytes);
}

TEST(ReadBuffersTest, NoMoreThanTheBoundIsKept) {
  const std::size_t before = BufferPool::Process().used_bytes();
  ReadBuffers buffers;
  std::vector<PooledBuffer> taken;
  for (std::uint64_t sum = 0; sum < 2 * ReadBuffers::kIdleBytesMax; sum += 1 << 20)
    taken.push_back(buffers.Take(1 << 20).value());
  taken.clear();
  EXPECT_EQ(buffers.idle_bytes(), ReadBuffers::kIdleBytesMax);
  EXPECT_EQ(BufferPool::Process().used_bytes() - before, ReadBuffers::kIdleBytesMax);
}

TEST(ReadBuffersTest, ABufferOutlivesItsWorkerAndThenAllIsGivenBack) {
  const std::size_t before = BufferPool::Process().used_bytes();
  auto buffers = std::make_unique<ReadBuffers>();
  auto kept = buffers->Take(50'000).value();
  (void)buffers->Take(50'000).value();
  buffers = nullptr;
  std::memset(kept->data(), 1, kept->size());
  kept = nullptr;
  EXPECT_EQ(BufferPool::Process().used_bytes(), before);
}

TEST(ReadBuffersTest, BuffersInUseNeverShareMemory) {
  std::mt19937 random(test::Seed());
  ReadBuffers buffers;
  std::vector<std::pair<PooledBuffer, std::byte>> taken;
  for (int i = 0; i < 2000; ++i) {
    if (taken.size() > 20 || (!taken.empty() && random() % 2 == 0)) {
      const std::size_t at = random() % taken.size();
      for (const std::byte byte : *taken[at].first) ASSERT_EQ(byte, taken[at].second);
      taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(at));
      continue;
    }
    auto buffer = buffers.Take(1 + random() % 20'000).value();
    const auto mark = static_cast<std::byte>(i);
    std::memset(buffer->data(), i & 0xff, buffer->size());
    taken.emplace_back(std::move(buffer), mark);
  }
}

}  // namespace
}  // namespace ffrecord::server
