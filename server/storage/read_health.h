#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ffrecord::server {

// How a disk answers: errors of reads, and operations that took too long. Thread-safe; no lock.
//
// Of a disk that failed or was slow a moment ago, others are better places for what is new. What it
// has is read all the same.
class ReadHealth {
 public:
  using Clock = std::chrono::steady_clock;
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

  std::uint64_t error_count() const noexcept {
    return error_count_.load(std::memory_order_relaxed);
  }
  std::uint64_t slow_count() const noexcept { return slow_count_.load(std::memory_order_relaxed); }
  bool is_suspect() const noexcept {
    return Clock::now().time_since_epoch().count() < suspect_until_.load(std::memory_order_relaxed);
  }

 private:
  void Remember() noexcept {
    const auto until = Clock::now() + kRemembered;
    suspect_until_.store(until.time_since_epoch().count(), std::memory_order_relaxed);
  }

  std::atomic<std::uint64_t> error_count_{0};
  std::atomic<std::uint64_t> slow_count_{0};
  std::atomic<Clock::rep> suspect_until_{Clock::time_point::min().time_since_epoch().count()};
};

}  // namespace ffrecord::server
