#include "server/service/cluster/waiters.h"

#include <algorithm>
#include <utility>

namespace ffrecord::server {

using cluster::TimePoint;

void Waiters::Add(std::function<bool()> is_reached, TimePoint deadline, Done done) {
  waiters_.push_back({std::move(is_reached), deadline, std::move(done)});
}

void Waiters::Answer(TimePoint now) {
  for (auto at = waiters_.begin(); at != waiters_.end();) {
    const bool is_reached = at->is_reached();
    if (!is_reached && now < at->deadline) {
      ++at;
      continue;
    }
    const auto done = std::move(at->done);
    at = waiters_.erase(at);
    if (is_reached)
      done({});
    else
      done(Error{ErrorCode::kDeadlineExceeded, "this node does not show it yet; try again"});
  }
}

void Waiters::AnswerAll(const Error& why) {
  while (!waiters_.empty())
    for (const Waiter& waiter : std::exchange(waiters_, {})) waiter.done(why);
}

TimePoint Waiters::wake() const {
  TimePoint wake = TimePoint::max();
  for (const Waiter& waiter : waiters_) wake = std::min(wake, waiter.deadline);
  return wake;
}

}  // namespace ffrecord::server
