#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/client/collective.h>

#include "client/collective/links.h"
#include "client/collective/messages.h"
#include "client/collective/replacements.h"
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
  std::uint64_t chunk_size_bytes;  // The same on all ranks; at most the group's.
};

// Counters that other threads may read at any time, what they may set, and what they may take.
struct ExchangeCounters {
  std::atomic<std::uint64_t> bytes_sent{0};
  std::atomic<std::uint64_t> bytes_received{0};
  std::atomic<std::uint64_t> bytes_shared{0};
  std::atomic<std::uint64_t> operations{0};
  std::atomic<std::uint64_t> reduce_ns{0};
  std::atomic<std::uint32_t> streams_lost{0};
  std::atomic<std::uint32_t> streams_used{0};  // At most so many to each peer; 0: all.

  // What people should know of: which stream was lost, and why. The newest kEventsMax.
  void Tell(std::string text);
  std::vector<CollectiveEngine::Event> events() const;

 private:
  static constexpr std::size_t kEventsMax = 1000;
  mutable std::mutex mutex_;
  std::deque<CollectiveEngine::Event> events_;
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
// **Streams.** Where a peer is reached by several connections, each that has room takes the next
// piece, so that faster ones carry more: two pieces are under way on each, for the peer says when
// it has taken one (COLLECTIVE_TAKEN). How long that takes is how fast a stream is. One that would
// still be busy with a piece when all others have carried the rest of the transfer gets none but
// now and then, to see whether it has become faster. Pieces of one stream come in order, those of
// several do not; which is added when depends on the order of steps alone, so bits do not.
//
// **RDMA.** The receiver has memory for each connection into which pieces are written; they are
// added from there, and their room is free when they are taken: this goes as with several streams.
// A piece that finds no room goes as payload, and small ones do, for that is one message less.
//
// A large piece borrows the array until it is taken, or is copied when something else comes to its
// place before; of a small one there is a copy at once. When a stream
// breaks, or nothing that it sends is acknowledged, what was not taken goes again over the others,
// first of all; what comes twice is dropped. A piece that has waited long for its place, and what
// it waits for may stand behind it, is set aside in memory: at most what may be under way.
// Meanwhile a new connection is made in its place. Without a stream left, the peer is gone.
//
// Thread-bound, never blocks but in Wait() and Close(). After an error only Close() may be called.
class Exchange {
 public:
  struct Group {
    std::uint32_t rank;
    std::uint32_t world_size;
    std::uint64_t chunk_size_bytes;
    WireType wire;
    std::uint16_t streams;
    std::chrono::milliseconds timeout;
    Machines machines;
  };
  // `replacements` where there are several streams; else null.
  Exchange(const Group& group, Links links, std::unique_ptr<Replacements> replacements,
           ExchangeCounters& counters);

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
  // Closes in good order, without a word but what was still to be sent; waits up to ten seconds for
  // that to leave, which is long only where a connection is silent.
  void Close();

