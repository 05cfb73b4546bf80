#include "client/collective/exchange_counters.h"

#include <chrono>
#include <utility>

#include "libffrecord/base/clock.h"

namespace ffrecord::client {

CollectiveEngine::Stats ExchangeCounters::stats() const noexcept {
  return {
      bytes_sent.load(std::memory_order_relaxed),   bytes_received.load(std::memory_order_relaxed),
      bytes_shared.load(std::memory_order_relaxed), operations.load(std::memory_order_relaxed),
      reduce_ns.load(std::memory_order_relaxed),    streams_lost.load(std::memory_order_relaxed)};
}

void ExchangeCounters::Tell(std::string text) {
  const auto now = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
  const std::lock_guard lock(mutex_);
  if (events_.size() == kEventsMax) events_.pop_front();
  events_.push_back({now, std::move(text)});
}

std::vector<CollectiveEngine::Event> ExchangeCounters::events() const {
  const std::lock_guard lock(mutex_);
  return {events_.begin(), events_.end()};
}

}  // namespace ffrecord::client
