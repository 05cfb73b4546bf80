#include "libffrecord/net/rpc/rails.h"

#include <unistd.h>

#include <algorithm>

namespace ffrecord::net {
namespace {

constexpr std::chrono::milliseconds kPauseMin{30'000};
constexpr std::chrono::milliseconds kPauseMax{600'000};

}  // namespace

// Processes that have a connection each, such as workers of a loader, begin at different ones.
Rails::Rails() : next_(static_cast<std::size_t>(::getpid())) {}

Result<std::vector<std::size_t>> Rails::Order(const RdmaOptions& options, bool all) {
  const std::lock_guard lock(mutex_);
  if (!rails_) {
    rails_ = FFR_TRY(RdmaRails::Open(options));
    pauses_.resize(rails_->count());
  }
  const std::size_t first = next_++;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < rails_->count(); ++i) order.push_back((first + i) % rails_->count());
  const auto paused = std::stable_partition(order.begin(), order.end(),
                                            [&](std::size_t rail) { return !pauses_[rail].end; });
  if (!all) order.erase(paused, order.end());
  if (order.empty()) return Error{ErrorCode::kUnavailable, "it did not work a moment ago"};
  return order;
}

void Rails::Worked(std::size_t rail) {
  const std::lock_guard lock(mutex_);
  pauses_[rail] = {};
}

void Rails::Failed(std::size_t rail) {
  const std::lock_guard lock(mutex_);
  Pause& pause = pauses_[rail];
  pause.length = std::clamp(2 * pause.length, kPauseMin, kPauseMax);
  pause.end = Clock::now() + pause.length;
}

bool Rails::HasReturned() {
  const std::lock_guard lock(mutex_);
  bool has_returned = false;
  for (Pause& pause : pauses_) {
    if (!pause.end || Clock::now() < *pause.end) continue;
    pause.end.reset();
    has_returned = true;
  }
  return has_returned;
}

}  // namespace ffrecord::net
