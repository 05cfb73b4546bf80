#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "libffrecord/base/clock.h"

namespace ffrecord::pace {

// The phases of one kind that have begun and not ended. An end is that of the youngest: what is
// left of phases that overlap is then the oldest begin, and a phase whose end was lost grows old at
// the bottom instead of being renewed by every phase that overlaps it.
//
// Allocates nothing. Thread-bound.
class OpenPhases {
 public:
  static constexpr std::size_t kCountMax = 256;

  std::size_t count() const noexcept { return count_; }

  // Beyond kCountMax a phase's begin is forgotten, and its end finds no phase.
  bool Begin(Clock::time_point now) noexcept {
    if (count_ == kCountMax) return false;
    begins_[count_++] = now;
    return true;
  }
  // False if none is open.
  bool End() noexcept {
    if (count_ == 0) return false;
    --count_;
    return true;
  }
  // Drops those that have begun before `limit`; returns how many.
  std::size_t Expire(Clock::time_point limit) noexcept {
    const std::span<Clock::time_point> open = std::span(begins_).first(count_);
    const auto kept = std::ranges::find_if(open, [&](auto begin) { return begin >= limit; });
    const auto expired = static_cast<std::size_t>(kept - open.begin());
    if (expired == 0) return 0;
    std::ranges::copy(open.subspan(expired), open.begin());
    count_ -= expired;
    return expired;
  }

 private:
  std::array<Clock::time_point, kCountMax> begins_{};
  std::size_t count_ = 0;
};

}  // namespace ffrecord::pace
