#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "client/collective/arrivals.h"
#include "client/collective/blame.h"
#include "client/collective/exchange_counters.h"
#include "client/collective/exchange_steps.h"
#include "client/collective/operations.h"
#include "client/collective/peer_streams.h"
#include "client/collective/piece_work.h"

namespace ffrecord::client {

// Decides which piece of which operation goes when over which stream, where pieces that come
// belong, and whom to blame; schedule.h says which bytes go when. A state machine: no thread, no
// descriptor, no system call, and the time is that of its events. It reads and writes the arrays of
// operations, memory that is shared with peers, and buffers of its own. Its owner tells it events
// and does its actions, in their order, before the next event.
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
// chunks more to send from. At most two chunks wait to be sent on one, so that a last word is never
// far behind.
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
class ExchangeMachine {
 public:
  using Time = exchange::Time;
  using Step = exchange::Step;

  // `to` is in the order of ranks, and of streams; so is `from`. Borrows `counters`.
  ExchangeMachine(const ExchangeGroup& group, std::vector<exchange::Channel> to,
                  std::vector<exchange::Channel> from, ExchangeCounters& counters, Time now);
  ExchangeMachine(const ExchangeMachine&) = delete;
  ExchangeMachine& operator=(const ExchangeMachine&) = delete;

  void Submit(const Operation& operation) { operations_.Submit(operation); }
  // Appends what is to be done. Sets `moved` if something has changed, so that Go and Settle may
  // find more to do. An error ends all operations: the group is broken. It names the rank to blame
  // where one is known.
  template <class Event>
  Result<void> Take(Time now, const Event& event, exchange::Actions& actions, bool& moved) {
    Step step{now, actions};
    auto taken = On(step, event);
    moved |= step.moved;
    return taken;
  }
  // Memory shared with the peer has room for a piece: the next Go may use it, as Room does.
  void OfferRoom(std::size_t peer, std::span<std::byte> place) { peers_[peer].NoteRoom(place); }
  // The last words to senders, before all connections are closed.
  void TellAll(Time now, exchange::Actions& actions);

  // When it wants a Tick at the latest.
  Time NextTime() const;

  // Whether another rank is at an operation that was not submitted here.
  bool IsAwaited() const;
  // Why nothing comes from any rank any more, and all that came is placed; null while something
  // may.
  const Error* AllGone() const { return arrivals_.AllGone(); }

  const PeerStreams& peer(std::size_t index) const { return peers_[index]; }
  bool IsHeld(std::size_t link) const { return arrivals_.IsHeld(link); }

 private:
  Result<void> On(Step& step, const exchange::Go&);
  Result<void> On(Step& step, const exchange::Settle&);
  Result<void> On(Step& step, const exchange::Tick&);
  Result<void> On(Step& step, const exchange::Room& room);
  Result<void> On(Step& step, const exchange::Left& left);
  Result<void> On(Step& step, const exchange::Taken& taken);
  Result<void> On(Step& step, const exchange::StreamLost& lost);
  Result<void> On(Step& step, const exchange::StreamMade& made);
  Result<void> On(Step& step, const exchange::Silent& silent);
  Result<void> On(Step& step, const exchange::FrameCame& came);
  Result<void> On(Step& step, const exchange::PlacedCame& came);
  Result<void> On(Step& step, const exchange::SharedCame& came);
  Result<void> On(Step& step, const exchange::Landed& landed);
  Result<void> On(Step& step, const exchange::WaitingCame& came);
  Result<void> On(Step& step, const exchange::LinkLost& lost);
  Result<void> On(Step& step, const exchange::LinkMade& made);

  Result<void> SendPieces(Step& step, PeerStreams& peer);
  Result<void> SendPiece(Step& step, PeerStreams& peer, std::size_t stream,
                         const Operations::Next& next, Range piece);
  void TellWaiting(Step& step);
  void LookForSilence(Step& step);
  bool Owes(const PeerStreams& peer);
  bool AwaitsTaken() const;
  const ActiveOperation* oldest() const {
    return operations_.empty() ? nullptr : &operations_.oldest();
  }

  const ExchangeGroup group_;
  ExchangeCounters& counters_;
  const PieceWork work_;
  Operations operations_;
  std::deque<PeerStreams> peers_;
  Blame blame_;
  Arrivals arrivals_;
  Time checked_at_{};
};

}  // namespace ffrecord::client
