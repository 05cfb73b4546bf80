#pragma once

#include <atomic>
#include <chrono>
#include <ctime>

namespace ffrecord {

class TimedWaits;

// Another clock for the whole process; tests install one (tests/support/virtual_clock.h). Its
// functions are called from all threads.
class ClockSource {
 public:
  virtual std::chrono::steady_clock::time_point Now() const noexcept = 0;
  virtual std::chrono::system_clock::time_point WallNow() const noexcept = 0;
  virtual TimedWaits& waits() noexcept = 0;

  // The source that Install() set last; null is the machine's clock.
  static ClockSource* installed() noexcept { return installed_.load(std::memory_order_acquire); }
  // `source` lives as long as any thread may use it. Requires that no thread is in a timed wait.
  static void Install(ClockSource* source) noexcept {
    installed_.store(source, std::memory_order_release);
  }

 protected:
  ~ClockSource() = default;

 private:
  inline static std::atomic<ClockSource*> installed_{nullptr};
};

// The time that all deadlines, pauses and measurements of the product go by. State machines take
// `now` as a parameter; the code that drives them reads it here. Time points are those of
// steady_clock.
//
// Waits with a deadline are in timed_waits.h. Costs one load beside the machine's clock.
struct Clock {
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;

  static time_point now() noexcept {
    if (const ClockSource* source = ClockSource::installed(); source != nullptr) [[unlikely]]
      return source->Now();
    return std::chrono::steady_clock::now();
  }
};

// The calendar's time, for what other machines or people read: tokens, certificates, signatures.
struct WallClock {
  using duration = std::chrono::system_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::system_clock::time_point;
  static constexpr bool is_steady = false;

  static std::time_t to_time_t(time_point time) noexcept {
    return std::chrono::system_clock::to_time_t(time);
  }
  static time_point from_time_t(std::time_t time) noexcept {
    return std::chrono::system_clock::from_time_t(time);
  }
  static time_point now() noexcept {
    if (const ClockSource* source = ClockSource::installed(); source != nullptr) [[unlikely]]
      return source->WallNow();
    return std::chrono::system_clock::now();
  }
};

}  // namespace ffrecord
