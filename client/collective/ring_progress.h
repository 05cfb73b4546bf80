#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include <ffrecord/client/collective.h>

#include "client/collective/handshake.h"
#include "client/collective/messages.h"
#include "client/collective/ring.h"
#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::client {

// An all-reduce that was submitted. `data` is borrowed until it has ended.
struct RingOperation {
  std::uint64_t sequence;  // Counts up by one.
  std::byte* data;
  std::uint64_t count;
  ReduceType type;
  ReduceOp op;
};

// Counters that other threads may read at any time.
struct RingCounters {
  std::atomic<std::uint64_t> bytes_sent{0};
  std::atomic<std::uint64_t> bytes_received{0};
  std::atomic<std::uint64_t> operations{0};
  std::atomic<std::uint64_t> reduce_ns{0};
};

// Moves operations around the ring, one after another; ring.h says which bytes go when.
//
// Frames cross each connection in the order (sequence, step, element), so a receiver always knows
// what must come next, and anything else is a difference between the ranks. An operation starts
// when the one before has queued all it has to send: its first frames then follow the last ones of
// that, and the wire never idles between two large ones.
//
// Memory beyond the callers' arrays is one chunk: what is to be added lands there and is added at
// once; the rest lands in place. At most kQueuedChunksMax chunks wait to be sent at a time, so that
// a last word is never far behind.
//
// Thread-bound, never blocks but in Close(). After an error only Close() may be called.
class RingProgress {
 public:
  static Result<RingProgress> Make(const Ring& ring, Neighbours neighbours,
                                   std::uint64_t chunk_size_bytes,
                                   std::chrono::milliseconds timeout, RingCounters& counters);

  void Submit(const RingOperation& operation) { submitted_.push_back(operation); }

  struct Ended {
    std::uint64_t sequence;
    net::Clock::time_point began;
  };
  // Does all that can be done now, and appends the operations that have ended well. An error ends
  // all others: the group is broken. It names the rank to blame where one is known.
  Result<void> Advance(std::vector<Ended>& ended);

  // When to Advance() even if nothing happens, and the connections that may make something happen.
  net::Deadline wake_at() const;
  std::array<net::Endpoint*, 2> waits_for() const;

  // Tells both neighbours why, as far as they listen, and closes. Blocks for a quarter of a second
  // at most. From then on the callers' arrays are not touched.
  void Close(const Error& why);
  // Closes without a word: in good order, or because a neighbour would not understand.
  void Close();

 private:
  static constexpr std::uint64_t kQueuedChunksMax = 2;

  struct Active {
    RingOperation operation;
    net::Clock::time_point began;
    net::Deadline deadline;
    std::uint32_t step_received = 0;   // The step and element that come next.
    std::uint64_t first_received = 0;  // Meaningful while step_received < step_count.
    bool is_all_queued = false;        // All pieces to send are in pieces_ or beyond.
    std::uint64_t unsent_pieces = 0;   // In pieces_.
    std::uint64_t sent_mark = 0;       // bytes_given_ after its last piece.
  };
  struct Piece {
    Active* operation;
    std::uint32_t step;
    std::uint64_t first;
    std::uint64_t count;
    std::optional<std::uint64_t> check;  // Known if it was computed already.
  };

  RingProgress(const Ring& ring, Neighbours neighbours, PooledBuffer scratch,
               std::uint64_t chunk_size_bytes, std::chrono::milliseconds timeout,
               RingCounters& counters);

  void StartOperations();
  void QueueFirstStep(Active& active);
  void TakeEnded(std::vector<Ended>& ended);

  void PushPiece(Active& active, std::uint32_t step, std::uint64_t first, std::uint64_t count,
                 std::optional<std::uint64_t> check);
  Result<void> SendPieces();
  bool HasRoom() const { return next().bytes_queued() < kQueuedChunksMax * chunk_size_bytes_; }

  // Each says whether anything happened.
  Result<bool> PollNext();
  Result<bool> PollPrevious();
  Result<bool> ReceiveFrame();
  Result<bool> ReceiveData();
  Result<void> FinishPiece();

  std::uint32_t Blamed(net::Clock::time_point now);
  Result<void> NoteWaiting(std::uint32_t rank);
  void TellWaiting(net::Clock::time_point now);
  Result<void> CheckTime();

  Active* receiving();  // The operation that frames come for; null if all have all.
  bool IsReceived(const Active& active) const { return active.step_received == step_count_; }
  bool IsSent(const Active& active) const;
  // The one that is being received. Requires !IsReceived(active).
  Ring::Segment SegmentReceived(const Active& active) const;
  // Elements of the piece of `segment` that starts at `first`.
  std::uint64_t PieceCount(const RingOperation& operation, Ring::Segment segment,
                           std::uint64_t first) const;
  static std::byte* At(const RingOperation& operation, std::uint64_t element);

  static std::string Describe(const RingOperation& operation);
  Error Differs(const RingOperation& ours, const RingData& theirs) const;
  Error Gone(std::uint32_t rank, const Error* why) const;
  Error Unexpected(const std::string& what) const;

  net::Endpoint& next() const { return *neighbours_.next; }
  net::Endpoint& previous() const { return *neighbours_.previous; }

  Ring ring_;
  Neighbours neighbours_;
  PooledBuffer scratch_;
  std::uint64_t chunk_size_bytes_;
  std::chrono::milliseconds timeout_;
  std::chrono::milliseconds tick_;
  RingCounters* counters_;
  std::uint32_t step_count_;

  std::deque<RingOperation> submitted_;
  std::deque<Active> active_;        // Oldest first. A deque: pieces point into it.
  std::uint64_t next_sequence_ = 0;  // Of the operation that starts next.
  std::deque<Piece> pieces_;         // To be sent, in order.
  std::uint64_t bytes_given_ = 0;    // To next(), queued there or sent.

  RingData current_;      // The frame whose payload is being received.
  bool is_held_ = false;  // previous() has given a frame of an operation that is not submitted yet.
  std::optional<Error> next_gone_;  // Closed while nothing was owed to it.
  std::optional<Error> previous_gone_;

  // Who holds up. Heard from the previous rank, believed for a few ticks.
  net::Clock::time_point data_at_;
  net::Clock::time_point told_at_;
  net::Clock::time_point heard_at_;
  std::uint32_t heard_rank_ = 0;
};

}  // namespace ffrecord::client
