#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <ffrecord/result.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/net/protocol/frame.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/rdma/rdma.h"
#include "libffrecord/net/transport/remote_memory.h"
#include "server/service/connection/replies.h"
#include "server/service/read/outgoing_payload.h"
#include "server/service/worker_metrics.h"

namespace ffrecord::server {

// The frames of one connection: those that have come, with their payloads, and those that are sent.
//
// Thread-bound to the worker of its connection; never waits. Owns the endpoint, the payload that is
// being received, and payloads of answers until the endpoint has sent them. Errors are those of
// the endpoint: they end the connection.
class Conversation {
 public:
  // Takes a payload that has arrived, with the header of its frame.
  using PayloadTaker = std::function<Result<void>(const FrameHeader&, PooledBuffer)>;

  // `metrics` and `map_version` outlive this. `map_version` is that of the frames that are sent;
  // null: that of a single daemon.
  Conversation(std::unique_ptr<net::Endpoint> endpoint, WorkerMetrics& metrics,
               const std::atomic<std::uint32_t>* map_version)
      : metrics_(metrics), map_version_(map_version), endpoint_(std::move(endpoint)) {}
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  net::Endpoint& endpoint() noexcept { return *endpoint_; }
  const net::Endpoint& endpoint() const noexcept { return *endpoint_; }
  OutgoingPayload& payload() noexcept { return payload_; }  // That the endpoint borrows.
  std::string_view transport() const noexcept { return endpoint_->transport(); }
  const std::string& peer() const noexcept { return endpoint_->peer(); }

  // As Endpoint::Poll. After kPayload, call TakePayload().
  Result<net::Endpoint::Event> Poll();
  Result<void> TakePayload();

  // Receives the payload of the frame that has come, then calls `then`; at once, with null, if the
  // frame has none.
  Result<void> Receive(const FrameHeader& header, PayloadTaker then);
  // Receives a payload that nobody wants, and then sends `why`.
  Result<void> Discard(const FrameHeader& header, Error why);
  // Fetches `place` from the client's memory `source`, then calls `then`. Requires an endpoint that
  // has remote memory.
  Result<void> Fetch(const FrameHeader& header, const net::RemoteRegion& source, PooledBuffer place,
                     PayloadTaker then);

  Result<void> SendReply(std::uint64_t request_id, Reply reply);
  Result<void> SendBody(FrameType type, std::uint64_t request_id, std::span<const std::byte> body);
  Result<void> SendError(std::uint64_t request_id, const Error& error);
  Result<void> SendBusy(std::uint64_t request_id);
  // Damage and malformed bodies end the connection; other errors are the request's alone.
  Result<void> Refuse(const FrameHeader& header, const Error& error);

  // Goes on over a queue pair that the frame that has come asks for; the connection that it came by
  // stays below it. On failure the endpoint is as it was.
  Result<void> MoveToRdma(net::RdmaRails& rails);

  // Takes no more frames; the connection closes when all is sent.
  void EndWhenSent() noexcept { is_ending_ = true; }
  bool is_ending() const noexcept { return is_ending_; }
  // Why the connection ends; for the log. The last one counts. Empty: there is nothing to tell.
  void SetFault(std::string fault) { fault_ = std::move(fault); }
  const std::string& fault() const noexcept { return fault_; }

 private:
  // A payload that is being received or fetched: what to do with it then.
  struct Incoming {
    FrameHeader header;
    PooledBuffer buffer;
    PayloadTaker then;
  };

  FrameHeader HeaderOf(FrameType type, std::uint64_t request_id) const noexcept;

  WorkerMetrics& metrics_;
  const std::atomic<std::uint32_t>* const map_version_;
  OutgoingPayload payload_;  // Outlives the endpoint, which borrows from it.
  std::unique_ptr<net::Endpoint> endpoint_;
  std::optional<Incoming> incoming_;
  bool is_ending_ = false;
  std::string fault_;
};

}  // namespace ffrecord::server
