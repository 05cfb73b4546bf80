#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/client/collective.h>

#include "client/collective/links.h"
#include "client/collective/messages.h"
#include "client/collective/schedule.h"
#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::client {

// A collective that was submitted. `data` is borrowed until it has ended.
struct Operation {
  std::uint64_t sequence;  // Counts up by one.
  std::byte* data;
  Plan plan;
  ReduceType type;
  ReduceOp op;
};

// Counters that other threads may read at any time.
struct ExchangeCounters {
  std::atomic<std::uint64_t> bytes_sent{0};
  std::atomic<std::uint64_t> bytes_received{0};
  std::atomic<std::uint64_t> bytes_shared{0};
  std::atomic<std::uint64_t> operations{0};
  std::atomic<std::uint64_t> reduce_ns{0};
};

// Moves operations through the group's links; schedule.h says which bytes go when.
//
// Frames cross a link in the order (sequence, step, element), so a receiver always knows what must
// come next, and anything else is a difference between the ranks. A piece leaves as soon as all
// that it depends on has landed. An operation starts when the one before has queued all it has to
// send: its first frames then follow the last ones of that, and the wire never idles between two
// large ones.
//
// Between ranks that share memory a piece is copied into the ring of the link and added straight
// out of it; such pieces are smaller. Memory beyond that and the callers' arrays is one chunk for
// each connection that brings something to be added: it lands there and is added at once; the rest
// lands in place. Where halves cross, all lands there, and each connection that sends has some
// chunks more to send from. At most kQueuedChunksMax chunks wait to be sent on one, so that a last
// word is never far behind.
//
// Thread-bound, never blocks but in Wait() and Close(). After an error only Close() may be called.
class Exchange {
 public:
  struct Group {
    std::uint32_t rank;
    std::uint32_t world_size;
    std::uint64_t chunk_size_bytes;
    WireType wire;
    std::chrono::milliseconds timeout;
    Machines machines;
  };
  Exchange(const Group& group, Links links, ExchangeCounters& counters);

  void Submit(const Operation& operation) { submitted_.push_back(operation); }

  struct Ended {
    std::uint64_t sequence;
    net::Clock::time_point began;
  };
  // Does all that can be done now, and appends the operations that have ended well. An error ends
  // all others: the group is broken. It names the rank to blame where one is known.
  Result<void> Advance(std::vector<Ended>& ended);

  // Waits until there may be something to advance, or `wake_fd` is readable.
  Result<void> Wait(int wake_fd);

  // Tells all peers why, as far as they listen, and closes. Blocks for a quarter of a second at
  // most. From then on the callers' arrays are not touched.
  void Close(const Error& why);
  // Closes without a word: in good order, or because a peer would not understand.
  void Close();

 private:
  static constexpr std::uint64_t kQueuedChunksMax = 2;

  // How far a transfer has come: all before `next` is queued (sends) or placed (arrivals).
  struct Progress {
    std::uint64_t next = 0;
    bool is_done = false;
    std::vector<std::uint64_t> checks{};  // Of the pieces that were copied here.
  };
  struct Active {
    Operation operation;
    Schedule schedule;
    std::vector<Progress> sends;     // As schedule.sends.
    std::vector<Progress> arrivals;  // As schedule.arrivals.
    std::size_t sends_from = 0;      // All before are done.
    std::size_t arrivals_from = 0;
    std::size_t sends_open = 0;
    std::size_t arrivals_open = 0;
    std::uint64_t pieces_in_flight = 0;
    net::Clock::time_point began;
    net::Deadline deadline;  // Meaningful while it is first in line.
  };

