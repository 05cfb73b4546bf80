#pragma once

#include <poll.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <span>
#include <utility>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/unique_fd.h"

struct epoll_event;

namespace ffrecord {

// The waits of a ClockSource. Each function does what the free function of its name does.
class TimedWaits {
 public:
  virtual void SleepUntil(Clock::time_point until) = 0;
  virtual std::cv_status WaitUntil(std::condition_variable& changed,
                                   std::unique_lock<std::mutex>& lock, Clock::time_point until) = 0;
  // Returns whether `is_done`, which is asked again and again, says so by `until`.
  virtual bool AwaitUntil(const std::function<bool()>& is_done, Clock::time_point until) = 0;
  virtual int Poll(std::span<pollfd> fds, std::chrono::nanoseconds timeout) = 0;
  // Makes the timerfd `timer` readable at `time`; max() disarms it.
  virtual void Arm(int timer, Clock::time_point time) = 0;

 protected:
  ~TimedWaits() = default;
};

void SleepUntil(Clock::time_point until);
inline void SleepFor(Clock::duration time) { SleepUntil(Clock::now() + time); }

// As changed.wait_until(lock, until): may return early without a reason.
std::cv_status WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                         Clock::time_point until);

// Returns what `is_done` says at the end.
template <class IsDone>
bool WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
               Clock::time_point until, IsDone is_done) {
  while (!is_done())
    if (WaitUntil(changed, lock, until) == std::cv_status::timeout) return is_done();
  return true;
}

template <class IsDone>
bool WaitFor(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
             Clock::duration timeout, IsDone is_done) {
  return WaitUntil(changed, lock, Clock::now() + timeout, std::move(is_done));
}

// Whether `result`, a std::future, is ready by `until`.
template <class Future>
bool WaitUntil(const Future& result, Clock::time_point until) {
  using Status = decltype(result.wait_until(until));
  const auto is_ready = [&] { return result.wait_for(Clock::duration(0)) == Status::ready; };
  if (ClockSource* source = ClockSource::installed(); source != nullptr)
    return source->waits().AwaitUntil(is_ready, until);
  return result.wait_until(until) == Status::ready;
}

// As ppoll(2) without a signal mask: how many are ready, 0 after `timeout`, -1 with errno set.
int PollFor(std::span<pollfd> fds, std::chrono::nanoseconds timeout);

// As epoll_wait(2), in milliseconds; a negative `timeout` is without end.
int EpollFor(int epoll, std::span<epoll_event> events, std::chrono::milliseconds timeout);

// A descriptor that becomes readable at a time. Thread-bound.
class ClockTimer {
 public:
  ClockTimer() = default;  // None: fd() is -1.
  static Result<ClockTimer> Make();
  ClockTimer(ClockTimer&&) noexcept = default;
  ClockTimer& operator=(ClockTimer&& other) noexcept {
    std::swap(timer_, other.timer_);
    return *this;
  }
  ~ClockTimer();

  int fd() const noexcept { return timer_.get(); }
  // Readable from `time` on, until the next call; max() is never.
  void Set(Clock::time_point time);

 private:
  explicit ClockTimer(UniqueFd timer) noexcept : timer_(std::move(timer)) {}

  UniqueFd timer_;
};

}  // namespace ffrecord
