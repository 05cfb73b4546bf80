#pragma once

#include <array>
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

#include "libffrecord/base/clock.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/net/protocol/frame.h"

namespace ffrecord::net {

using ffrecord::Clock;
using Deadline = Clock::time_point;

using ChannelBinding = std::array<std::byte, 32>;

class DescriptorPassing;
class RemoteMemory;

// One connection to one peer: frames go both ways, and payloads land where the receiver says.
//
// Thread-bound and never blocking: Poll() does what can be done now, and WaitReady() is the one
// place to wait. Nothing is called back. Not inherited: a forked child drops its endpoints without
// touching the connection.
//
// Receiving is a dialogue: Poll() returns kFrame; header() and body() are valid until the next
// Poll(). If header().payload_size_bytes > 0, call ReceivePayload() with the places before the next
// Poll(); kPayload then says that all bytes have arrived. Frames may have been read ahead, so
// Poll() until kNone before waiting for fd().
//
// Any error but kInvalidArgument, which changes nothing, closes the endpoint; later calls fail with
// kUnavailable and repeat the reason. A frame that is malformed, too large, or fails a check is
// kCorruption; a connection that breaks is kUnavailable, also in the middle of a frame.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  // "tcp", "tls", "shm" or "rdma".
  virtual std::string_view transport() const noexcept = 0;
  // How what is sent is enciphered: "TLSv1.3 TLS_AES_256_GCM_SHA384", with ", by the kernel" behind
  // it if that is so. Empty: it is not.
  virtual std::string cipher() const { return {}; }
  // A secret that both ends of an enciphered connection share, and nobody else knows: the
  // tls-exporter of RFC 9266. None where nothing is enciphered. Requires that a frame has come, or
  // was sent.
  virtual std::optional<ChannelBinding> channel_binding() const { return std::nullopt; }
  // Whether the peer's address is one of this host's: loopback, or the one that this end has too.
  // It may still be on another machine, behind a tunnel that ends on this one.
  virtual bool has_local_peer() const noexcept { return false; }
  // For messages: "10.0.0.1:9400".
  virtual const std::string& peer() const noexcept = 0;

  // Limits for what the peer may send; starts at kLimitsBeforeHello.
  virtual void SetLimits(const FrameLimits& limits) noexcept = 0;

  // Queues a frame. `body` is copied. The pieces of `payload` are borrowed until they have been
  // sent or the endpoint is closed: frames leave in their order, so those are all but the last
  // payload_bytes_queued() bytes of payload. Sizes in `header` are set from the arguments. Fails
  // with kInvalidArgument past the sizes of FrameLimits{}.
  virtual Result<void> Send(FrameHeader header, std::span<const std::byte> body,
                            std::span<const std::span<const std::byte>> payload) = 0;

  // Bytes that may be mapped from a file: then `file` is open on it, and they begin there at
  // `file_offset_bytes`. Else `file` is -1.
  struct MappedPiece {
    std::span<const std::byte> bytes;
    int file = -1;
    std::uint64_t file_offset_bytes = 0;
  };
  // Send() of pieces that a transport may have the kernel move from the file, without a copy. They
  // are borrowed together with their files, which do not change. Requires that this thread blocks
  // or ignores SIGPIPE, against which sendfile(2) has no flag.
  virtual Result<void> SendMapped(FrameHeader header, std::span<const std::byte> body,
                                  std::span<const MappedPiece> payload);

  // Interfaces that only some transports have; null on the others. They belong to this endpoint,
  // and are the same for as long as it lives: once it is closed, their calls fail as its own.
  virtual RemoteMemory* remote_memory() noexcept { return nullptr; }     // "rdma".
  virtual DescriptorPassing* descriptors() noexcept { return nullptr; }  // "shm".

  // Bytes of queued frames not yet given to the transport; the same of payload alone. Once the
  // endpoint is closed: how many were dropped.
  virtual std::uint64_t bytes_queued() const noexcept = 0;
  virtual std::uint64_t payload_bytes_queued() const noexcept = 0;

  // Bytes that the transport has taken, and that have come, since the beginning: whether a frame
  // goes on. Memory that the other end writes or reads on its own does not count.
  virtual std::uint64_t bytes_sent() const noexcept = 0;
  virtual std::uint64_t bytes_received() const noexcept = 0;
  // Whether a frame has begun to come and is not complete, with its payload.
  virtual bool is_receiving() const noexcept = 0;

  enum class Event : std::uint8_t {
    kNone,     // Nothing more can be done now.
    kFrame,    // A frame: header() and body() hold it.
    kPayload,  // The payload of that frame has arrived.
    kClosed,   // The peer has closed in good order, between frames; so this end is closed too.
  };
  // Sends and receives as far as possible without waiting; returns at the first event. Fails with
  // kInvalidArgument while a payload has no places; it sends even then.
  virtual Result<Event> Poll() = 0;
  virtual const FrameHeader& header() const noexcept = 0;
  virtual std::span<const std::byte> body() const noexcept = 0;

