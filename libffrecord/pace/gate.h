#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include <ffrecord/runtime.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/pace/pacer.h"

namespace ffrecord::pace {

// Where the process's storage traffic waits for its turn: the process's one Pacer, its signals and
// those that it holds. Thread-safe. See <ffrecord/runtime.h> for what programs call.

extern std::atomic<bool> g_is_on;

// Whether pacing is on: one load. Senders ask before they do anything else for it.
inline bool IsOn() noexcept { return g_is_on.load(std::memory_order_relaxed); }

// Waits until some of `size_bytes` may go, and returns how many: at least `least_size_bytes`, in
// one piece, and at most a chunk. Never waits longer than until `limit`. Returns `size_bytes` at
// once if pacing is off, or if the thread's patience is over.
std::uint64_t AwaitPart(TrafficClass traffic, std::uint64_t size_bytes,
                        std::uint64_t least_size_bytes,
                        Clock::time_point limit = Clock::time_point::max());
// The same for what cannot be cut.
inline void AwaitWhole(TrafficClass traffic, std::uint64_t size_bytes) {
  if (IsOn()) (void)AwaitPart(traffic, size_bytes, size_bytes);
}

// The class by which traffic of that class goes now: prefetch is urgent while a loader's queue is
// low, whether pacing is on or not.
TrafficClass Promoted(TrafficClass traffic) noexcept;

// The smallest part that is worth a frame of its own.
inline constexpr std::uint64_t kLeastPartBytes = 16 << 10;

// The turn of something that cannot wait for it, but asks again. Thread-bound.
class Turn {
 public:
  explicit Turn(TrafficClass traffic) noexcept { request_.traffic = traffic; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { Abandon(); }

  // Whether `size_bytes` may go now; all may if pacing is off. If not, ask again at until().
  bool Come(std::uint64_t size_bytes);
  Clock::time_point until() const noexcept { return until_; }
  // It waits no longer, and no longer counts as held.
  void Abandon();

 private:
  Pacer::Request request_;
  std::uint64_t pacer_ = 0;  // The pacer that holds it.
  Clock::time_point until_{};
};

// The class of what this thread transfers, as long as the object lives. A thread that says nothing
// reads what the program waits for, and uploads checkpoints.
class TrafficScope {
 public:
  explicit TrafficScope(TrafficClass reads) noexcept : outer_(std::exchange(reads_, reads)) {}
  TrafficScope(const TrafficScope&) = delete;
  TrafficScope& operator=(const TrafficScope&) = delete;
  ~TrafficScope() { reads_ = outer_; }

  static TrafficClass OfReads() noexcept { return reads_; }

 private:
  inline static thread_local TrafficClass reads_ = TrafficClass::kUrgent;
  const TrafficClass outer_;
};

}  // namespace ffrecord::pace
