#include "libffrecord/net/rpc/extent_sender.h"

#include <cstring>

#include "libffrecord/base/assert.h"
#include "libffrecord/net/transport/unsent.h"
#include "libffrecord/pace/gate.h"

namespace ffrecord::net {
namespace {

// The payload of one PUT_DATA: enough that its frame costs nothing, little enough that the daemon
// writes the first piece while the next one travels.
constexpr std::size_t kPayloadSizeMax = std::size_t{2} << 20;

// Bytes that a paced connection keeps in the kernel beyond those that travel: they leave in a
// phase, too.
constexpr int kUnsentSizeMax = 64 << 10;

std::uint32_t PlaceOf(std::uint32_t piece_number) {
  return piece_number % Connection::kUploadPieceCount * Connection::kUploadPieceBytes;
}

}  // namespace

Result<std::uint64_t> SendPutBegin(Channel& channel, PutBegin begin, TrafficClass traffic) {
  channel.MarkAs(traffic);
  if ((channel.hello().capabilities & kCapabilityUploadClass) != 0)
    begin.traffic_class = StatedClass(traffic);
  return channel.Send(FrameType::kPutBegin, begin.Encode());
}

ExtentSender::~ExtentSender() {
  if (!under_way_.empty())
    (void)connection_.Break({ErrorCode::kUnavailable, "an upload was given up"});
}

Deadline ExtentSender::HalfWayTo(Deadline deadline) {
  const auto now = Clock::now();
  return deadline <= now ? now : now + (deadline - now) / 2;
}

Result<std::span<std::byte>> ExtentSender::Room() {
  if (is_pulled()) {
    if (under_way_.size() == Connection::kUploadPieceCount) FFR_TRY(AwaitOldest());
    return connection_.upload_memory().subspan(PlaceOf(piece_number_),
                                               Connection::kUploadPieceBytes);
  }
  if (!buffer_) buffer_ = FFR_TRY(BufferPool::Process().Take(kPayloadSizeMax));
  return *buffer_;
}

Result<void> ExtentSender::Send(std::span<const std::byte> piece) {
  if (is_pulled()) return SendPulled(piece);
  return pace::IsOn() ? SendPaced(piece) : SendPayload(piece, {});
}

Result<void> ExtentSender::SendPaced(std::span<const std::byte> piece) {
  LimitUnsent(*connection_.endpoint(), kUnsentSizeMax);
  while (!piece.empty()) {
    const auto asked = Clock::now();
    const std::uint64_t part = pace::AwaitPart(TrafficClass::kCheckpoint, piece.size(),
                                               pace::kLeastPartBytes, held_until_);
    FFR_TRY(SendPayload(piece.first(part), Clock::now() - asked));
    piece = piece.subspan(part);
  }
  return {};
}

Result<void> ExtentSender::SendPayload(std::span<const std::byte> piece, Clock::duration held) {
  const ProfiledSpan span;
  FFR_TRY(connection_.Send(FrameType::kPutData, PutData{id_, sent_bytes_}.Encode(), {&piece, 1}));
  FFR_TRY(connection_.Flush(deadline_));
  sent_bytes_ += piece.size();
  Profile(span, piece.size(), held);
  return {};
}

Result<void> ExtentSender::SendPulled(std::span<const std::byte> piece) {
  FFR_ASSERT(under_way_.size() < Connection::kUploadPieceCount &&
             piece.size() <= Connection::kUploadPieceBytes);
  const auto asked = Clock::now();
  // Within a machine it needs no link.
  if (pace::IsOn() && connection_.remote_memory() != nullptr)
    pace::AwaitPart(TrafficClass::kCheckpoint, piece.size(), piece.size(), held_until_);
  const auto held = Clock::now() - asked;
  const ProfiledSpan span;
  const std::uint32_t offset_bytes = PlaceOf(piece_number_++);
  std::byte* const place = connection_.upload_memory().data() + offset_bytes;
  if (piece.data() != place) std::memcpy(place, piece.data(), piece.size());
  const PutPull pull{id_, sent_bytes_, connection_.upload_slab_id(), offset_bytes,
                     static_cast<std::uint32_t>(piece.size())};
  under_way_.push_back(FFR_TRY(connection_.Send(FrameType::kPutPull, pull.Encode())));
  sent_bytes_ += piece.size();
  // It leaves now, while the next one is made ready.
  while (!under_way_.empty() && FFR_TRY(connection_.Push())) FFR_TRY(AwaitOldest());
  Profile(span, piece.size(), held);
  return {};
}

void ExtentSender::Profile(const ProfiledSpan& span, std::uint64_t size_bytes,
                           Clock::duration held) {
  span.End({.size_bytes = size_bytes,
            .first = ProfiledSpan::MicrosecondsOf(held),
            .kind = static_cast<std::uint16_t>(ProfileKind::kUpload),
            .name = name_.Of(connection_.peer())});
}

Result<void> ExtentSender::Finish() {
  while (!under_way_.empty()) FFR_TRY(AwaitOldest());
  return {};
}

Result<void> ExtentSender::AwaitOldest() {
  const std::uint64_t oldest = under_way_.front();
  under_way_.pop_front();
  const auto header = FFR_TRY(connection_.Receive(oldest, deadline_, "a piece to be taken"));
  if (header.type == ReplyTo(FrameType::kPutPull)) return {};
  return connection_.Break(
      {ErrorCode::kUnavailable, connection_.peer() + " sent another frame where a piece was to be "
                                                     "taken"});
}

}  // namespace ffrecord::net
