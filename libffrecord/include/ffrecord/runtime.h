#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord {

// How storage gives way to the communication of a training process. A program signals the phases
// in which it needs the network; while pacing is on, the process's prefetch, checkpoint and repair
// traffic waits for the gaps between them. Pacing is off by default.
//
//   StartPacing({});
//   for (...) {             // Each step:
//     BeginPhase(PhaseKind::kCollective, size_bytes);
//     AllReduce(...);
//     EndPhase(PhaseKind::kCollective);
//     EndStep();
//   }
//
// CollectiveEngine signals its own operations. All state belongs to the process; a forked child
// begins with pacing off. All functions are thread-safe.

// Why a phase needs the network.
enum class PhaseKind : std::uint8_t {
  kCollective = 0,    // All ranks of a group exchange data.
  kPointToPoint = 1,  // Two ranks do, as the stages of a pipeline.
  kOther = 2,
};
inline constexpr std::size_t kPhaseKindCount = 3;

// The purpose of a transfer of storage.
enum class TrafficClass : std::uint8_t {
  kUrgent = 0,      // The program waits for it now. It is never held.
  kPrefetch = 1,    // Reads ahead of the program. Urgent while a loader's queue is low.
  kCheckpoint = 2,  // Saves, and other uploads.
  kRepair = 3,      // Copies that nobody waits for.
};
inline constexpr std::size_t kTrafficClassCount = 4;

// --- Signals. While pacing is off, those of phases and steps cost one load. While it is on, each
// takes less than 2 us as a rule, allocates nothing and never waits for another thread.

// A phase begins. Phases may nest and overlap, in one thread and in several: the network counts as
// needed from the first begin to the last end. `size_bytes` is what this rank is about to exchange,
// 0 if that is not known.
FFR_EXPORT void BeginPhase(PhaseKind kind, std::uint64_t size_bytes) noexcept;
// One phase of that kind ends. Ignored, and counted, if none is open.
FFR_EXPORT void EndPhase(PhaseKind kind) noexcept;
// A step of the training ends. The times of the next step's phases are predicted from those of the
// last steps.
FFR_EXPORT void EndStep() noexcept;
// A loader's queue of batches has become low, or is no longer low. Each loader reports each change
// once; while any of them is low, prefetch is urgent.
FFR_EXPORT void ReportLoaderQueue(bool is_low) noexcept;

// --- Control.

struct PacingOptions {
  // The limits that keep a class from starving, whatever the signals say.
  struct Class {
    std::uint64_t floor_bytes_per_s = 0;          // It gets at least this rate; 0: no floor.
    std::chrono::milliseconds longest_hold{500};  // No chunk waits longer; 1 ms to 1 minute.
  };
  Class prefetch{std::uint64_t{4} << 20, std::chrono::milliseconds(100)};
  Class checkpoint{std::uint64_t{1} << 20, std::chrono::milliseconds(500)};
  Class repair{std::uint64_t{256} << 10, std::chrono::milliseconds(2000)};

  // The rate of the link that phases and storage share. If it is known, all classes together send
  // no faster in the gaps, so that no queue is left in the network when a phase begins. 0: unknown.
  std::uint64_t link_bytes_per_s = 0;
  // The largest transfer between two decisions; 16 KiB to 2 MiB.
  std::uint32_t chunk_size_bytes = 256 << 10;
  // A phase that has not ended for this long, or for two steps, no longer counts.
  std::chrono::milliseconds phase_limit{30'000};
  // Until the duration of a step is known: without a signal for this long, everything passes.
  std::chrono::milliseconds stale_after{10'000};
};

// Turns pacing on, with new options and new counters.
//
// Fails with kInvalidArgument if an option is out of range; then nothing changes.
FFR_EXPORT Result<void> StartPacing(const PacingOptions& options);
// Turns pacing off; all that is held passes at once. Counters stay until the next StartPacing().
FFR_EXPORT void StopPacing() noexcept;
FFR_EXPORT bool IsPacing() noexcept;

// Waits until a transfer of `size_bytes` of that class may begin: for transfers that this library
// does not make, such as copies from a device. Pass at most `chunk_size_bytes` each time. Returns
// at once if pacing is off. Never waits longer than the class's `longest_hold`.
FFR_EXPORT void AwaitTurn(TrafficClass traffic, std::uint64_t size_bytes);
// The same for a caller that may change its mind: asks `give_up` every 50 ms or more, in this
// thread and without a lock. Returns false if `give_up` has said true.
FFR_EXPORT bool AwaitTurn(TrafficClass traffic, std::uint64_t size_bytes,
                          const std::function<bool()>& give_up);

// How the operator's network treats a class: the marks on the packets of its TCP connections.
// Marks order traffic only where the network is set up for them.
struct TrafficMark {
  static constexpr std::uint8_t kDscpMax = 63;
  static constexpr std::uint8_t kPriorityMax = 6;  // Larger ones need CAP_NET_ADMIN.

  std::optional<std::uint8_t> dscp{};  // In the IP header; none: 0.
  // SO_PRIORITY, by which this machine's queues and VLAN tags go; none: 0.
  std::optional<std::uint8_t> priority{};

  bool operator==(const TrafficMark&) const = default;
};
struct TrafficMarks {
  std::array<TrafficMark, kTrafficClassCount> classes{};  // By TrafficClass.
  TrafficMark collectives{};
};
// Sets the marks of this process, for connections of storage that begin to transfer from now on and
// for collective groups that are made from now on. Before the first call nothing is marked. Each
// end marks what it sends, so a client and its daemons need the same marks. Over RDMA, the traffic
// class and service level of the connection hold instead.
//
// Fails with kInvalidArgument if a mark is out of range; then nothing changes.
FFR_EXPORT Result<void> SetTrafficMarks(const TrafficMarks& marks);

// Since StartPacing().
struct PacingCounters {
  struct Class {
    std::uint64_t chunks = 0;  // Passed, in all,
    std::uint64_t size_bytes = 0;
    std::uint64_t held_chunks = 0;  // and how many of them had to wait, for how long.
    std::uint64_t held_size_bytes = 0;
    double held_s = 0;
    std::uint64_t held_now = 0;       // Chunks that wait at the moment.
    std::uint64_t expired_holds = 0;  // Passed because of `longest_hold`.
    std::uint64_t floor_chunks = 0;   // Passed outside a gap because of the floor rate.
    std::uint64_t stale_chunks = 0;   // Passed because the signals were too old.
  };
  std::array<Class, kTrafficClassCount> classes;  // By TrafficClass.
  std::uint64_t phases = 0;
  std::uint64_t phase_size_bytes = 0;
  std::uint64_t steps = 0;
  std::uint64_t expired_phases = 0;     // Never ended, or too late.
  std::uint64_t unmatched_ends = 0;     // Ends of phases that were not open.
  std::uint64_t lost_signals = 0;       // Too many at once.
  std::uint64_t promotions = 0;         // Chunks of prefetch that a low queue made urgent.
  std::uint64_t overlapped_chunks = 0;  // Passed in a gap and under way when a phase began.
};

FFR_EXPORT PacingCounters GetPacingCounters();

}  // namespace ffrecord