  // Where the payload of the current frame goes: pieces that add up to its size exactly (else
  // kInvalidArgument), borrowed until kPayload or until the endpoint is closed.
  virtual Result<void> ReceivePayload(std::span<const std::span<std::byte>> places) = 0;

  // For poll(2) or level-triggered epoll: readable always matters, writable only while
  // wants_room(). -1 after Close().
  virtual int fd() const noexcept = 0;
  virtual bool wants_room() const noexcept { return bytes_queued() > 0; }

  // Ends the connection; queued frames are dropped. Idempotent.
  virtual void Close() noexcept = 0;
};

// Waits until one of `endpoints` may be able to make progress, or until `deadline`. Returns false
// at the deadline, and as soon as the thread's patience (libffrecord/base/patience.h) is over. Null
// entries are skipped. `wake_fd`, if not -1, also ends the wait when it is readable. Requires that
// each one's last Poll() said kNone, or that it is closed. Fails with kIo.
Result<bool> WaitReady(std::span<Endpoint* const> endpoints, Deadline deadline, int wake_fd = -1);

// Sends everything queued on `endpoint`. Fails with kDeadlineExceeded or kUnavailable, and with
// kConflict if a frame arrives meanwhile (header() and body() hold it): for dialogues of one
// request and one reply.
Result<void> Flush(Endpoint& endpoint, Deadline deadline);

// Waits for the next event other than kNone. Fails with kDeadlineExceeded, naming the peer and
// what was waited for (`what`).
Result<Endpoint::Event> NextEvent(Endpoint& endpoint, Deadline deadline, std::string_view what);

// --- TCP ---------------------------------------------------------------------------------------

// Where to connect or listen. IPv4, IPv6 or a name; port 0 lets the kernel choose.
struct Address {
  std::string host;
  std::uint16_t port = 0;

  // "host:port", "[v6]:port". Fails with kInvalidArgument. Port `port_default` if none is given.
  static Result<Address> Parse(std::string_view text, std::uint16_t port_default);
  std::string ToString() const;
};

// Fails with kUnavailable (refused, unreachable, no such host), kDeadlineExceeded, or kIo if
// descriptors run out; the message names the address and the remedy.
Result<std::unique_ptr<Endpoint>> ConnectTcp(const Address& address, Deadline deadline);

class TlsContext;

// Takes connections. Thread-bound, never blocks. fd() is readable when Accept() has something.
class TcpListener {
 public:
  // Fails with kConflict if the port is in use, kDenied if this user may not take it,
  // kInvalidArgument if there is no such host, kIo otherwise; names the address and the remedy.
  static Result<TcpListener> Listen(const Address& address, int backlog = 1024);

  // A connection, or null if nobody waits; over TLS if `tls` is given. Fails with kIo, also when
  // descriptors run out.
  Result<std::unique_ptr<Endpoint>> Accept(const TlsContext* tls = nullptr);
  const Address& address() const noexcept { return address_; }  // With the port that was chosen.
  int fd() const noexcept { return fd_.get(); }

 private:
  TcpListener(UniqueFd fd, Address address) noexcept
      : fd_(std::move(fd)), address_(std::move(address)) {}
  UniqueFd fd_;
  Address address_;
};

// --- Within one machine --------------------------------------------------------------------------

// Sockets called by a name of this machine's (of its network namespace; nothing in a file system):
// their endpoints are "shm", and pass descriptors (of the memory of slab.h). The name is
// 1 to 100 bytes.

// The user whose process may listen there. Any user may take a local name: a client that accepts
// kAnybody must have the peer prove itself before it sends a secret.
enum class LocalOwner : std::uint8_t { kAnybody, kThisUser };

// Fails with kUnavailable if nobody listens under `name` in this network namespace, with kDenied if
// another `owner` does, with kDeadlineExceeded, kInvalidArgument, kIo. `peer` is for messages.
Result<std::unique_ptr<Endpoint>> ConnectLocal(const std::string& name, std::string peer,
                                               Deadline deadline,
                                               LocalOwner owner = LocalOwner::kAnybody);

// Takes connections. Thread-bound, never blocks. fd() is readable when Accept() has something.
class LocalListener {
 public:
  // Fails with kConflict if the name is taken, kInvalidArgument, kIo.
  static Result<LocalListener> Listen(const std::string& name, int backlog = 1024);

  // As TcpListener's; the peer is called by its process and user: "pid=7,uid=1000".
  Result<std::unique_ptr<Endpoint>> Accept();
  const std::string& name() const noexcept { return name_; }
  int fd() const noexcept { return fd_.get(); }

 private:
  LocalListener(UniqueFd fd, std::string name) noexcept
      : fd_(std::move(fd)), name_(std::move(name)) {}
  UniqueFd fd_;
  std::string name_;
};

}  // namespace ffrecord::net
