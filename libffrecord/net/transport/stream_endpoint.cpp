#include "libffrecord/net/transport/stream_endpoint.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "libffrecord/base/assert.h"

namespace ffrecord::net {
namespace {

// Some dozens of small frames, or a batch request of a thousand records. An idle connection costs
// little more than this.
constexpr std::size_t kBufferSizeBytes = 16 << 10;
// Pieces moved by one call of the stream; the kernel takes no more.
constexpr std::size_t kPiecesMax = 1024;
// The same where each piece goes to a place of its own.
constexpr std::size_t kPlacedPiecesMax = 128;
// A smaller piece of a file costs less to copy than a call of its own.
constexpr std::size_t kMovedSizeBytesMin = 32 << 10;
// A read of a payload waits for so much at once: enough that being woken costs little, little
// enough that the rest arrives meanwhile.
constexpr std::size_t kAwaitedSizeBytesMax = 256 << 10;
// The limits that any peer accepts: sending more would only close the connection there.
constexpr FrameLimits kSendLimits{};

iovec Piece(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

std::span<const std::byte> BytesOf(std::span<const std::byte> piece) { return piece; }
std::span<const std::byte> BytesOf(const Endpoint::MappedPiece& piece) { return piece.bytes; }
std::span<const std::byte> BytesOf(const RemoteMemory::PlacedPiece& piece) {
  return piece.source.bytes;
}

// Past every limit if a piece is: sums of the others do not wrap.
template <class Payload>
std::uint64_t SizeOf(const Payload& payload) {
  std::uint64_t size_bytes = 0;
  for (const auto& piece : payload) {
    if (BytesOf(piece).size() > kSendLimits.payload_size_bytes_max) return UINT64_MAX;
    size_bytes += BytesOf(piece).size();
  }
  return size_bytes;
}

}  // namespace

StreamEndpoint::StreamEndpoint(std::unique_ptr<ByteStream> stream, std::string peer)
    : stream_(std::move(stream)),
      transport_(stream_->transport()),
      has_remote_memory_(stream_->one_sided() != nullptr),
      has_descriptors_(stream_->carries_descriptors()),
      peer_(std::move(peer)),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(kBufferSizeBytes)) {}

void StreamEndpoint::Close() noexcept {
  if (!stream_) return;
  stream_.reset();
  if (why_closed_.empty()) why_closed_ = "was closed on this side";
  queue_.clear();
}

Error StreamEndpoint::Fail(Error error) {
  error.message = std::string(transport_) + " connection to " + peer_ + ": " + error.message;
  why_closed_ = "was closed after: " + error.message;
  Close();
  return error;
}

// --- Sending -------------------------------------------------------------------------------------

Result<void> StreamEndpoint::Send(FrameHeader header, std::span<const std::byte> body,
                                  std::span<const std::span<const std::byte>> payload) {
  const std::uint64_t size_bytes = SizeOf(payload);
  if (!FFR_TRY(CheckSending(body, size_bytes))) return {};
  QueueHead(header, body, size_bytes, {});
  for (const auto& piece : payload)
    if (!piece.empty()) queue_.push_back({.rest = piece});
  return {};
}

Result<void> StreamEndpoint::SendMapped(FrameHeader header, std::span<const std::byte> body,
                                        std::span<const MappedPiece> payload) {
  const std::uint64_t size_bytes = SizeOf(payload);
  if (!FFR_TRY(CheckSending(body, size_bytes))) return {};
  QueueHead(header, body, size_bytes, {});
  for (const MappedPiece& piece : payload) {
    if (piece.bytes.empty()) continue;
    const bool is_moved = stream_->moves_files() && piece.bytes.size() >= kMovedSizeBytesMin;
    queue_.push_back({.rest = piece.bytes,
                      .file = is_moved ? piece.file : -1,
                      .file_offset_bytes = piece.file_offset_bytes});
  }
  return {};
}

Result<RemoteRegion> StreamEndpoint::Expose(std::span<std::byte> bytes, Reach reach) {
  FFR_TRY(CheckSending({}, 0));
  return stream_->one_sided()->Expose(bytes, reach);
}

Result<PooledBuffer> StreamEndpoint::MakeStaging(std::size_t size_bytes) {
  FFR_TRY(CheckSending({}, 0));
  return stream_->one_sided()->MakeStaging(size_bytes);
}

Result<void> StreamEndpoint::SendPlaced(FrameHeader header, std::span<const std::byte> body,
                                        std::span<const PlacedPiece> pieces) {
  const std::uint64_t size_bytes = SizeOf(pieces);
  if (!FFR_TRY(CheckSending(body, size_bytes))) return {};
  for (const auto& [source, place] : pieces) {
    if (source.bytes.empty()) continue;
    queue_.push_back({.rest = source.bytes,
                      .file = source.file,
                      .file_offset_bytes = source.file_offset_bytes,
                      .place = place});
  }
  bytes_queued_ += size_bytes;
  payload_bytes_queued_ += size_bytes;
  QueueHead(header, body, 0, {});
  return {};
}

Result<void> StreamEndpoint::SendDescriptor(FrameHeader header, std::span<const std::byte> body,
                                            int descriptor) {
  UniqueFd own(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!own)
    return Error{ErrorCode::kInvalidArgument,
                 "cannot send a descriptor to " + peer_ + ": " + std::string(std::strerror(errno))};
  if (FFR_TRY(CheckSending(body, 0))) QueueHead(header, body, 0, std::move(own));
  return {};
}

ForeignFd StreamEndpoint::TakeDescriptor() noexcept {
  return stream_ ? stream_->TakeDescriptor() : ForeignFd();
}

Result<bool> StreamEndpoint::CheckSending(std::span<const std::byte> body,
                                          std::uint64_t payload_size_bytes) const {
  if (!stream_)
    return Error{ErrorCode::kUnavailable,
                 "cannot send: connection to " + peer_ + " " + why_closed_};
  if (body.size() > kSendLimits.body_size_bytes_max ||
      payload_size_bytes > kSendLimits.payload_size_bytes_max) {
    return Error{ErrorCode::kInvalidArgument,
                 "cannot send a frame to " + peer_ + ": body of " + std::to_string(body.size()) +
                     " or payload passes the limits of 2 MiB and 8 MiB"};
  }
  return !send_error_;  // Poll() reports it, after what the peer may have said last.
}

void StreamEndpoint::QueueHead(FrameHeader header, std::span<const std::byte> body,
                               std::uint64_t payload_size_bytes, UniqueFd descriptor) {
  header.payload_size_bytes = static_cast<std::uint32_t>(payload_size_bytes);
  const std::size_t head_size_bytes = FrameHeader::kEncodedSizeBytes + body.size();
  auto head = std::make_unique_for_overwrite<std::byte[]>(head_size_bytes);
  const std::span<std::byte> bytes(head.get(), head_size_bytes);
  EncodeFrameHeader(header, body, bytes.first<FrameHeader::kEncodedSizeBytes>());
  std::ranges::copy(body, bytes.begin() + FrameHeader::kEncodedSizeBytes);

  queue_.push_back({.rest = bytes, .owned = std::move(head), .descriptor = std::move(descriptor)});
  bytes_queued_ += head_size_bytes + payload_size_bytes;
  payload_bytes_queued_ += payload_size_bytes;
}

// Gathers the pieces that may leave in one call, from the front of the queue on.
std::size_t StreamEndpoint::Gather(std::span<iovec> pieces, std::size_t& size_bytes) {
  std::size_t count = 0;
  for (auto part = queue_.begin(); part != queue_.end() && count < pieces.size(); ++part) {
    // A descriptor goes with the first byte of a call; a file, or what goes elsewhere, is moved by
    // a call of its own.
    if ((count > 0 && part->descriptor) || part->file >= 0 || part->place) break;
    pieces[count++] = Piece(part->rest);
    size_bytes += part->rest.size();
  }
  return count;
}

Result<StreamEndpoint::Step> StreamEndpoint::SendFirst() {
  Outgoing& first = queue_.front();
  if (first.place) return SendPlacedFirst();
  if (first.file >= 0) {
    const std::size_t offered_bytes = first.rest.size();
    return Step{FFR_TRY(stream_->WriteFile(first.file, first.file_offset_bytes, offered_bytes)),
                offered_bytes};
  }
  std::array<iovec, kPiecesMax> pieces;
  std::size_t offered_bytes = 0;
  const std::size_t count = Gather(pieces, offered_bytes);
  const std::size_t sent_bytes =
      FFR_TRY(stream_->Write(std::span(pieces).first(count), first.descriptor.get()));
  if (sent_bytes > 0) first.descriptor.Reset();
  return Step{sent_bytes, offered_bytes};
}

Result<StreamEndpoint::Step> StreamEndpoint::SendPlacedFirst() {
  std::array<PlacedPiece, kPlacedPiecesMax> pieces;
  std::size_t count = 0;
  std::size_t offered_bytes = 0;
  for (auto part = queue_.begin(); part != queue_.end() && part->place && count < kPlacedPiecesMax;
       ++part) {
    pieces[count++] = {{part->rest, part->file, part->file_offset_bytes}, *part->place};
    offered_bytes += part->rest.size();
  }
  return Step{FFR_TRY(stream_->one_sided()->WritePlaced(std::span(pieces).first(count))),
              offered_bytes};
}

Result<void> StreamEndpoint::SendQueued() {
  while (!queue_.empty()) {
    const Step step = FFR_TRY(SendFirst());
    Sent(step.sent_bytes);
    if (step.sent_bytes < step.offered_bytes) break;  // The transport is full.
  }
  return {};
}

void StreamEndpoint::Sent(std::size_t size_bytes) {
  FFR_ASSERT(size_bytes <= bytes_queued_);
  bytes_queued_ -= size_bytes;
  bytes_sent_ += size_bytes;
  while (size_bytes > 0) {
    Outgoing& part = queue_.front();
    const std::size_t moved_bytes = std::min(size_bytes, part.rest.size());
    if (!part.owned) payload_bytes_queued_ -= moved_bytes;
    part.rest = part.rest.subspan(moved_bytes);
    part.file_offset_bytes += moved_bytes;
    if (part.place) part.place->address += moved_bytes;
    size_bytes -= moved_bytes;
    if (part.rest.empty()) queue_.pop_front();
  }
}

// --- Receiving -----------------------------------------------------------------------------------

Result<Endpoint::Event> StreamEndpoint::Poll() {
  if (!stream_) return Error{ErrorCode::kUnavailable, "connection to " + peer_ + " " + why_closed_};
  if (auto sent = SendQueued(); !sent) {
    // The peer may have said why before it went: read that first.
    send_error_ = std::move(sent).error();
    queue_.clear();
  }
  if (stage_ == Stage::kPlaces) {
    return Error{ErrorCode::kInvalidArgument,
                 "the frame from " + peer_ + " has a payload: call ReceivePayload() before Poll()"};
  }
  auto event = Receive();
  if (!event) return Fail(std::move(event).error());
  if (event.value() == Event::kNone && send_error_) return Fail(*send_error_);
  return event;
}

Result<Endpoint::Event> StreamEndpoint::Receive() {
  if (stage_ == Stage::kFetch) {
    if (!FFR_TRY(stream_->one_sided()->HasFetched())) return Event::kNone;
    stage_ = Stage::kHeader;
    drained_ = false;  // Frames may have come meanwhile.
    return Event::kPayload;
  }
  for (;;) {
    const bool by_buffer =
        stage_ == Stage::kHeader || (stage_ == Stage::kBody && body_fits_buffer());
    Result<Progress> progress =
        by_buffer ? FillBuffer(stage_ == Stage::kHeader ? FrameHeader::kEncodedSizeBytes
                                                        : header_.body_size_bytes)
                  : FillPlaces();
    if (!progress) return std::move(progress).error();
    if (progress.value() == Progress::kWaiting) {
      AwaitMore();
      return Event::kNone;
    }
    if (progress.value() == Progress::kEnded) return Ended();

    if (stage_ == Stage::kHeader) {
      FFR_TRY(ReceiveHeader());
    } else if (stage_ == Stage::kBody && !by_buffer &&
               large_body_.size() < header_.body_size_bytes) {
      GrowLargeBody();
    } else if (stage_ == Stage::kBody) {
      return FrameReceived();
    } else {
      stage_ = Stage::kHeader;
      return Event::kPayload;
    }
  }
}

void StreamEndpoint::AwaitMore() noexcept {
  std::size_t size_bytes = 0;
  if (stage_ == Stage::kPayload)
    for (std::size_t i = places_begin_; i < places_.size() && size_bytes < kAwaitedSizeBytesMax;
         ++i)
      size_bytes += places_[i].size();
  stream_->Await(std::clamp<std::size_t>(size_bytes, 1, kAwaitedSizeBytesMax));
}

bool StreamEndpoint::body_fits_buffer() const {
  return header_.body_size_bytes <= kBufferSizeBytes;
}

Result<void> StreamEndpoint::ReceiveHeader() {
  header_ =
      FFR_TRY(DecodeFrameHeader(std::span<const std::byte, FrameHeader::kEncodedSizeBytes>(
                                    buffer_.get() + buffer_begin_, FrameHeader::kEncodedSizeBytes),
                                limits_));
  buffer_begin_ += FrameHeader::kEncodedSizeBytes;
  stage_ = Stage::kBody;
  body_ = {};
  large_body_ = {};
  if (!body_fits_buffer()) GrowLargeBody();
  return {};
}

// Twice of what has come, and as much of it again is to come.
void StreamEndpoint::GrowLargeBody() {
  const std::size_t filled_bytes = large_body_.size();
  large_body_.resize(
      std::min<std::size_t>(header_.body_size_bytes, std::max(2 * filled_bytes, kBufferSizeBytes)));
  places_.assign(1, std::span(large_body_).subspan(filled_bytes));
  places_begin_ = 0;
}

Result<Endpoint::Event> StreamEndpoint::FrameReceived() {
  if (body_fits_buffer()) {
    body_ = {buffer_.get() + buffer_begin_, header_.body_size_bytes};
    buffer_begin_ += header_.body_size_bytes;
  } else {
    body_ = large_body_;
  }
  FFR_TRY(CheckFrameBody(header_, body_));
  stage_ = header_.payload_size_bytes > 0 ? Stage::kPlaces : Stage::kHeader;
  return Event::kFrame;
}

Result<void> StreamEndpoint::ReceivePayload(std::span<const std::span<std::byte>> places) {
  if (!stream_) return Error{ErrorCode::kUnavailable, "connection to " + peer_ + " " + why_closed_};
  std::uint64_t size_bytes = 0;
  for (const auto& place : places) {
    size_bytes += place.size();
    if (place.size() > header_.payload_size_bytes) size_bytes = UINT64_MAX;
    if (size_bytes > header_.payload_size_bytes) break;
  }
  if (stage_ != Stage::kPlaces || size_bytes != header_.payload_size_bytes) {
    return Error{ErrorCode::kInvalidArgument,
                 stage_ != Stage::kPlaces
                     ? "no payload from " + peer_ + " waits for a place"
                     : "the places do not add up to the payload of " +
                           std::to_string(header_.payload_size_bytes) + " bytes from " + peer_};
  }
  places_.clear();
  for (const auto& place : places)
    if (!place.empty()) places_.push_back(place);
  places_begin_ = 0;
  stage_ = Stage::kPayload;
  return {};
}

Result<void> StreamEndpoint::FetchPayload(const RemoteRegion& source, std::span<std::byte> place) {
  if (!stream_) return Error{ErrorCode::kUnavailable, "connection to " + peer_ + " " + why_closed_};
  if (stage_ != Stage::kHeader)
    return Error{ErrorCode::kInvalidArgument,
                 "the frame from " + peer_ + " has a payload of its own, or has it already"};
  auto begun = stream_->one_sided()->Fetch(source, place);
  if (!begun && begun.error().code == ErrorCode::kInvalidArgument) return begun;
  if (!begun) return Fail(std::move(begun).error());
  stage_ = Stage::kFetch;
  return {};
}

// Makes the next `size_bytes` bytes lie together in the buffer.
Result<StreamEndpoint::Progress> StreamEndpoint::FillBuffer(std::size_t size_bytes) {
  while (buffered_bytes() < size_bytes) {
    if (buffer_begin_ == buffer_end_ || kBufferSizeBytes - buffer_begin_ < size_bytes) {
      std::memmove(buffer_.get(), buffer_.get() + buffer_begin_, buffered_bytes());
      buffer_end_ -= buffer_begin_;
      buffer_begin_ = 0;
    }
    const iovec room = Piece({buffer_.get() + buffer_end_, kBufferSizeBytes - buffer_end_});
    std::size_t read_bytes = 0;
    const Progress progress = FFR_TRY(Read({&room, 1}, read_bytes));
    if (progress != Progress::kDone) return progress;
    buffer_end_ += read_bytes;
  }
  return Progress::kDone;
}

// Fills places_: from the buffer, then straight from the stream.
Result<StreamEndpoint::Progress> StreamEndpoint::FillPlaces() {
  const auto place = [this](std::size_t size_bytes) {
    auto& first = places_[places_begin_];
    first = first.subspan(size_bytes);
    if (first.empty()) ++places_begin_;
  };
  while (places_begin_ < places_.size()) {
    if (buffered_bytes() > 0) {
      const std::size_t size_bytes = std::min(buffered_bytes(), places_[places_begin_].size());
      std::memcpy(places_[places_begin_].data(), buffer_.get() + buffer_begin_, size_bytes);
      buffer_begin_ += size_bytes;
      place(size_bytes);
      continue;
    }
    std::array<iovec, kPiecesMax> pieces;
    std::size_t count = 0;
    for (std::size_t i = places_begin_; i < places_.size() && count < kPiecesMax - 1; ++i)
      pieces[count++] = Piece(places_[i]);
    // The same call reads ahead behind the last place. The body lies in the buffer, and stays valid
    // until the next Poll() only, which is now.
    buffer_begin_ = buffer_end_ = 0;
    if (places_.size() - places_begin_ == count)
      pieces[count++] = Piece({buffer_.get(), kBufferSizeBytes});
    std::size_t read_bytes = 0;
    const Progress progress = FFR_TRY(Read(std::span(pieces).first(count), read_bytes));
    if (progress != Progress::kDone) return progress;
    while (read_bytes > 0 && places_begin_ < places_.size()) {
      const std::size_t size_bytes = std::min(read_bytes, places_[places_begin_].size());
      read_bytes -= size_bytes;
      place(size_bytes);
    }
    buffer_end_ = read_bytes;
  }
  return Progress::kDone;
}

Result<StreamEndpoint::Progress> StreamEndpoint::Read(std::span<const iovec> pieces,
                                                      std::size_t& size_bytes) {
  // Once sending has failed, what the peer said last is asked for though it came a moment ago.
  if (std::exchange(drained_, false) && !send_error_) return Progress::kWaiting;
  const auto read = FFR_TRY(stream_->Read(pieces));
  if (!read) return Progress::kWaiting;
  if (*read == 0) return Progress::kEnded;
  std::size_t asked_bytes = 0;
  for (const iovec& piece : pieces) asked_bytes += piece.iov_len;
  drained_ = *read < asked_bytes;
  size_bytes = *read;
  bytes_received_ += *read;
  return Progress::kDone;
}

Result<Endpoint::Event> StreamEndpoint::Ended() {
  // Too few bytes for a header may still say who the peer is.
  if (stage_ == Stage::kHeader)
    FFR_TRY(CheckFrameMagic({buffer_.get() + buffer_begin_, buffered_bytes()}));
  if (stage_ != Stage::kHeader || buffered_bytes() > 0)
    return Error{ErrorCode::kUnavailable, "closed by the peer in the middle of a frame"};
  if (send_error_) return *send_error_;
  why_closed_ = "was closed by the peer";
  Close();
  return Event::kClosed;
}

}  // namespace ffrecord::net
