#include "libffrecord/base/timed_waits.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

namespace ffrecord {
namespace {

TimedWaits* Installed() noexcept {
  ClockSource* source = ClockSource::installed();
  return source == nullptr ? nullptr : &source->waits();
}

timespec TimespecOf(std::chrono::nanoseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  return {seconds.count(), (time - seconds).count()};
}

}  // namespace

void SleepUntil(Clock::time_point until) {
  if (TimedWaits* waits = Installed(); waits != nullptr) return waits->SleepUntil(until);
  std::this_thread::sleep_until(until);
}

std::cv_status WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                         Clock::time_point until) {
  if (TimedWaits* waits = Installed(); waits != nullptr)
    return waits->WaitUntil(changed, lock, until);
  return changed.wait_until(lock, until);
}

int PollFor(std::span<pollfd> fds, std::chrono::nanoseconds timeout) {
  if (TimedWaits* waits = Installed(); waits != nullptr) return waits->Poll(fds, timeout);
  const timespec time = TimespecOf(std::max(timeout, std::chrono::nanoseconds(0)));
  return ::ppoll(fds.data(), fds.size(), &time, nullptr);
}

int EpollFor(int epoll, std::span<epoll_event> events, std::chrono::milliseconds timeout) {
  int left_ms = static_cast<int>(timeout.count());
  if (TimedWaits* waits = Installed(); waits != nullptr && left_ms > 0) {
    pollfd ready{epoll, POLLIN, 0};
    const int count = waits->Poll({&ready, 1}, timeout);
    if (count < 0) return count;
    left_ms = 0;
  }
  return ::epoll_wait(epoll, events.data(), static_cast<int>(events.size()), left_ms);
}

Result<ClockTimer> ClockTimer::Make() {
  UniqueFd timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer)
    return Error{ErrorCode::kIo, std::string("cannot make a timer: ") + std::strerror(errno),
                 errno};
  return ClockTimer(std::move(timer));
}

ClockTimer::~ClockTimer() {
  // Its number may soon be that of another descriptor.
  if (TimedWaits* waits = Installed(); waits != nullptr && timer_)
    waits->Arm(timer_.get(), Clock::time_point::max());
}

void ClockTimer::Set(Clock::time_point time) {
  if (TimedWaits* waits = Installed(); waits != nullptr) return waits->Arm(timer_.get(), time);
  itimerspec at{};  // Zero disarms it.
  if (time != Clock::time_point::max())
    at.it_value = TimespecOf(std::max(time.time_since_epoch(), Clock::duration(1)));
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &at, nullptr);
}

}  // namespace ffrecord