 private:
  static constexpr std::uint64_t kQueuedChunksMax = 2;
  // Where there are several streams, pieces up to here are copied rather than waited for.
  static constexpr std::uint64_t kCopiedMax = 16 << 10;
  // Over RDMA, larger pieces are written into the peer's memory, each at a cache line.
  static constexpr std::uint64_t kWrittenMin = 4 << 10;
  static constexpr std::uint64_t kPlaceAlignment = 64;
  // A stream whose other end says nothing for so long, not even its kernel, is lost; so is a peer
  // with one stream alone after the longer time.
  static constexpr std::chrono::milliseconds kSilenceMax{5'000};
  static constexpr std::chrono::milliseconds kOnlySilenceMax{60'000};
  // Pieces of a stream that the peer has not taken.
  static constexpr std::size_t kUntakenPiecesMax = 256;

  // How far a transfer has come.
  struct Progress {
    std::uint64_t next = 0;  // All before is queued (sends) or placed (arrivals).
    bool is_done = false;
    std::vector<std::optional<std::uint64_t>> checks{};  // Of the pieces that were copied here.
    // Placed beyond, for streams are not equally fast: ascending, and apart from each other.
    std::vector<Range> ahead{};

    bool Covers(Range range) const;
    void Note(Range piece, const Range& all);
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

  // A piece that was given to an endpoint.
  struct InFlight {
    Active* active;  // Whose array it borrows; null: none, or none any more.
    std::uint32_t step;
    Range range;
    std::uint64_t mark = 0;  // It has left when so many bytes have.
    // The rest matters where the peer says what it has taken.
    bool has_left = false;         // On some stream.
    std::uint64_t number = 0;      // Of the pieces on its stream.
    std::optional<Range> place{};  // In the peer's ring, in bytes, if it was written there.
    std::uint64_t size_bytes = 0;
    CollectiveData data{};
    std::vector<std::byte> copy{};  // Of a small one.
    net::Clock::time_point given_at{};

    bool Borrows(const Active& from, std::uint32_t until_step, const Range& range_of) const {
      return active == &from && step <= until_step && range.Touches(range_of);
    }
  };
  // One connection to a peer.
  struct Stream {
    Link link;
    bool is_ready = true;  // Something may have come, or there may be room again.
    std::uint64_t bytes_given = 0;
    // Until it has left, or, where the peer says so, until it has taken it.
    std::deque<InFlight> in_flight;
    PooledBuffer staging;  // What is sent as another type; null until something is.
    std::uint64_t staging_next = 0;
    std::optional<Error> gone;
    std::string why_gone{};
    bool is_told = false;  // That it is gone.
    std::uint64_t pieces_given = 0;
    std::uint64_t untaken_bytes = 0;
    std::uint64_t place_next = 0;  // Where in the peer's ring there may be room.
    double byte_s = 0;             // How slow it is; 0: not known.
    net::Clock::time_point taken_at{};
  };
  struct Outgoing {
    std::deque<Stream> streams;  // One, or as many as the group has.
    bool awaits_room = false;
    std::deque<InFlight> again;  // Of streams that are gone: to be sent once more.
    std::optional<Error> gone;   // All streams are, while nothing was owed to it.

    const Link& link() const { return streams.front().link; }
    std::uint32_t rank() const { return link().rank; }
    RingSender* ring() const { return link().ring_out.get(); }
    bool hears_taken() const { return streams.size() > 1 || link().ring_there; }
  };
  // Where a piece belongs.
  struct Target {
    Active* active = nullptr;
    std::size_t index = 0;  // Which arrival of that.
    Range piece{};
  };
  struct Incoming {
    Link link;
    bool tells_taken = false;  // One of several from that rank, or over RDMA.
    bool is_ready = true;
    CollectiveData data;   // The frame or piece whose payload is being received.
    bool is_held = false;  // `data` waits: its operation is not ours yet, or its place is not free.
    bool is_placed = false;               // Its payload was written into our memory.
    std::span<const std::byte> shared{};  // The payload of `data`, if it is there or shared.
    Target landing{};                     // Where the payload of `data` is on its way to, if any.
    PooledBuffer scratch;                 // Null until something is to be added.
    std::optional<Error> gone;
    // What is said about pieces that were taken.
    std::uint64_t pieces_come = 0;
    net::Clock::time_point come_at{};  // The head of the last one.
    std::chrono::microseconds waited{};
    CollectiveTaken untold{};
    std::uint64_t untold_bytes = 0;
    // Where the payload of a piece goes that has no place: it came before, or has to be set aside.
    enum class Aside : std::uint8_t { kNo, kDrop, kKeep } aside = Aside::kNo;
    std::vector<std::byte> kept{};  // What is to be set aside.
    // Who holds it up, as it has said; believed for a few ticks.
    net::Clock::time_point heard_at{};
    GroupWaiting heard{};
  };

  // A piece that has waited too long for its place.
  struct SetAside {
    std::size_t from;  // Index in from_.
    std::uint64_t number;
    net::Clock::time_point come_at;
    CollectiveData data;
    std::vector<std::byte> bytes;
  };

  std::vector<net::Endpoint*> Endpoints();
  static void Flush(const std::vector<net::Endpoint*>& peers);
  void DeliverLast();
  bool IsDelivering() const;
  static bool HasUnacknowledged(int fd);
  void StartOperations();
  void TakeEnded(std::vector<Ended>& ended);

  void SetSleeps(bool sleeps);
  bool HasNews() const;
  Result<void> WaitForFds(int wake_fd);

  // Each says whether anything happened.
  Result<bool> Send(Outgoing& out);
  Result<bool> SendPieces(Outgoing& out);
  Result<void> SendPiece(Outgoing& out, Stream& stream, Active& active, std::size_t index,
                         Range piece);
  bool HasRoom(const Outgoing& out, const Stream& stream) const;
  void ShareData(Outgoing& out, const Operation& operation, Range piece,
                 const CollectiveData& data);
  Result<void> SendData(Outgoing& out, Stream& stream, Active& active, std::size_t index,
                        Range piece, CollectiveData data);
  Result<void> Give(Outgoing& out, Stream& stream, InFlight flying,
                    std::span<const std::byte> bytes);
  Result<std::span<const std::byte>> WireBytes(Stream& stream, const Operation& operation,
                                               Range piece, std::int32_t shift) const;
  static std::optional<Range> PlaceFor(const Stream& stream, std::uint64_t size_bytes);
  static Result<void> Write(Stream& stream, const InFlight& flying,
                            std::span<const std::byte> bytes);
  static std::optional<std::uint64_t> KnownCheck(const Active& active, const Transfer& send,
                                                 std::uint64_t piece_index);
  void TakeSent(Stream& stream);
  Result<bool> PollOutgoing(Outgoing& out, Stream& stream);
  Result<bool> Receive(Incoming& in);
  Result<bool> ReceiveFrame(Incoming& in);
  Result<bool> TakeShared(Incoming& in);
  Result<bool> TakeData(Incoming& in);
  Result<bool> TakePlaced(Incoming& in);
  Result<bool> TakePiece(Incoming& in, const CollectiveData& data);
  Result<bool> Place(Incoming& in);
  bool LandsAside(const Target& target) const;
  void KeepSent(Active& active, std::uint32_t step, const Range& piece);
  Result<void> FinishPiece(Incoming& in);
  Result<void> CheckPiece(const Incoming& in, const Target& target, const CollectiveData& data,
                          std::span<const std::byte> bytes);
  void Take(const Target& target, const CollectiveData& data, std::span<const std::byte> bytes);

  // Whether a piece that has come may be placed.
  enum class Due : std::uint8_t { kNow, kLater, kNever };  // kNever: it has come before.
  Result<Due> FindPlace(const Incoming& in, const CollectiveData& data, std::uint64_t size_bytes,
                        Target& target);
  std::optional<std::size_t> FindArrival(const Incoming& in, const Active& active,
                                         const CollectiveData& data);

  // --- Several streams to a peer ---
  Stream* ChooseStream(Outgoing& out, std::uint64_t size_bytes, std::uint64_t rest_bytes);
  Result<bool> SendAgain(Outgoing& out);
  Result<void> TakeTaken(Stream& stream);
  Result<void> LoseStream(Outgoing& out, Stream& stream, const std::string& why);
  static void ProbeWhenIdle(const Link& link);
  void TellLost(Outgoing& out);
  void TakeReplacements();
  void Replace(Outgoing& out, Link link);
  void Replace(Incoming& in, Link link);
  bool AwaitsTaken() const;
  Result<void> CheckStreams(net::Clock::time_point now);
  bool IsGone(const Incoming& in) const;
  bool TakesOver(const Incoming& in, net::Clock::time_point come_at, const Target& target);
  Result<void> TellTaken(Incoming& in, std::uint64_t number, std::uint64_t size_bytes);
  Result<void> TellUntold(net::Clock::time_point now);
  Result<void> SendTaken(Incoming& in);
  bool SetItAside(Incoming& in);
  void KeepAside(Incoming& in);
  Result<bool> PlaceSetAside();
  void AddPiece(const Operation& operation, const Arrival& arrival, Range piece, std::int32_t shift,
                std::span<const std::byte> bytes);
  void DivideOwn(const Operation& operation);
  void CountReducing(net::Clock::time_point since);

  // The transfer that comes next on a link: of the oldest operation that has one left there.
  struct Next {
    Active* active = nullptr;
    std::size_t index = 0;
  };
  Next NextSend(const Outgoing& out);
  Next NextArrival(const Incoming& in);
  static std::byte* At(const Operation& operation, std::uint64_t element);
  bool IsRounded(const Operation& operation) const;                      // It crosses as halves.
  std::uint64_t WireSize(const Operation& operation) const;              // Bytes of an element.
  std::uint64_t PieceMax(const Active& active, const Link& link) const;  // In elements.
  Range PieceAt(const Active& active, const Link& link, const Transfer& transfer,
                std::uint64_t begin) const;
  bool HasArrived(const Active& active, std::uint32_t step, const Range& piece) const;
  bool HasLeft(const Active& active, std::uint32_t step, const Range& piece) const;
  Active* ActiveOf(std::uint64_t sequence);

  GroupWaiting Blamed(net::Clock::time_point now);
  Result<void> NoteWaiting(Incoming& in, const GroupWaiting& said);
  void TellWaiting(net::Clock::time_point now);
  void Tell(const GroupWaiting& waiting, bool owed_only);
  Result<void> CheckTime();
  bool IsAwaited() const;
  net::Clock::time_point time_up_at() const;
  Error TimeIsUp(net::Clock::time_point now);
  net::Deadline wake_at() const;

  static std::string Describe(const Operation& operation);
  Error Differs(const Incoming& in, const CollectiveData& data, const Operation& ours) const;
  static Error Gone(const Link& link, const Error* why);
  Error Unexpected(const Incoming& in, const std::string& what) const;

  Group group_;
  std::deque<Outgoing> to_;
  std::vector<Incoming> from_;  // Streams of one rank are neighbours.
  std::deque<SetAside> set_aside_;
  std::unique_ptr<Replacements> replacements_;
  bool has_replacements_ = false;  // There may be some to take.
  std::chrono::milliseconds tick_;
  ExchangeCounters* counters_;

  std::deque<Operation> submitted_;
  std::deque<Active> active_;        // Oldest first. A deque: pieces point into it.
  std::uint64_t next_sequence_ = 0;  // Of the operation that starts next.

  net::Clock::time_point data_at_;  // The newest piece that was taken,
  net::Clock::time_point sent_at_;  // and that found room to be sent.
  net::Clock::time_point told_at_;
  net::Clock::time_point checked_at_{};
};

}  // namespace ffrecord::client
