#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "libffrecord/base/clock.h"

namespace ffrecord::pace {

// When the network has been needed in the last steps, and when it will be needed next if this step
// goes like those. Step by step it keeps the gaps between phases; the first one of a step begins
// where the last phase before it has ended. A prediction begins anew at each end of a phase, so a
// step that is slower as a whole moves it, and an error in one gap does not outlive that gap.
//
// Times must not fall. Allocates nothing. Thread-bound.
class Timeline {
 public:
  // When the next phase is to begin, by the shortest and the longest of the same gap.
  struct Forecast {
    Clock::time_point earliest;
    Clock::time_point latest;
  };
  static constexpr std::size_t kStepsKept = 3;
  // Later gaps of a step are not predicted: some hundred layers, forwards and backwards.
  static constexpr std::size_t kGapsMax = 1024;

  explicit Timeline(Clock::time_point now) : idle_since_(now) {}

  // The network begins to be needed, and ceases to be.
  void BeginPhase(Clock::time_point now);
  void EndPhase(Clock::time_point now) { idle_since_ = now; }
  void EndStep(Clock::time_point now);
  // Signals were lost: what was learned, and the step that is under way, do not count.
  void Forget(Clock::time_point now);

  // Requires that no phase is under way. None for a gap that fewer than two steps had.
  std::optional<Forecast> NextPhase() const;
  // The time of the longest step that is kept.
  std::optional<Clock::duration> step_time() const;

 private:
  struct Step {
    Clock::duration time{};
    std::size_t gap_count = 0;
    std::array<Clock::duration, kGapsMax> gaps{};
  };

  std::array<Step, kStepsKept + 1> steps_;  // With the one under way.
  std::size_t current_ = 0;
  std::size_t kept_count_ = 0;
  std::optional<Clock::time_point> step_began_;  // None before the first EndStep().
  Clock::time_point idle_since_;
};

}  // namespace ffrecord::pace
