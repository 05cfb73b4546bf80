#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"

namespace ffrecord {

// Fails with kInvalidArgument unless 1 <= depth <= 4096.
inline Result<void> CheckDepth(std::uint32_t depth) {
  constexpr std::uint32_t kDepthMax = 4096;
  if (depth >= 1 && depth <= kDepthMax) return {};
  return Error{ErrorCode::kInvalidArgument,
               "I/O engine: depth is " + std::to_string(depth) + ", must be 1 to 4096"};
}

// When a wait must end. A timeout of a year or more never passes.
class Deadline {
 public:
  static constexpr std::chrono::nanoseconds kForever = std::chrono::nanoseconds::max();

  explicit Deadline(std::chrono::milliseconds timeout)
      : forever_(timeout >= std::chrono::hours(24 * 365)),
        end_(forever_ ? Clock::time_point::max()
                      : Clock::now() + std::max(timeout, std::chrono::milliseconds(0))) {}

  bool forever() const noexcept { return forever_; }
  Clock::time_point end() const noexcept { return end_; }

  // 0 or more; kForever if it never passes.
  std::chrono::nanoseconds left() const {
    if (forever_) return kForever;
    return std::max(std::chrono::nanoseconds(end_ - Clock::now()), std::chrono::nanoseconds(0));
  }

 private:
  bool forever_;
  Clock::time_point end_;
};

}  // namespace ffrecord
