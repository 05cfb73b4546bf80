#include "libffrecord/pace/timeline.h"

#include <algorithm>

namespace ffrecord::pace {

void Timeline::BeginPhase(Clock::time_point now) {
  Step& step = steps_[current_];
  if (step.gap_count < kGapsMax) step.gaps[step.gap_count++] = now - idle_since_;
}

void Timeline::EndStep(Clock::time_point now) {
  if (step_began_) {
    steps_[current_].time = now - *step_began_;
    current_ = (current_ + 1) % steps_.size();
    kept_count_ = std::min(kept_count_ + 1, kStepsKept);
  }
  steps_[current_].gap_count = 0;
  step_began_ = now;
}

void Timeline::Forget(Clock::time_point now) {
  steps_[current_].gap_count = 0;
  kept_count_ = 0;
  step_began_.reset();
  idle_since_ = now;
}

std::optional<Timeline::Forecast> Timeline::NextPhase() const {
  const std::size_t gap = steps_[current_].gap_count;
  if (!step_began_ || gap >= kGapsMax) return std::nullopt;
  auto shortest = Clock::duration::max();
  auto longest = Clock::duration::zero();
  std::size_t found = 0;
  for (std::size_t back = 1; back <= kept_count_; ++back) {
    const Step& step = steps_[(current_ + steps_.size() - back) % steps_.size()];
    if (gap >= step.gap_count) continue;
    shortest = std::min(shortest, step.gaps[gap]);
    longest = std::max(longest, step.gaps[gap]);
    ++found;
  }
  if (found < 2) return std::nullopt;
  return Forecast{idle_since_ + shortest, idle_since_ + longest};
}

std::optional<Clock::duration> Timeline::step_time() const {
  if (kept_count_ == 0) return std::nullopt;
  auto longest = Clock::duration::zero();
  for (std::size_t back = 1; back <= kept_count_; ++back)
    longest = std::max(longest, steps_[(current_ + steps_.size() - back) % steps_.size()].time);
  return longest;
}

}  // namespace ffrecord::pace
