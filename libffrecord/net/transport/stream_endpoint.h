#pragma once

#include <sys/uio.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libffrecord/net/transport/descriptor_passing.h"
#include "libffrecord/net/transport/endpoint.h"
#include "libffrecord/net/transport/remote_memory.h"

namespace ffrecord::net {

// RemoteMemory below the frames: what a stream does with memory of the peer, beside its bytes.
class OneSidedStream {
 public:
  // Moves what it can of pieces, which it uses up, into memory of the peer, as ByteStream::Write;
  // bytes that are written afterwards arrive behind them.
  virtual Result<std::size_t> WritePlaced(std::span<RemoteMemory::PlacedPiece> pieces) = 0;
  // Fetch begins to read the peer's memory, one piece at a time. HasFetched, to be asked before
  // each wait, tells whether all of it is in its place. Both fail as ByteStream::Read.
  virtual Result<void> Fetch(const RemoteRegion& source, std::span<std::byte> place) = 0;
  virtual Result<bool> HasFetched() = 0;
  // As RemoteMemory's.
  virtual Result<RemoteRegion> Expose(std::span<std::byte> bytes, RemoteMemory::Reach reach) = 0;
  virtual Result<PooledBuffer> MakeStaging(std::size_t size_bytes) = 0;

 protected:
  ~OneSidedStream() = default;
};

// A two-way stream of bytes that an endpoint speaks frames over: a socket, or memory.
//
// Thread-bound, never blocks.
class ByteStream {
 public:
  virtual ~ByteStream() = default;

  virtual std::string_view transport() const noexcept = 0;
  virtual int fd() const noexcept = 0;               // As Endpoint::fd().
  virtual std::string cipher() const { return {}; }  // As Endpoint's.
  virtual std::optional<ChannelBinding> channel_binding() const {
    return std::nullopt;
  }                                                               // As Endpoint's.
  virtual bool has_local_peer() const noexcept { return false; }  // As Endpoint's.
  // Whether fd() being writable would help, with or without something to be written.
  virtual bool wants_room(bool has_queued) const noexcept { return has_queued; }

  // Null: it reaches no memory of the peer. The same for as long as the stream lives.
  virtual OneSidedStream* one_sided() noexcept { return nullptr; }

  // Moves what it can, from the front of the first piece on, and returns how many bytes; 0 if it
  // would have to wait. Fails with kUnavailable if the connection is gone, with kIo otherwise.
  // `descriptor`, if not -1, goes with the first of these bytes, if any is written.
  virtual Result<std::size_t> Write(std::span<const iovec> pieces, int descriptor) = 0;

  // Whether WriteFile may be called. It moves what it can of a range of a file, as Write, without a
  // copy; kIo if the file is shorter.
  virtual bool moves_files() const noexcept { return false; }
  virtual Result<std::size_t> WriteFile(int /*file*/, std::uint64_t /*offset_bytes*/,
                                        std::size_t /*size_bytes*/) {
    return Error{ErrorCode::kInvalidArgument, "this stream moves no files"};
  }

  // The same for reading; nullopt if it would have to wait, 0 at the end of the stream. Requires
  // room for at least one byte.
  virtual Result<std::optional<std::size_t>> Read(std::span<const iovec> pieces) = 0;

  // fd() need not be readable before so many bytes can be read, or the connection has ended: who
  // waits for much is not woken for each part of it. Only a hint. Requires at least 1.
  virtual void Await(std::size_t /*size_bytes*/) noexcept {}

  // Whether Write may be given descriptors. Others than SetDescriptorLimit allows, which begins
  // with none, are kCorruption to Read. TakeDescriptor: as DescriptorPassing's.
  virtual bool carries_descriptors() const noexcept { return false; }
  virtual void SetDescriptorLimit(std::size_t /*count_max*/) noexcept {}
  virtual ForeignFd TakeDescriptor() noexcept { return {}; }
};

// Frames over a stream of bytes, which all transports share.
//
// Small frames are read many at a time through a buffer; payloads and large bodies go straight to
// their place, and the same call reads ahead into the buffer what follows them.
class StreamEndpoint final : public Endpoint, private RemoteMemory, private DescriptorPassing {
 public:
  // `peer` is for messages only.
  StreamEndpoint(std::unique_ptr<ByteStream> stream, std::string peer);

