#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <set>

#include "libffrecord/base/clock.h"

namespace ffrecord::server {

// How a disk answers: errors of reads, and operations that took too long. Thread-safe.
//
// If a disk failed or was slow a moment ago, others are better places for new extents. Its extents
// are read all the same.
class ReadHealth {
 public:
  // An operation of at most a MiB that takes longer says something about the disk: beyond what a
  // full queue of a hard disk costs.
  static constexpr std::chrono::milliseconds kSlow{2'000};
  // How long a fault is remembered.
  static constexpr std::chrono::minutes kRemembered{1};

  void NoteError() noexcept {
    error_count_.fetch_add(1, std::memory_order_relaxed);
    Remember();
  }
  void NoteTime(Clock::duration took) noexcept {
    if (took < kSlow) return;
    slow_count_.fetch_add(1, std::memory_order_relaxed);
    Remember();
  }

  // An operation that blocks, as long as this lives: one that never ends says something too.
  class Running {
   public:
    explicit Running(ReadHealth& health) : health_(health) {
      const std::lock_guard lock(health_.mutex_);
      place_ = health_.running_.insert(Clock::now());
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    ~Running() {
      health_.NoteTime(Clock::now() - *place_);
      const std::lock_guard lock(health_.mutex_);
      health_.running_.erase(place_);
    }

   private:
    ReadHealth& health_;
    std::multiset<Clock::time_point>::iterator place_;
  };

  std::uint64_t error_count() const noexcept {
    return error_count_.load(std::memory_order_relaxed);
  }
  std::uint64_t slow_count() const noexcept { return slow_count_.load(std::memory_order_relaxed); }
  bool is_suspect() const {
    const auto now = Clock::now();
    if (now.time_since_epoch().count() < suspect_until_.load(std::memory_order_relaxed))
      return true;
    const std::lock_guard lock(mutex_);
    return !running_.empty() && now - *running_.begin() >= kSlow;
  }

 private:
  void Remember() noexcept {
    const auto until = Clock::now() + kRemembered;
    suspect_until_.store(until.time_since_epoch().count(), std::memory_order_relaxed);
  }

  mutable std::mutex mutex_;
  std::multiset<Clock::time_point> running_;  // When each began.
  std::atomic<std::uint64_t> error_count_{0};
  std::atomic<std::uint64_t> slow_count_{0};
  std::atomic<Clock::rep> suspect_until_{Clock::time_point::min().time_since_epoch().count()};
};

}  // namespace ffrecord::server
