#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>

#include "libffrecord/base/timed_waits.h"

namespace ffrecord::server {

// The rate at which one node copies extents from others, all of its copies together: a token
// bucket. Without a clock: callers say what time it is. Thread-safe.
class PullPace {
 public:
  using Time = Clock::time_point;

  // Time that was not used is made up for, up to so much: between two extents there is a pause.
  static constexpr std::chrono::milliseconds kUnusedMax{250};

  // Bytes per second; 0: as fast as it goes.
  explicit PullPace(std::uint64_t bytes_per_s) : bytes_per_s_(bytes_per_s) {}

  // So many bytes are about to be asked for: when they may be, perhaps in the past.
  Time Take(Time now, std::uint64_t bytes) {
    if (bytes_per_s_ == 0) return now;
    const auto cost = std::chrono::nanoseconds(static_cast<std::int64_t>(
        static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_s_)));
    const std::lock_guard lock(mutex_);
    const Time at = std::max(free_at_, now - kUnusedMax);
    free_at_ = at + cost;
    return at;
  }

 private:
  const std::uint64_t bytes_per_s_;
  std::mutex mutex_;
  Time free_at_{};  // When the bytes that were taken have had their time.
};

// The time that copies go by; tests have one of their own. Both are called from any thread.
struct PullClock {
  std::function<PullPace::Time()> now = [] { return Clock::now(); };
  // Waits for so long at most.
  std::function<void(PullPace::Time::duration)> sleep = [](PullPace::Time::duration time) {
    SleepFor(time);
  };
};

}  // namespace ffrecord::server
