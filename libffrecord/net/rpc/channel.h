#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>
#include <ffrecord/runtime.h>

#include "libffrecord/net/protocol/messages.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/rdma/rdma.h"

namespace ffrecord::net {

// A client's end of a connection to a daemon, after HELLO: one dialogue at a time, or many requests
// whose replies are taken as they come.
//
// Thread-bound. Fails with kUnavailable if the connection breaks, a frame is damaged or out of
// place, or the daemon is busy; with kDeadlineExceeded; with the daemon's own error if it answers
// ERROR. After a failure reusable() tells whether the dialogue is over in good order; if not, a
// reply may still be on its way, and the connection is closed.
class Channel {
 public:
  // How long a daemon that is busy wants to be left alone. A longer time than kRetryAfterMax is not
  // believed.
  using RetryAfter = std::optional<std::chrono::milliseconds>;
  static constexpr std::chrono::milliseconds kRetryAfterMax{10'000};

  // Connects and says HELLO, with the token `credential` if the daemon wants one. `retry_after`, if
  // given, is set if it fails because the daemon is busy.
  static Result<std::unique_ptr<Channel>> Connect(const Address& address, Deadline deadline,
                                                  std::span<const std::byte> credential = {},
                                                  RetryAfter* retry_after = nullptr);
  // Says HELLO on a fresh `endpoint`; over TLS the token is bound to that connection.
  static Result<std::unique_ptr<Channel>> Open(std::unique_ptr<Endpoint> endpoint,
                                               Deadline deadline,
                                               std::span<const std::byte> credential = {},
                                               RetryAfter* retry_after = nullptr);

  // Opens a fresh `endpoint` on the local socket of the daemon that made `offer`. Nothing of the
  // client's is shown to another peer, which fails with kUnavailable.
  static Result<std::unique_ptr<Channel>> OpenLocal(std::unique_ptr<Endpoint> endpoint,
                                                    const LocalOffer& offer, Deadline deadline,
                                                    RetryAfter* retry_after = nullptr);

  // Goes on over RDMA, which the daemon must have offered, and of which one round trip is seen to
  // work. While reusable() after a failure, it goes on as it was.
  Result<void> UseRdma(RdmaLinks& links, Deadline deadline);
  // As Endpoint::remote_memory().
  RemoteMemory* remote_memory() noexcept { return endpoint_->remote_memory(); }

  const HelloReply& hello() const noexcept { return hello_; }
  bool has_local_peer() const noexcept { return endpoint_->has_local_peer(); }
  const std::string& peer() const noexcept { return endpoint_->peer(); }
  std::string_view transport() const noexcept { return endpoint_->transport(); }
  // Whether the daemon may be given memory of ours to write into.
  bool writes_slabs() const noexcept {
    return endpoint_->remote_memory() != nullptr || endpoint_->descriptors() != nullptr;
  }
  // Whether it takes uploads out of such memory.
  bool pulls() const noexcept {
    return writes_slabs() && (hello_.capabilities & kCapabilityPulls) != 0;
  }
  std::string cipher() const { return endpoint_->cipher(); }
  // Another dialogue may begin: not broken, and the daemon did not say that it stops.
  bool reusable() const noexcept { return !broken_ && !going_away_; }

  // Whether the daemon still holds this connection: looks without waiting. Between dialogues only.
  bool Alive();
  // Set if the last dialogue ended with BUSY: the daemon has not begun what it was asked for.
  const RetryAfter& retry_after() const noexcept { return retry_after_; }
  // Ends a dialogue of which replies may still come. Returns `error`, or kUnavailable for a damaged
  // frame: to callers that is a broken connection, and another one may do better.
  Error Break(Error error);

  // Queues a request and sends what the socket takes; `payload` is borrowed until the reply to this
  // or a later request has been received, or until Flush(). Returns the id of the request.
  Result<std::uint64_t> Send(FrameType type, std::span<const std::byte> body,
                             std::span<const std::span<const std::byte>> payload = {});
  // The same with a descriptor beside it. Fails with kInvalidArgument if the connection passes
  // none.
  Result<std::uint64_t> SendDescriptor(FrameType type, std::span<const std::byte> body,
                                       int descriptor);
  // Sends what can be sent without waiting. True: a frame has come, which is for Receive().
  Result<bool> Push();
  // Sends all that is queued. Fails, and breaks, with the daemon's error if one arrives meanwhile.
  Result<void> Flush(Deadline deadline);

  // The next frame for `request`; `what` is for messages. body() is valid until the next call. A
  // frame with a payload must be followed by ReceivePayload. An ERROR for an earlier request, which
  // was to have no reply, ends the dialogue too.
  Result<FrameHeader> Receive(std::uint64_t request, Deadline deadline, std::string_view what);
  std::span<const std::byte> body() const noexcept { return endpoint_->body(); }
  Result<void> ReceivePayload(std::span<const std::span<std::byte>> places, Deadline deadline);

  // For many requests at a time: sends and receives what it can without waiting. kNone: nothing
  // more can be done now. kFrame: header() and body() hold a frame, of any request; one with a
  // payload must be followed by BeginPayload. kPayload: that payload has arrived.
  Result<Endpoint::Event> Poll();
  const FrameHeader& header() const noexcept { return endpoint_->header(); }
  // The places are borrowed until kPayload or until the connection is broken.
  Result<void> BeginPayload(std::span<const std::span<std::byte>> places);
  // Why the frame that has just arrived refuses the request for `what`, and retry_after() if it is
  // BUSY. None: it refuses nothing.
  std::optional<Error> Refusal(std::string_view what);
  // Marks packets that leave from now on as those of that class, by SetTrafficMarks().
  void MarkAs(TrafficClass traffic) noexcept;
  // To wait for, after Poll() has said kNone.
  Endpoint* endpoint() noexcept { return endpoint_.get(); }

  // A request and its one reply, whose type must be ReplyTo(type).
  struct Reply {
    std::vector<std::byte> body;
    std::vector<std::byte> payload;
  };
  Result<Reply> Call(FrameType type, std::span<const std::byte> body,
                     std::span<const std::span<const std::byte>> payload, Deadline deadline,
                     std::string_view what);

 private:
  explicit Channel(std::unique_ptr<Endpoint> endpoint) noexcept : endpoint_(std::move(endpoint)) {}
  Result<void> Greet(std::vector<std::byte> credential, Deadline deadline);
  Result<void> ProveLocal(const LocalOffer& offer, Deadline deadline);
  // The error in the ERROR that has just arrived.
  Error TakeError();

  std::unique_ptr<Endpoint> endpoint_;
  HelloReply hello_;
  std::uint64_t next_request_ = 1;
  std::optional<Endpoint::Event> found_;  // By Push(): a frame, or its payload.
  bool broken_ = false;
  bool going_away_ = false;
  RetryAfter retry_after_;
  TrafficMark mark_;
};

}  // namespace ffrecord::net
