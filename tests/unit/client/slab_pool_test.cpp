// Goal: blocks of shared memory never overlap, come back, survive forks, and after a quarantine
// nothing that a daemon writes late is seen in them.
// Method: the pool alone, with a second mapping of its slabs in the part of the daemon; random
// takes and returns against a model; children.

#include "libffrecord/net/rpc/slab_pool.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "child.h"
#include "seed.h"

namespace {
std::function<void()> while_pages_move;
}

// In place of the C library's, for the whole program.
extern "C" void* mremap(void* old, std::size_t old_bytes, std::size_t new_bytes, int flags,
                        ...) noexcept {
  std::va_list more;
  va_start(more, flags);
  void* const place = (flags & MREMAP_FIXED) != 0 ? va_arg(more, void*) : nullptr;
  va_end(more);
  if (while_pages_move) while_pages_move();
  return reinterpret_cast<void*>(::syscall(SYS_mremap, old, old_bytes, new_bytes, flags, place));
}

namespace ffrecord::client {
namespace {

constexpr std::size_t kBlock = std::size_t{1} << 20;

void Fill(const PooledBuffer& block, int value) {
  std::memset(block->data(), value, block->size());
}
bool IsFilledWith(const PooledBuffer& block, int value) {
  return std::ranges::all_of(*block,
                             [&](std::byte byte) { return std::to_integer<int>(byte) == value; });
}

// The daemon's view of the slab that holds `block`.
std::shared_ptr<const net::RemoteSlab> MapAsDaemon(const net::SlabPool::Place& place) {
  UniqueFd fd(::fcntl(place.slab->memory.fd(), F_DUPFD_CLOEXEC, 0));
  return net::RemoteSlab::Map(std::move(fd), place.slab->memory.bytes().size()).value();
}

TEST(SlabPoolTest, ADaemonWritesWhereABlockIsReadFrom) {
  net::SlabPool pool;
  const auto other = pool.Take(kBlock).value();
  const auto block = pool.Take(kBlock - 100).value();
  ASSERT_EQ(block->size(), kBlock - 100);
  const auto place = pool.Find(block->subspan(7, 1000));
  ASSERT_TRUE(place);
  Fill(other, 1);

  const auto remote = MapAsDaemon(*place);
  std::memset(remote->At(place->offset_bytes, 1000).value().data(), 9, 1000);

  EXPECT_EQ((*block)[7], std::byte{9});
  EXPECT_EQ((*block)[1006], std::byte{9});
  EXPECT_EQ((*block)[1007], std::byte{0});
  EXPECT_TRUE(IsFilledWith(other, 1));
}

TEST(SlabPoolTest, OnlyBytesWithinOneBlockAreFound) {
  net::SlabPool pool;
  const auto first = pool.Take(kBlock).value();
  const auto second = pool.Take(kBlock).value();
  std::vector<std::byte> foreign(10);
  EXPECT_FALSE(pool.Find(foreign));
  EXPECT_TRUE(pool.Find(*first));
  EXPECT_FALSE(pool.Find({first->data() + 1, first->size()}));
  const auto* const gone = second->data();
  const_cast<PooledBuffer&>(second).reset();
  EXPECT_FALSE(pool.Find({gone, 10}));
}

TEST(SlabPoolTest, SmallAndHugeBlocksAreOrdinaryMemory) {
  net::SlabPool pool;
  const auto small = pool.Take(100).value();
  EXPECT_EQ(small->size(), 100U);
  EXPECT_FALSE(pool.Find(*small));
  std::vector<PooledBuffer> many;
  bool is_any_ordinary = false;
  for (int i = 0; i < 5; ++i) {  // More than all slabs together hold.
    many.push_back(pool.Take(net::SlabPool::kTotalBytesMax / 4).value());
    is_any_ordinary = is_any_ordinary || !pool.Find(*many.back());
  }
  EXPECT_TRUE(is_any_ordinary);
}

TEST(SlabPoolTest, RandomBlocksNeverOverlapAndTheirRoomIsUsedAgain) {
  std::mt19937 random(test::Seed());
  net::SlabPool pool;
  struct Held {
    PooledBuffer block;
    int value;
  };
  std::vector<Held> held;
  std::vector<std::uint64_t> slabs;
  for (int round = 0; round < 600; ++round) {
    if (held.size() < 12 && random() % 5 > 1) {
      const int value = static_cast<int>(random() % 256);
      held.push_back({pool.Take(kBlock / 8 + random() % kBlock).value(), value});
      Fill(held.back().block, value);
      const auto place = pool.Find(*held.back().block);
      ASSERT_TRUE(place);
      slabs.push_back(place->slab->number);
    } else if (!held.empty()) {
      const std::size_t index = random() % held.size();
      ASSERT_TRUE(IsFilledWith(held[index].block, held[index].value)) << round;
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(index));
    }
  }
  // 12 blocks of at most 1.2 MiB fit one slab if room is joined again, or two at the worst.
  std::sort(slabs.begin(), slabs.end());
  EXPECT_LE(std::unique(slabs.begin(), slabs.end()) - slabs.begin(), 2);
}

TEST(SlabPoolTest, AfterAQuarantineLateWritesAreNotSeenAndTheSlabIsNotUsedAgain) {
  net::SlabPool pool;
  auto block = pool.Take(kBlock).value();
  const auto neighbour = pool.Take(kBlock).value();
  Fill(block, 3);
  Fill(neighbour, 4);
  const auto place = pool.Find(*block).value();
  const std::uint64_t number = place.slab->number;
  const std::uint64_t neighbour_offset = pool.Find(*neighbour)->offset_bytes;
  const auto remote = MapAsDaemon(place);

  ASSERT_TRUE(pool.Quarantine(block->subspan(100, 50)));
  ASSERT_TRUE(pool.Quarantine(block->subspan(200, 50)));  // The same again: nothing.
  std::memset(remote->At(place.offset_bytes, kBlock).value().data(), 0xEE, kBlock);

  EXPECT_TRUE(IsFilledWith(block, 3));
  EXPECT_FALSE(pool.Find(*block));  // To be filled through the socket from now on.
  EXPECT_EQ(pool.quarantined_bytes(), kBlock);
  // Its neighbours in the slab, whose requests are in good order, stay what they are.
  EXPECT_EQ(pool.Find(*neighbour)->offset_bytes, neighbour_offset);
  EXPECT_TRUE(IsFilledWith(neighbour, 4));
  Fill(block, 5);
  block.reset();
  for (int i = 0; i < 20; ++i) {
    const auto fresh = pool.Take(kBlock).value();
    EXPECT_NE(pool.Find(*fresh)->slab->number, number);
  }
  std::memset(remote->At(place.offset_bytes, kBlock).value().data(), 0xEE, kBlock);
}

// As workers do that decompress records into the block of a batch while a connection breaks.
// Method: the write comes in the middle of it, each time that the kernel is asked to move the
// pages.
TEST(SlabPoolTest, WhatAThreadWritesWhileABlockIsPutInQuarantineIsKept) {
  net::SlabPool pool;
  const auto block = pool.Take(kBlock).value();
  Fill(block, 3);
  const auto place = pool.Find(*block).value();
  const auto remote = MapAsDaemon(place);
  int write_count = 0;
  while_pages_move = [&] {
    std::thread([&] { Fill(block, 4); }).join();
    ++write_count;
  };
  const auto put = pool.Quarantine(block->first(1));
  while_pages_move = nullptr;
  ASSERT_TRUE(put) << put.error().message;
  ASSERT_GT(write_count, 0) << "this test sees no other way to move pages";
  std::memset(remote->At(place.offset_bytes, kBlock).value().data(), 0xEE, kBlock);
  EXPECT_TRUE(IsFilledWith(block, 4));
}

TEST(SlabPoolTest, WhatAnotherDaemonWritesIntoABlockInQuarantineIsRecovered) {
  net::SlabPool pool;
  const auto block = pool.Take(kBlock).value();
  Fill(block, 3);
  const auto place = pool.Find(*block).value();
  const auto remote = MapAsDaemon(place);
  const auto count = pool.quarantine_count();
  ASSERT_TRUE(pool.Recover(block->first(10)));  // Not in quarantine: nothing.
  ASSERT_TRUE(pool.Quarantine(block->first(1)));
  EXPECT_GT(pool.quarantine_count(), count);

  std::memset(remote->At(place.offset_bytes + 5000, 9000).value().data(), 9, 9000);
  EXPECT_TRUE(IsFilledWith(block, 3));
  ASSERT_TRUE(pool.Recover(block->subspan(5000, 9000)));

  EXPECT_EQ((*block)[4999], std::byte{3});
  for (std::size_t i = 5000; i < 14'000; ++i) ASSERT_EQ((*block)[i], std::byte{9}) << i;
  EXPECT_EQ((*block)[14'000], std::byte{3});
}

TEST(SlabPoolTest, BlocksOutliveThePool) {
  PooledBuffer block;
  {
    net::SlabPool pool;
    block = pool.Take(kBlock).value();
    Fill(block, 6);
    ASSERT_TRUE(pool.Quarantine(*pool.Take(kBlock).value()));
  }
  EXPECT_TRUE(IsFilledWith(block, 6));
}

TEST(SlabPoolTest, AChildKeepsWhatItInheritedThoughTheParentLetsGoAndReadsOn) {
  auto& pool = net::SlabPool::Process();
  auto block = pool.Take(kBlock).value();
  Fill(block, 7);
  int to_child[2];
  ASSERT_EQ(::pipe2(to_child, O_CLOEXEC), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char go = 0;
    const bool is_told = ::read(to_child[0], &go, 1) == 1;
    bool is_good = is_told && IsFilledWith(block, 7);
    block.reset();
    // Its own pool works, and knows nothing of the parent's.
    const auto own = net::SlabPool::Process().Take(kBlock);
    is_good = is_good && own && net::SlabPool::Process().Find(*own.value());
    ::_exit(is_good ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  const std::uint64_t slab = pool.Find(*block)->slab->number;
  block.reset();
  for (int i = 0; i < 40; ++i) {
    const auto next = pool.Take(kBlock).value();
    EXPECT_NE(pool.Find(*next)->slab->number, slab);
    Fill(next, 8);
  }
  ASSERT_EQ(::write(to_child[1], "g", 1), 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  ::close(to_child[0]);
  ::close(to_child[1]);
}

}  // namespace
}  // namespace ffrecord::client
