#pragma once

#include <chrono>
#include <utility>

#include "libffrecord/base/clock.h"

namespace ffrecord::net {

// Notices that the owner of a queue, which lets it work now and then, was away: that time is none
// of its calls'. An owner that waits for the queue's descriptor is not away. Thread-bound.
class OwnerAbsence {
 public:
  // The owner is here. Returns for how long it was away; zero if it was not.
  Clock::duration End() {
    const auto now = Clock::now();
    const auto away = now - std::exchange(left_at_, now);
    return away < kAwayMin || now - kCalledMax < called_at_ ? Clock::duration{} : away;
  }
  void Begin() { left_at_ = Clock::now(); }
  // The descriptor calls the owner at that time at the latest.
  void set_called_at(Clock::time_point time) { called_at_ = time; }

 private:
  // An owner that does not come for longer than this is away,
  static constexpr std::chrono::milliseconds kAwayMin{100};
  // as is one that comes so much later than its descriptor has called it.
  static constexpr std::chrono::milliseconds kCalledMax{1'000};

  Clock::time_point left_at_{};
  Clock::time_point called_at_{};  // Nobody is called.
};

}  // namespace ffrecord::net
