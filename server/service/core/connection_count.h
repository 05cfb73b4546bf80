#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "libffrecord/base/timed_waits.h"

namespace ffrecord::server {

// How many connections a daemon has. Thread-safe; touched when one comes or goes.
class ConnectionCount {
 public:
  // One more, unless there are `count_max` already.
  bool Add(std::uint32_t count_max) {
    const std::lock_guard lock(mutex_);
    if (count_ >= count_max) return false;
    ++count_;
    return true;
  }
  void Remove() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) none_.notify_all();
  }
  std::uint32_t value() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  // Waits until there are none. False at the deadline.
  bool WaitNone(Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    return WaitUntil(none_, lock, deadline, [this] { return count_ == 0; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable none_;
  std::uint32_t count_ = 0;
};

}  // namespace ffrecord::server