  // A piece that was given to an endpoint, and borrows its bytes until `mark` bytes have left.
  struct InFlight {
    Active* active;
    std::uint32_t step;
    Range range;
    std::uint64_t mark;
  };
  struct Outgoing {
    Link link;
    bool is_ready = true;  // Something may have come, or there may be room again.
    bool awaits_room = false;
    std::uint64_t bytes_given = 0;
    std::deque<InFlight> in_flight;
    PooledBuffer staging;  // What is sent as another type; null until something is.
    std::uint64_t staging_next = 0;
    std::optional<Error> gone;  // Closed while nothing was owed to it.
  };
  struct Incoming {
    Link link;
    bool is_ready = true;
    CollectiveData data;   // The frame or piece whose payload is being received.
    bool is_held = false;  // `data` waits: its operation is not ours yet, or its place is not free.
    std::span<const std::byte> shared{};  // The payload of `data` in shared memory.
    Active* landing_for = nullptr;        // The payload of `data` is on its way.
    std::size_t landing = 0;              // Which arrival of that.
    PooledBuffer scratch;                 // Null until something is to be added.
    std::optional<Error> gone;
    // Who holds it up, as it has said; believed for a few ticks.
    net::Clock::time_point heard_at{};
    std::uint32_t heard_rank = 0;
  };

  void StartOperations();
  void TakeEnded(std::vector<Ended>& ended);

  void SetSleeps(bool sleeps);
  bool HasNews() const;
  Result<void> WaitForFds(int wake_fd);

  // Each says whether anything happened.
  Result<bool> Send(Outgoing& out);
  Result<bool> SendPieces(Outgoing& out);
  Result<void> SendPiece(Outgoing& out, Active& active, std::size_t index, Range piece);
  bool HasRoom(const Outgoing& out) const;
  void ShareData(Outgoing& out, const Operation& operation, Range piece,
                 const CollectiveData& data);
  Result<void> SendData(Outgoing& out, Active& active, std::size_t index, Range piece,
                        CollectiveData data);
  Result<std::span<const std::byte>> WireBytes(Outgoing& out, const Operation& operation,
                                               Range piece, std::int32_t shift) const;
  static std::optional<std::uint64_t> KnownCheck(const Active& active, const Transfer& send,
                                                 std::uint64_t piece_index);
  void TakeSent(Outgoing& out);
  Result<bool> PollOutgoing(Outgoing& out);
  Result<bool> Receive(Incoming& in);
  Result<bool> ReceiveFrame(Incoming& in);
  Result<bool> TakeShared(Incoming& in);
  Result<bool> Place(Incoming& in);
  Result<void> FinishPiece(Incoming& in);
  void Take(Incoming& in, std::span<const std::byte> bytes);
  void AddPiece(const Operation& operation, const Arrival& arrival, Range piece, std::int32_t shift,
                std::span<const std::byte> bytes);

  // The transfer that comes next on a link: of the oldest operation that has one left there.
  struct Next {
    Active* active = nullptr;
    std::size_t index = 0;
  };
  Next NextSend(const Outgoing& out);
  Next NextArrival(const Incoming& in);
  bool IsRounded(const Operation& operation) const;                      // It crosses as halves.
  std::uint64_t WireSize(const Operation& operation) const;              // Bytes of an element.
  std::uint64_t PieceMax(const Active& active, const Link& link) const;  // In elements.
  Range NextPiece(const Active& active, const Link& link, const Transfer& transfer,
                  const Progress& progress) const;
  bool HasArrived(const Active& active, std::uint32_t step, const Range& piece) const;
  bool HasLeft(const Active& active, std::uint32_t step, const Range& piece) const;
  Active* ActiveOf(std::uint64_t sequence);

  std::uint32_t Blamed(net::Clock::time_point now);
  Result<void> NoteWaiting(Incoming& in, std::uint32_t rank);
  void TellWaiting(net::Clock::time_point now);
  Result<void> CheckTime();
  net::Deadline wake_at() const;

  static std::string Describe(const Operation& operation);
  Error Differs(const Incoming& in, const Operation& ours) const;
  static Error Gone(const Link& link, const Error* why);
  Error Unexpected(const Incoming& in, const std::string& what) const;

  Group group_;
  std::vector<Outgoing> to_;
  std::vector<Incoming> from_;
  std::chrono::milliseconds tick_;
  ExchangeCounters* counters_;

  std::deque<Operation> submitted_;
  std::deque<Active> active_;        // Oldest first. A deque: pieces point into it.
  std::uint64_t next_sequence_ = 0;  // Of the operation that starts next.

  net::Clock::time_point data_at_;
  net::Clock::time_point told_at_;
};

}  // namespace ffrecord::client
