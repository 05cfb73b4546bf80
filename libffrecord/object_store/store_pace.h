#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/hedge_budget.h"

namespace ffrecord::object_store {

// How many requests one process has under way at a store, and when it asks a second time for what
// takes too long. Thread-safe.
//
// A store that says "slow down" halves the limit, at most once in a while; answers raise it again.
class StorePace {
 public:
  using Duration = std::chrono::milliseconds;
  static constexpr double kInFlightMax = 256;

  // Whether one more request may begin. A call that has none under way may always begin one.
  bool MayBegin(bool has_others) {
    const std::scoped_lock lock(mutex_);
    if (has_others && in_flight_ >= limit_) return false;
    ++in_flight_;
    return true;
  }
  void Ended() {
    const std::scoped_lock lock(mutex_);
    --in_flight_;
  }

  void Answered(Clock::duration first_byte_after) {
    const std::scoped_lock lock(mutex_);
    const double ms = std::chrono::duration<double, std::milli>(first_byte_after).count();
    const double error = ms - mean_ms_;
    mean_ms_ = samples_ == 0 ? ms : mean_ms_ + error / 8;
    deviation_ms_ += ((error < 0 ? -error : error) - deviation_ms_) / 4;
    if (samples_ == 0) deviation_ms_ = ms / 2;
    samples_ = std::min(samples_ + 1, kSamplesMin);
    hedges_.Earn(1);
    limit_ = std::min(limit_ + 1 / limit_, kInFlightMax);
  }
  void Throttled() {
    const std::scoped_lock lock(mutex_);
    const auto now = Clock::now();
    if (now - throttled_ < kThrottleInterval) return;
    throttled_ = now;
    limit_ = std::max(limit_ / 2, 1.0);
  }

  // After this time without a byte an answer is late: nearly all others came sooner.
  Duration LateAfter() const {
    const std::scoped_lock lock(mutex_);
    if (samples_ < kSamplesMin) return kLateUnknown;
    const auto late = static_cast<std::int64_t>(2 * mean_ms_ + 8 * deviation_ms_);
    return std::clamp(Duration(late), kLateMin, kLateUnknown);
  }
  // Whether a late answer may be asked for a second time: few are, so that a slow store does not
  // get more work.
  bool MayHedge() {
    const std::scoped_lock lock(mutex_);
    if (in_flight_ >= limit_ || !hedges_.Take()) return false;
    ++in_flight_;
    return true;
  }

 private:
  static constexpr int kSamplesMin = 16;
  static constexpr std::uint64_t kHedgesMax = 16;  // Saved up.
  static constexpr Duration kLateUnknown{2000};
  static constexpr Duration kLateMin{50};
  static constexpr Duration kThrottleInterval{200};

  mutable std::mutex mutex_;
  double in_flight_ = 0;
  double limit_ = kInFlightMax;
  double mean_ms_ = 0;
  double deviation_ms_ = 0;
  int samples_ = 0;
  HedgeBudget hedges_{kHedgesMax, kHedgesMax / 2};
  Clock::time_point throttled_{};
};

}  // namespace ffrecord::object_store
