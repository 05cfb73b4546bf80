#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace ffrecord {

// Whether it is worth looking for records in memory before reading them. After a wrong guess, in
// which the thread waited for pages, it says no for a number of batches, which grows with each
// wrong guess in a row. Thread-safe; a lost update costs only time.
class ResidentGuess {
 public:
  // Call it once for each batch.
  bool Try() noexcept {
    const std::uint32_t left = left_.load(std::memory_order_relaxed);
    if (left == 0) return true;
    left_.store(left - 1, std::memory_order_relaxed);
    return false;
  }

  void Wrong() noexcept {
    const std::uint32_t pause =
        std::clamp(2 * pause_.load(std::memory_order_relaxed), kPauseMin, kPauseMax);
    pause_.store(pause, std::memory_order_relaxed);
    left_.store(pause, std::memory_order_relaxed);
    was_right_.store(false, std::memory_order_relaxed);
  }

  // The batch was in memory, or enough of it.
  void Right() noexcept {
    if (was_right()) return;  // Not written again, because all threads read it.
    pause_.store(0, std::memory_order_relaxed);
    was_right_.store(true, std::memory_order_relaxed);
  }

  // It was not, and the thread found out without waiting.
  void Absent() noexcept {
    if (was_right()) was_right_.store(false, std::memory_order_relaxed);
  }

  // Whether the last batch was in memory.
  bool was_right() const noexcept { return was_right_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint32_t kPauseMin = 4;  // Batches.
  static constexpr std::uint32_t kPauseMax = 256;
  std::atomic<std::uint32_t> left_{0};
  std::atomic<std::uint32_t> pause_{0};
  std::atomic<bool> was_right_{false};
};

}  // namespace ffrecord
