#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <ffrecord/result.h>

#include "client/collective/exchange_counters.h"
#include "client/collective/exchange_machine.h"
#include "client/collective/exchange_steps.h"
#include "client/collective/links.h"
#include "client/collective/operations.h"
#include "client/collective/replacements.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::client {

// Moves operations through the group's links: tells ExchangeMachine what comes on them, and does
// what that decides.
//
// Thread-bound, never blocks but in Wait() and Close(). After an error only Close() may be called.
class Exchange {
 public:
  using Group = ExchangeGroup;
  using Ended = Operations::Ended;

  // `replacements` where there are several streams; else null.
  Exchange(const Group& group, Links links, std::unique_ptr<Replacements> replacements,
           ExchangeCounters& counters);

  void Submit(const Operation& operation) { machine_->Submit(operation); }

  // Does all that can be done now, and appends the operations that have ended well. An error ends
  // all others: the group is broken. It names the rank to blame where one is known.
  Result<void> Advance(std::vector<Ended>& ended);

  // Whether another rank is at an operation that was not submitted here.
  bool IsAwaited() const { return machine_->IsAwaited(); }
  // Why nothing comes from any rank any more; null while something may.
  const Error* AllGone() const { return machine_->AllGone(); }

  // Waits until there may be something to advance, or `wake_fd` is readable.
  Result<void> Wait(int wake_fd);

  // Tells all peers why, as far as they listen, and closes. Blocks for a quarter of a second at
  // most. From then on the callers' arrays are not touched.
  void Close(const Error& why);
  // Closes in good order, without a word but what was still to be sent; waits up to ten seconds for
  // that to leave, which is long only where a connection is silent.
  void Close();

 private:
  // One connection to a peer.
  struct Stream {
    Link link;
    bool is_ready = true;  // Something may have come, or there may be room again.
  };
  struct Peer {
    std::vector<Stream> streams;
    bool has_sent = false;  // Something was queued that was not given to the kernel.

    RingSender* ring() const { return streams.front().link.ring_out.get(); }
  };
  struct Incoming {
    Link link;
    bool is_ready = true;
    bool is_closed = false;  // Nothing more comes on the connection.
    std::optional<Error> why{};
  };

  // Tells the machine, and does what it wants. Sets moved_ if that has changed something.
  template <class Event>
  Result<void> Tell(const Event& event);
  template <class Event>
  Result<void> TellAt(Clock::time_point now, const Event& event);
  Result<void> DoAll();
  Result<void> Do(const exchange::SendPiece& send);
  Result<void> Do(const exchange::Publish& publish);
  Result<void> Do(const exchange::SendWaiting& send);
  Result<void> Do(const exchange::SendTaken& send);
  Result<void> Do(const exchange::Receive& receive);
  Result<void> Do(const exchange::Pop& pop);
  Result<void> Do(const exchange::CloseStream& close);
  Result<void> Do(const exchange::CloseLink& close);
  Result<void> Do(const exchange::AskStream& ask);
  Result<void> Do(const exchange::LookWhetherSilent& look);
  Result<void> Do(const exchange::Tell& tell);
  Result<void> Do(const exchange::Complete& complete);

  Result<void> Turn(Clock::time_point now);
  Result<void> TellRoom(std::size_t peer);
  Result<void> PollStreams(std::size_t peer);
  Result<void> PollStream(std::size_t peer, std::size_t stream);
  Result<void> TellTaken(std::size_t peer, std::size_t stream);
  Result<void> Receive(std::size_t link);
  Result<void> TakeShared(std::size_t link);
  Result<void> TakeFrame(std::size_t link);
  Result<void> TakeReplacements();

  void SetSleeps(bool sleeps);
  bool HasNews() const;
  Result<void> WaitForFds(int wake_fd);

  std::vector<net::Endpoint*> Endpoints();
  void DeliverLast();
  bool IsDelivering() const;

  net::Endpoint& EndpointOf(std::size_t peer, std::size_t stream) {
    return *to_[peer].streams[stream].link.endpoint;
  }

  const std::chrono::milliseconds timeout_;
  const std::uint32_t rank_;
  std::vector<Peer> to_;
  std::vector<Incoming> from_;
  std::unique_ptr<Replacements> replacements_;
  bool has_replacements_ = false;  // There may be some to take.
  ExchangeCounters* counters_;

  std::unique_ptr<ExchangeMachine> machine_;
  exchange::Actions actions_;  // To be done,
  exchange::Actions doing_;    // and those that are being done.
  bool is_doing_ = false;
  bool moved_ = false;
  bool has_words_ = false;               // A word was queued.
  std::vector<Ended>* ended_ = nullptr;  // The argument of Advance().
};

}  // namespace ffrecord::client
