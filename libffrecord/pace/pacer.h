#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <ffrecord/result.h>
#include <ffrecord/runtime.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/pace/open_phases.h"
#include "libffrecord/pace/timeline.h"

namespace ffrecord::pace {

// Decides when a chunk of storage traffic may go beside the phases of a training: signals in,
// answers out. A state machine without threads, clocks or system calls.
//
// A chunk that is not urgent goes only in a gap, and only if it ends before the predicted begin of
// the next phase. A prediction that is too late costs at most the chunk that is under way when the
// phase begins: the begin itself holds the next one. A prediction that is too early costs a gap
// some chunks. Floors and longest holds bound what any signal, true or not, can do to a class.
//
// Allocates nothing. Thread-bound.
class Pacer {
 public:
  // A transfer that asks to go. Lives until it has passed or was abandoned.
  struct Request {
    TrafficClass traffic = TrafficClass::kUrgent;
    std::uint64_t size_bytes = 0;
    std::uint64_t least_size_bytes = 0;  // Size of a part, from 1 on; `size_bytes` if it has none.
    Clock::time_point limit = Clock::time_point::max();  // It is not held longer.
    Clock::time_point asked{};
    bool is_held = false;  // The machine's.
  };
  enum class Why : std::uint8_t { kUrgent, kPromoted, kStale, kExpired, kFloor, kGap };
  struct Answer {
    std::uint64_t size_bytes = 0;  // So much may go now; 0: it is held
    Clock::time_point until;       // until then, or until a signal comes.
    Why why = Why::kGap;
  };

  static Result<void> Check(const PacingOptions& options);

  // Requires that Check() has found nothing.
  Pacer(const PacingOptions& options, Clock::time_point now);

  // --- Signals. Their times may be those of any thread: a time before the last one is taken as
  // that.
  void BeginPhase(PhaseKind kind, std::uint64_t size_bytes, Clock::time_point now);
  void EndPhase(PhaseKind kind, Clock::time_point now);
  void EndStep(Clock::time_point now);
  // Sets how many loaders have a low queue.
  void SetLowQueues(std::size_t count) noexcept { low_queues_ = count; }
  void LoseSignals(std::uint64_t count, Clock::time_point now);

  // --- Traffic.
  Answer Ask(Request& request, Clock::time_point now);
  void Abandon(Request& request);

  bool is_in_phase() const noexcept { return open_count_ > 0; }
  bool has_low_queue() const noexcept { return low_queues_ > 0; }
  PacingCounters counters() const;

 private:
  struct Class {
    double floor_bytes_per_s = 0;
    Clock::duration longest_hold{};
    double tokens = 0;  // Bytes that the floor lets pass at `counted`; may be below 0.
    Clock::time_point counted;
    std::size_t waiting = 0;
  };
  // One direction: reads come, uploads go.
  struct Link {
    Clock::time_point is_free;        // When the next chunk may follow, in a gap.
    Clock::time_point is_busy_until;  // When what has passed in this gap has gone.
  };

  Class& ClassOf(TrafficClass traffic) { return classes_[static_cast<std::size_t>(traffic)]; }
  Link& LinkOf(TrafficClass traffic) { return links_[traffic == TrafficClass::kPrefetch ? 0 : 1]; }
  PacingCounters::Class& CountersOf(TrafficClass traffic) {
    return counters_.classes[static_cast<std::size_t>(traffic)];
  }

  void Signalled(Clock::time_point now);
  void Advance(Clock::time_point now);
  void StartAnew(Clock::time_point now);
  void ExpirePhases();
  void EndPhases(std::size_t count);

  bool AreSignalsStale() const;
  Clock::duration TwoSteps(Clock::duration otherwise) const;
  bool IsHigherWaiting(TrafficClass traffic) const;
  std::uint64_t PartOf(const Request& request) const;
  std::uint64_t BytesIn(Clock::duration time) const;
  Clock::duration TimeOf(double size_bytes) const;

  Answer AskInGap(Request& request, Clock::time_point due);
  Answer AskFloor(Request& request, Clock::time_point until);
  Answer Pass(Request& request, std::uint64_t size_bytes, Why why);
  Answer Hold(Request& request, Clock::time_point until);
  void RefillFloor(Class& held);
  void ChargeFloor(Class& held, std::uint64_t size_bytes);
  void ChargeLink(Link& link, std::uint64_t size_bytes);

  const PacingOptions options_;
  const double link_bytes_per_s_;  // A default if it is not known.
  std::array<Class, kTrafficClassCount> classes_;

  Clock::time_point now_;
  Clock::time_point last_signal_;
  std::array<OpenPhases, kPhaseKindCount> open_;
  std::size_t open_count_ = 0;  // Open phases of all kinds.
  Timeline timeline_;
  std::size_t low_queues_ = 0;
  std::array<Link, 2> links_;
  PacingCounters counters_;
};

}  // namespace ffrecord::pace
