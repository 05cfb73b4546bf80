#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "libffrecord/base/timed_waits.h"

namespace ffrecord::test {

// Waits until `condition` holds: false after a minute, which means that it never will. With a
// VirtualClock, a minute of that one, and only once all other threads wait.
template <class Condition>
[[nodiscard]] bool Eventually(Condition condition) {
  constexpr std::chrono::seconds kTimeout{60};
  if (ClockSource* clock = ClockSource::installed(); clock != nullptr)
    return clock->waits().AwaitUntil(std::ref(condition), Clock::now() + kTimeout);
  for (const auto end = Clock::now() + kTimeout; !condition();) {
    if (Clock::now() > end) return condition();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace ffrecord::test
