#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include <ffrecord/client/collective.h>

#include "client/collective/machines.h"
#include "client/collective/schedule.h"
#include "libffrecord/base/clock.h"

namespace ffrecord::client {

// A collective that was submitted. `data` is borrowed until it has ended.
struct Operation {
  std::uint64_t sequence;  // Counts up by one.
  std::byte* data;
  Plan plan;
  ReduceType type;
  ReduceOp op;
  std::uint64_t chunk_size_bytes;  // The same on all ranks; at most the group's.

  std::byte* At(std::uint64_t element) const;
  // "all-reduce 7 (sum of 100 f32)".
  std::string Describe() const;
};

// The facts that all ranks of a group share, and which of them this one is.
struct ExchangeGroup {
  std::uint32_t rank;
  std::uint32_t world_size;
  std::uint64_t chunk_size_bytes;
  WireType wire;
  std::uint16_t streams;
  std::chrono::milliseconds timeout;
  Machines machines;

  // How often a rank that waits looks around, and tells others.
  std::chrono::milliseconds tick() const;
  bool IsRounded(const Operation& operation) const;          // It crosses as halves.
  std::uint64_t WireSize(const Operation& operation) const;  // Bytes of an element.
};

// How far a transfer has come.
struct Progress {
  std::uint64_t next = 0;  // All before is queued (sends) or placed (arrivals).
  bool is_done = false;
  std::vector<std::optional<std::uint64_t>> checks{};  // Checksums of copied pieces.
  // Placed beyond, for streams are not equally fast: ascending, and apart from each other.
  std::vector<Range> ahead{};

  bool Covers(Range range) const;
  void Note(Range piece, const Range& all);
};

// An operation that has started.
struct ActiveOperation {
  Operation operation;
  Schedule schedule;
  std::vector<Progress> sends;     // As schedule.sends.
  std::vector<Progress> arrivals;  // As schedule.arrivals.
  std::size_t sends_from = 0;      // All before are done.
  std::size_t arrivals_from = 0;
  std::size_t sends_open = 0;
  std::size_t arrivals_open = 0;
  std::uint64_t pieces_in_flight = 0;  // That borrow its array.
  Clock::time_point began;
  Clock::time_point deadline;  // Meaningful while it is first in line.

  bool has_ended() const { return sends_open == 0 && arrivals_open == 0 && pieces_in_flight == 0; }
  // Whether all that comes to `piece` before `step` has been placed.
  bool HasArrived(std::uint32_t step, const Range& piece) const;
  // Whether all that is sent from `piece` in `step` and before has been given to a stream.
  bool WasGiven(std::uint32_t step, const Range& piece) const;
  void NoteGiven(std::size_t send, const Range& piece);
  void NoteArrived(std::size_t arrival, const Range& piece);
  // The check of what only passes through this rank: it was computed when that piece came.
  std::optional<std::uint64_t> KnownCheck(const Transfer& send, std::uint64_t piece_index) const;
};

// The operations of a rank, in their order, and how far each has come.
class Operations {
 public:
  explicit Operations(const ExchangeGroup& group) : group_(group) {}

  void Submit(const Operation& operation) { submitted_.push_back(operation); }
  bool has_submitted() const { return !submitted_.empty(); }
  // The next one, if it may start now: those before have given all they send to streams.
  ActiveOperation* Start(Clock::time_point now);

  struct Ended {
    std::uint64_t sequence;
    Clock::time_point began;
  };
  // Removes the oldest one, which has ended.
  Ended TakeOldest(Clock::time_point now);

  bool empty() const { return active_.empty(); }
  const ActiveOperation& oldest() const { return active_.front(); }
  std::uint64_t next_sequence() const {
    return next_sequence_;
  }  // Number of the operation that
     // starts next.
  ActiveOperation* Of(std::uint64_t sequence);

  // The transfer that comes next with a rank: of the oldest operation that has one left there.
  struct Next {
    ActiveOperation* active = nullptr;
    std::size_t index = 0;
  };
  Next NextSend(std::uint32_t rank);
  Next NextArrival(std::uint32_t rank);

  // The piece of a transfer that begins there; 0 as the most: that of the operation.
  std::uint64_t PieceMax(const ActiveOperation& active, std::uint64_t size_bytes_max) const;
  Range PieceAt(const ActiveOperation& active, std::uint64_t size_bytes_max,
                const Transfer& transfer, std::uint64_t begin) const;

 private:
  const ExchangeGroup& group_;
  std::deque<Operation> submitted_;
  std::deque<ActiveOperation> active_;  // Oldest first. A deque: pieces point into it.
  std::uint64_t next_sequence_ = 0;
};

}  // namespace ffrecord::client
