#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "libffrecord/base/patience.h"

namespace ffrecord {

// Waits for `changed` until `until`, or until the thread's patience is over, and returns false if
// either has come; as with wait_until(), what is waited for may have come too. The caller is asked
// without the lock: to answer he may need what its holders need.
inline bool WaitPatiently(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                          std::chrono::steady_clock::time_point until) {
  Patience& patience = Patience::OfThread();
  if (patience.is_endless()) return changed.wait_until(lock, until) == std::cv_status::no_timeout;
  const auto step = std::chrono::steady_clock::now() + Patience::kInterval;
  const auto status = changed.wait_until(lock, std::min(until, step));
  if (status == std::cv_status::timeout && until <= step) return false;
  lock.unlock();
  const bool is_over = patience.IsOver();
  lock.lock();
  return !is_over;
}

// Sleeps until `until`, or until the thread's patience is over.
inline void SleepPatiently(std::chrono::steady_clock::time_point until) {
  Patience& patience = Patience::OfThread();
  if (patience.is_endless()) return std::this_thread::sleep_until(until);
  while (std::chrono::steady_clock::now() < until && !patience.IsOver())
    std::this_thread::sleep_until(
        std::min(until, std::chrono::steady_clock::now() + Patience::kInterval));
}

}  // namespace ffrecord
