#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

#include <ffrecord/client/collective.h>

namespace ffrecord::client {

// Counters that other threads may read at any time, what they may set, and what they may take.
struct ExchangeCounters {
  std::atomic<std::uint64_t> bytes_sent{0};
  std::atomic<std::uint64_t> bytes_received{0};
  std::atomic<std::uint64_t> bytes_shared{0};
  std::atomic<std::uint64_t> operations{0};
  std::atomic<std::uint64_t> reduce_ns{0};
  std::atomic<std::uint32_t> streams_lost{0};
  std::atomic<std::uint32_t> streams_used{0};  // At most so many to each peer; 0: all.

  CollectiveEngine::Stats stats() const noexcept;

  // Adds an event for people: which stream was lost, and why. The newest kEventsMax.
  void Tell(std::string text);
  std::vector<CollectiveEngine::Event> events() const;

 private:
  static constexpr std::size_t kEventsMax = 1000;
  mutable std::mutex mutex_;
  std::deque<CollectiveEngine::Event> events_;
};

}  // namespace ffrecord::client