  std::string_view transport() const noexcept override { return transport_; }
  std::string cipher() const override { return stream_ ? stream_->cipher() : std::string(); }
  std::optional<ChannelBinding> channel_binding() const override {
    return stream_ ? stream_->channel_binding() : std::nullopt;
  }
  bool has_local_peer() const noexcept override { return stream_ && stream_->has_local_peer(); }
  const std::string& peer() const noexcept override { return peer_; }
  void SetLimits(const FrameLimits& limits) noexcept override {
    limits_ = limits;
    if (stream_) stream_->SetDescriptorLimit(limits.descriptor_count_max);
  }
  Result<void> Send(FrameHeader header, std::span<const std::byte> body,
                    std::span<const std::span<const std::byte>> payload) override;
  Result<void> SendMapped(FrameHeader header, std::span<const std::byte> body,
                          std::span<const MappedPiece> payload) override;
  RemoteMemory* remote_memory() noexcept override { return has_remote_memory_ ? this : nullptr; }
  DescriptorPassing* descriptors() noexcept override { return has_descriptors_ ? this : nullptr; }
  std::uint64_t bytes_queued() const noexcept override { return bytes_queued_; }
  std::uint64_t payload_bytes_queued() const noexcept override { return payload_bytes_queued_; }
  std::uint64_t bytes_sent() const noexcept override { return bytes_sent_; }
  std::uint64_t bytes_received() const noexcept override { return bytes_received_; }
  bool is_receiving() const noexcept override {
    return stage_ != Stage::kHeader || buffered_bytes() > 0;
  }
  Result<Event> Poll() override;
  const FrameHeader& header() const noexcept override { return header_; }
  std::span<const std::byte> body() const noexcept override { return body_; }
  Result<void> ReceivePayload(std::span<const std::span<std::byte>> places) override;
  int fd() const noexcept override { return stream_ ? stream_->fd() : -1; }
  bool wants_room() const noexcept override {
    return stream_ && stream_->wants_room(bytes_queued_ > 0);
  }
  void Close() noexcept override;

 private:
  Result<RemoteRegion> Expose(std::span<std::byte> bytes, Reach reach) override;
  Result<void> SendPlaced(FrameHeader header, std::span<const std::byte> body,
                          std::span<const PlacedPiece> pieces) override;
  Result<PooledBuffer> MakeStaging(std::size_t size_bytes) override;
  Result<void> FetchPayload(const RemoteRegion& source, std::span<std::byte> place) override;
  Result<void> SendDescriptor(FrameHeader header, std::span<const std::byte> body,
                              int descriptor) override;
  ForeignFd TakeDescriptor() noexcept override;

  // The part that is being received. kPlaces: a frame was returned and its payload has no place
  // yet. kFetch: its payload is read from the peer's memory.
  enum class Stage : std::uint8_t { kHeader, kBody, kPlaces, kPayload, kFetch };
  enum class Progress : std::uint8_t { kDone, kWaiting, kEnded };

  // A part of a queued frame: its header and body, or a borrowed piece of its payload.
  struct Outgoing {
    std::span<const std::byte> rest;
    std::unique_ptr<std::byte[]> owned = {};
    UniqueFd descriptor = {};  // Leaves with the first byte.
    int file = -1;             // Moved from there by the stream, if not -1.
    std::uint64_t file_offset_bytes = 0;
    std::optional<RemoteRegion> place = {};  // Where it goes, if not into the stream.
  };

  // False if nothing can be sent any more, which Poll() reports. Fails past the limits.
  Result<bool> CheckSending(std::span<const std::byte> body,
                            std::uint64_t payload_size_bytes) const;
  // Queues header and body of a frame whose payload, of `payload_size_bytes`, is queued next.
  void QueueHead(FrameHeader header, std::span<const std::byte> body,
                 std::uint64_t payload_size_bytes, UniqueFd descriptor);
  // Gives the stream what stands first in the queue: how much of how much it took.
  struct Step {
    std::size_t sent_bytes;
    std::size_t offered_bytes;
  };
  Result<Step> SendFirst();
  Result<Step> SendPlacedFirst();
  std::size_t Gather(std::span<iovec> pieces, std::size_t& size_bytes);
  Result<void> SendQueued();
  void Sent(std::size_t size_bytes);
  Result<Event> Receive();
  Result<void> ReceiveHeader();
  Result<Progress> FillBuffer(std::size_t size_bytes);
  Result<Progress> FillPlaces();
  Result<Progress> Read(std::span<const iovec> pieces, std::size_t& size_bytes);
  Result<Event> Ended();
  Result<Event> FrameReceived();
  std::size_t buffered_bytes() const { return buffer_end_ - buffer_begin_; }
  bool body_fits_buffer() const;
  void AwaitMore() noexcept;
  void GrowLargeBody();
  Error Fail(Error error);

  std::unique_ptr<ByteStream> stream_;  // Null once closed.
  const std::string_view transport_;
  const bool has_remote_memory_;
  const bool has_descriptors_;
  const std::string peer_;
  std::string why_closed_;
  FrameLimits limits_ = kLimitsBeforeHello;

  std::deque<Outgoing> queue_;
  std::uint64_t bytes_queued_ = 0;
  std::uint64_t payload_bytes_queued_ = 0;
  std::uint64_t bytes_sent_ = 0;
  std::uint64_t bytes_received_ = 0;
  std::optional<Error> send_error_;  // Reported after what the peer said before it went.

  Stage stage_ = Stage::kHeader;
  FrameHeader header_;
  std::span<const std::byte> body_;  // In buffer_ or in large_body_.
  // Only for a body that does not fit buffer_. Grows as it comes: a header alone is worth no
  // memory.
  std::vector<std::byte> large_body_;
  std::vector<std::span<std::byte>> places_;  // Still to be filled; the first may have begun.
  std::size_t places_begin_ = 0;
  const std::unique_ptr<std::byte[]> buffer_;
  std::size_t buffer_begin_ = 0;  // Bytes received but not yet used: [begin, end).
  std::size_t buffer_end_ = 0;
  bool drained_ = false;  // The last read got less than it asked for: the next would get nothing.
};

}  // namespace ffrecord::net
