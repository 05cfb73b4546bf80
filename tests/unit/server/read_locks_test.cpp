// Goal: event loops that serve reads wait for no lock that another event loop takes too.
// Method: this program's own pthread_mutex_lock notes which mutexes the threads that call
// epoll_wait take, while clients of two event loops read what is in memory, and what goes
// through the engine.

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "server_peers.h"

#if defined(__SANITIZE_THREAD__)
#define FFRECORD_UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FFRECORD_UNDER_TSAN 1
#endif
#endif

namespace {

// Which event loops have taken which mutexes; no lock, and no memory is asked for.
class TakenMutexes {
 public:
  void Note(const void* mutex, int loop) noexcept {
    if (!is_noting_.load(std::memory_order_acquire)) return;
    count_.fetch_add(1, std::memory_order_relaxed);
    const auto address = reinterpret_cast<std::uintptr_t>(mutex);
    for (std::size_t i = address / 8; i < address / 8 + kCountMax; ++i) {
      Entry& entry = entries_[i % kCountMax];
      std::uintptr_t found = 0;
      if (!entry.mutex.compare_exchange_strong(found, address) && found != address) continue;
      entry.loops.fetch_or(1U << loop);
      return;
    }
  }
  void Begin() {
    for (Entry& entry : entries_) {
      entry.mutex = 0;
      entry.loops = 0;
    }
    count_ = 0;
    is_noting_ = true;
  }
  // How many of them more than one loop has taken.
  std::size_t End() {
    is_noting_ = false;
    std::size_t count = 0;
    for (const Entry& entry : entries_) {
      const unsigned loops = entry.loops;
      count += (loops & (loops - 1)) != 0 ? 1 : 0;
    }
    return count;
  }
  std::size_t taken_count() const { return count_; }

 private:
  static constexpr std::size_t kCountMax = 4096;
  struct Entry {
    std::atomic<std::uintptr_t> mutex{0};
    std::atomic<unsigned> loops{0};
  };
  std::atomic<bool> is_noting_{false};
  std::atomic<std::size_t> count_{0};
  std::array<Entry, kCountMax> entries_;
};

TakenMutexes taken_mutexes;
std::atomic<int> loop_count{0};
// Of this thread; unused where the functions below are not replaced.
[[maybe_unused]] thread_local int loop = -1;

}  // namespace

#ifndef FFRECORD_UNDER_TSAN

// In place of the C library's, for the whole program.
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static std::atomic<int (*)(pthread_mutex_t*)> real{nullptr};
  auto* lock = real.load(std::memory_order_relaxed);
  if (lock == nullptr) {
    lock = reinterpret_cast<int (*)(pthread_mutex_t*)>(::dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    real.store(lock, std::memory_order_relaxed);
  }
  if (loop >= 0) taken_mutexes.Note(mutex, loop);
  return lock(mutex);
}
extern "C" int epoll_wait(int fd, epoll_event* events, int count, int timeout) {
  if (loop < 0) loop = loop_count++ % 32;
  return static_cast<int>(::syscall(SYS_epoll_pwait, fd, events, count, timeout, nullptr, 8));
}

#endif

namespace ffrecord::server {
namespace {

class ReadLocksTest : public ServerTest {
 protected:
  static constexpr std::uint32_t kBatches = 50;

  void SetUp() override {
#ifdef FFRECORD_UNDER_TSAN
    GTEST_SKIP() << "the sanitizer has these functions to itself";
#endif
  }

  // Reads on a connection of each event loop, after as much as makes everything known.
  void ReadOnAllLoops(const Daemon& daemon) {
    std::vector<std::unique_ptr<Channel>> channels;
    for (int i = 0; i < 4; ++i) channels.push_back(ConnectTo(daemon));
    ASSERT_TRUE(Put(*channels[0], id_, std::string(4 << 20, 'd')));
    net::BatchRead batch;
    for (std::uint32_t i = 0; i < 200; ++i) batch.entries.push_back({0, i * 20'000, 5000, 0});
    const auto read_all = [&](std::uint32_t count) {
      std::vector<std::thread> clients;
      for (auto& channel : channels)
        clients.emplace_back([this, &channel, &batch, count] {
          for (std::uint32_t i = 0; i < count; ++i) {
            const auto request = channel->Send(FrameType::kBatchRead, batch.Encode());
            ASSERT_TRUE(request);
            const auto read = Receive(*channel, request.value(), batch.entries.size());
            ASSERT_TRUE(read) << read.error().message;
            ASSERT_EQ(read.value().done.ok_count, batch.entries.size());
          }
        });
      for (std::thread& client : clients) client.join();
    };
    for (auto& channel : channels)
      ASSERT_TRUE(channel->Call(FrameType::kExtentBind, net::ExtentBind{0, {id_}}.Encode(), {},
                                Soon(), "a binding"));
    read_all(kBatches);
    taken_mutexes.Begin();
    read_all(kBatches);
    EXPECT_EQ(taken_mutexes.End(), 0U);
  }
};

TEST_F(ReadLocksTest, WhatIsInMemoryIsSentWithoutACommonLock) { ReadOnAllLoops(daemon_); }

TEST_F(ReadLocksTest, WhatTheEngineReadsTakesNoCommonLock) {
  const Daemon through_engine{{.mapped_count_max = 0}};
  ReadOnAllLoops(through_engine);
}

// Else the others could not fail.
TEST_F(ReadLocksTest, ALockThatTwoLoopsTakeIsSeen) {
  std::vector<std::unique_ptr<Channel>> channels;
  for (int i = 0; i < 2; ++i) channels.push_back(Connect());
  taken_mutexes.Begin();
  // Listing is a job for the pool, which all loops share.
  for (auto& channel : channels)
    ASSERT_TRUE(
        channel->Call(FrameType::kList, net::List{10, "", ""}.Encode(), {}, Soon(), "names"));
  EXPECT_GT(taken_mutexes.End(), 0U);
}

}  // namespace
}  // namespace ffrecord::server
