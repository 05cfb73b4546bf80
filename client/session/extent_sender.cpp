#include "client/session/extent_sender.h"

#include <cstring>

#include "client/session/slabs.h"
#include "libffrecord/base/assert.h"

namespace ffrecord::client {
namespace {

using net::FrameType;

// What one PUT_DATA carries: enough that its frame costs nothing, little enough that the daemon
// writes the first piece while the next one travels.
constexpr std::size_t kPayloadSizeMax = std::size_t{2} << 20;

std::uint32_t PlaceOf(std::uint32_t piece_number) {
  return piece_number % kUploadPieceCount * kUploadPieceBytes;
}

}  // namespace

ExtentSender::~ExtentSender() {
  if (!under_way_.empty())
    (void)channel_.Break({ErrorCode::kUnavailable, "an upload was given up"});
}

Result<std::span<std::byte>> ExtentSender::Room() {
  if (is_pulled()) {
    if (under_way_.size() == kUploadPieceCount) FFR_TRY(AwaitOldest());
    return channel_.uploads->slab.bytes().subspan(PlaceOf(piece_number_), kUploadPieceBytes);
  }
  if (!buffer_) buffer_ = FFR_TRY(BufferPool::Process().Take(kPayloadSizeMax));
  return *buffer_;
}

Result<void> ExtentSender::Send(std::span<const std::byte> piece) {
  if (is_pulled()) return SendPulled(piece);
  FFR_TRY(channel_.Send(FrameType::kPutData, net::PutData{id_, sent_bytes_}.Encode(), {&piece, 1}));
  FFR_TRY(channel_.Flush(deadline_));
  sent_bytes_ += piece.size();
  return {};
}

Result<void> ExtentSender::SendPulled(std::span<const std::byte> piece) {
  FFR_ASSERT(under_way_.size() < kUploadPieceCount && piece.size() <= kUploadPieceBytes);
  const std::uint32_t offset_bytes = PlaceOf(piece_number_++);
  std::byte* const place = channel_.uploads->slab.bytes().data() + offset_bytes;
  if (piece.data() != place) std::memcpy(place, piece.data(), piece.size());
  const net::PutPull pull{id_, sent_bytes_, channel_.uploads->slab_id, offset_bytes,
                          static_cast<std::uint32_t>(piece.size())};
  under_way_.push_back(FFR_TRY(channel_.Send(FrameType::kPutPull, pull.Encode())));
  sent_bytes_ += piece.size();
  // It leaves now, while the next one is made ready.
  while (!under_way_.empty() && FFR_TRY(channel_.Push())) FFR_TRY(AwaitOldest());
  return {};
}

Result<void> ExtentSender::Finish() {
  while (!under_way_.empty()) FFR_TRY(AwaitOldest());
  return {};
}

Result<void> ExtentSender::AwaitOldest() {
  const std::uint64_t oldest = under_way_.front();
  under_way_.pop_front();
  const auto header = FFR_TRY(channel_.Receive(oldest, deadline_, "a piece to be taken"));
  if (header.type == net::ReplyTo(FrameType::kPutPull)) return {};
  return channel_.Break({ErrorCode::kUnavailable, channel_.peer() +
                                                      " sent another frame where a piece was to be "
                                                      "taken"});
}

}  // namespace ffrecord::client
