#pragma once

#include <chrono>

#include "libffrecord/base/clock.h"

namespace ffrecord {

// The time that the calling thread has spent so far on handing reads to devices and on waiting for
// devices, peers and stores. Counted where it happens, once for each system call; who splits the
// time of a call into stages looks before and after it (record/read/stage_clock.h).
struct IoTimes {
  std::chrono::nanoseconds submit{0};
  std::chrono::nanoseconds device{0};

  static IoTimes& OfThread() noexcept {
    thread_local IoTimes times;
    return times;
  }
};

// Adds the time of a block to one of the thread's sums. Blocks of one thread must not be nested.
class TimedIo {
 public:
  explicit TimedIo(std::chrono::nanoseconds IoTimes::*sum) noexcept : sum_(sum) {}
  ~TimedIo() { IoTimes::OfThread().*sum_ += Clock::now() - begin_; }
  TimedIo(const TimedIo&) = delete;
  TimedIo& operator=(const TimedIo&) = delete;

 private:
  std::chrono::nanoseconds IoTimes::*const sum_;
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace ffrecord
