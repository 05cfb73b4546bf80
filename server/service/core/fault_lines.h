#pragma once

#include <chrono>
#include <cstdint>

#include "libffrecord/base/clock.h"

namespace ffrecord::server {

// Which connections at fault get a line in the log: the first few of each interval. A client that
// fails thousands of times a second would else fill the disk, and hide all other lines. Those
// without a line are counted. Thread-bound.
class FaultLines {
 public:
  using Time = Clock::time_point;

  static constexpr std::chrono::seconds kInterval{10};
  static constexpr std::uint64_t kLinesMax = 10;  // In an interval.

  // Whether this fault gets a line.
  bool Take(Time now) {
    if (now >= end_ && unsaid_count_ == 0) {
      end_ = now + kInterval;
      line_count_ = 0;
    }
    if (line_count_ < kLinesMax && now < end_) {
      ++line_count_;
      return true;
    }
    ++unsaid_count_;
    return false;
  }

  // How many got none in an interval that is over, each told of once; 0 while it lasts.
  std::uint64_t TakeUnsaid(Time now) {
    if (now < end_) return 0;
    const std::uint64_t count = unsaid_count_;
    unsaid_count_ = 0;
    return count;
  }

 private:
  Time end_{};  // End of the interval.
  std::uint64_t line_count_ = 0;
  std::uint64_t unsaid_count_ = 0;
};

}  // namespace ffrecord::server
