#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>

#include "libffrecord/base/event_fd.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/net/transport/rdma/queue_pair.h"
#include "libffrecord/net/transport/stream_endpoint.h"

namespace ffrecord::net {

// A stream of bytes as messages between two queue pairs, held back by credits: a message is sent
// only into a buffer that the peer has posted, so that none is ever refused.
//
// fd() is an epoll of four things: the queue pair's events; the control connection, whose end is
// the only sign of a peer that died while nothing was under way to it; the end of the device; and a
// bell that rings while something was found on the way that the next call must know.
class RdmaStream final : public ByteStream, private OneSidedStream {
 public:
  // `may_send`: the peer is known to be ready; else it is once it has said something. Takes
  // `control` if it succeeds.
  static Result<std::unique_ptr<RdmaStream>> Make(std::shared_ptr<OpenRdmaDevice> device,
                                                  std::unique_ptr<QueuePair> queue_pair,
                                                  std::unique_ptr<Endpoint>& control,
                                                  const RdmaConnect& peer, bool may_send);
  ~RdmaStream() override;

  std::string_view transport() const noexcept override { return "rdma"; }
  int fd() const noexcept override { return epoll_.get(); }
  Result<std::size_t> Write(std::span<const iovec> pieces, int descriptor) override;
  Result<std::optional<std::size_t>> Read(std::span<const iovec> pieces) override;
  OneSidedStream* one_sided() noexcept override { return this; }

 private:
  Result<std::size_t> WritePlaced(std::span<RemoteMemory::PlacedPiece> pieces) override;
  Result<void> Fetch(const RemoteRegion& source, std::span<std::byte> place) override;
  Result<bool> HasFetched() override;
  Result<RemoteRegion> Expose(std::span<std::byte> bytes, RemoteMemory::Reach reach) override;
  Result<PooledBuffer> MakeStaging(std::size_t size_bytes) override;

  // A message of which the bytes [begin, end) have not been read yet.
  struct Arrived {
    std::uint32_t buffer;
    std::uint32_t begin;
    std::uint32_t end;
  };

  RdmaStream(std::shared_ptr<OpenRdmaDevice> device, std::unique_ptr<QueuePair> queue_pair,
             const RdmaConnect& peer, bool may_send);
  Result<void> MakeDescriptor(const Endpoint& control);
  // Updates the state of the peer; fails with the error that broke the connection, or its end.
  Result<void> LookBeforeSending();
  bool CanSend() const noexcept;
  bool HasWaitedEnough() const noexcept;
  Result<void> SendMessage(std::uint32_t size_bytes, bool is_last);
  // Takes what has arrived. An error that breaks the connection is kept in broken_, for the reader.
  void TakeMessages();
  Result<void> TakeMessage(const QueuePair::Received& message);
  Result<std::size_t> CopyArrived(std::span<const iovec> pieces);
  Result<void> Free(std::uint32_t buffer);
  // Before the caller waits: asks for events and looks again. True if there is more to read.
  bool PrepareToWait();
  void LookForEnd();
  void Ring(bool on) noexcept;

  const std::shared_ptr<OpenRdmaDevice> device_;
  std::unique_ptr<QueuePair> queue_pair_;
  std::unique_ptr<Endpoint> control_;
  const HomeProcess home_;
  const std::uint32_t message_size_bytes_max_;
  const std::uint32_t credits_max_;
  UniqueFd epoll_;
  EventFd bell_;
  bool rings_ = false;

  bool may_send_;
  // The last call could not send all, or not write all into the peer's memory.
  enum class Wait : std::uint8_t { kNone, kToSend, kToPlace };
  Wait waits_ = Wait::kNone;
  std::uint32_t credits_;   // Buffers of the peer that are free for our messages.
  std::uint32_t owed_ = 0;  // Buffers of ours that are free again, and the peer not told.
  std::deque<Arrived> arrived_;
  bool has_ended_ = false;  // The peer's last word has come.
  std::optional<Error> broken_;
};

}  // namespace ffrecord::net
