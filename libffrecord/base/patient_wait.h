#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

#include "libffrecord/base/patience.h"
#include "libffrecord/base/timed_waits.h"

namespace ffrecord {

// Waits for `changed` until `until`, or until the thread's patience is over, and returns false if
// either has come; as with WaitUntil(), what is waited for may have come too. The caller is asked
// without the lock: to answer he may need what its holders need.
inline bool WaitPatiently(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                          Clock::time_point until) {
  Patience& patience = Patience::OfThread();
  if (patience.is_endless()) return WaitUntil(changed, lock, until) == std::cv_status::no_timeout;
  const auto step = Clock::now() + Patience::kInterval;
  const auto status = WaitUntil(changed, lock, std::min(until, step));
  if (status == std::cv_status::timeout && until <= step) return false;
  lock.unlock();
  const bool is_over = patience.IsOver();
  lock.lock();
  return !is_over;
}

// Sleeps until `until`, or until the thread's patience is over.
inline void SleepPatiently(Clock::time_point until) {
  Patience& patience = Patience::OfThread();
  if (patience.is_endless()) return SleepUntil(until);
  while (Clock::now() < until && !patience.IsOver())
    SleepUntil(std::min(until, Clock::now() + Patience::kInterval));
}

}  // namespace ffrecord
