#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "libffrecord/base/clock.h"

namespace ffrecord {

// Whether a long call goes on: its caller is asked now and then, and never by a short one. Cheap
// enough to be looked at in every iteration of a loop.
//
// Thread-bound, and lives on the stack: as long as it does, it is also that of what the thread
// waits for further down, such as a daemon's answer about an index. The youngest counts.
class Patience {
 public:
  using GiveUp = std::function<bool()>;
  // At least so much lies between the beginning and the first question, and between two of them.
  static constexpr std::chrono::milliseconds kInterval{50};

  // Asks `give_up`, which is borrowed; empty is without end.
  explicit Patience(const GiveUp& give_up) : outer_(std::exchange(youngest_, this)) {
    if (!give_up) return;
    give_up_ = &give_up;
    asked_ = Clock::now();
  }
  explicit Patience(GiveUp&&) = delete;
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;
  ~Patience() {
    if (this != &Endless()) youngest_ = outer_;
  }

  // The youngest of this thread; where there is none, one without end.
  static Patience& OfThread() noexcept { return youngest_ != nullptr ? *youngest_ : Endless(); }

  // Asks the caller, if that is due. Once it is over it stays so.
  bool IsOver() {
    if (over_ || give_up_ == nullptr) return over_;
    if (Clock::now() - asked_ < kInterval) return false;
    over_ = (*give_up_)();
    asked_ = Clock::now();
    return over_;
  }

  // The caller's last answer; asks nobody.
  bool was_over() const noexcept { return over_; }
  bool is_endless() const noexcept { return give_up_ == nullptr; }

 private:
  Patience() = default;
  static Patience& Endless() noexcept {
    thread_local Patience endless;
    return endless;
  }

  inline static thread_local Patience* youngest_ = nullptr;
  Patience* const outer_ = nullptr;

  const GiveUp* give_up_ = nullptr;
  Clock::time_point asked_;
  bool over_ = false;
};

}  // namespace ffrecord
