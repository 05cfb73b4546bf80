#include "server/service/connection/conversation.h"

#include <utility>
#include <vector>

#include "libffrecord/base/assert.h"
#include "libffrecord/net/protocol/daemon_frames.h"
#include "libffrecord/net/protocol/messages.h"

namespace ffrecord::server {
namespace {

constexpr std::uint32_t kRetryAfterMs = 20;
constexpr std::size_t kDiscardedBytes = std::size_t{64} << 10;

}  // namespace

Result<net::Endpoint::Event> Conversation::Poll() {
  const auto event = FFR_TRY(endpoint_->Poll());
  payload_.Release(*endpoint_);
  return event;
}

Result<void> Conversation::TakePayload() {
  FFR_ASSERT(incoming_);
  Incoming incoming = *std::exchange(incoming_, std::nullopt);
  return incoming.then(incoming.header, std::move(incoming.buffer));
}

Result<void> Conversation::Receive(const FrameHeader& header, PayloadTaker then) {
  // A frame may have no payload at all; an upload of nothing is refused by `then`.
  if (header.payload_size_bytes == 0) return then(header, nullptr);
  incoming_ = Incoming{header, FFR_TRY(BufferPool::Process().Take(header.payload_size_bytes)),
                       std::move(then)};
  const std::span<std::byte> place = *incoming_->buffer;
  return endpoint_->ReceivePayload({&place, 1});
}

// All of it into the same few bytes: who is refused is given no memory.
Result<void> Conversation::Discard(const FrameHeader& header, Error why) {
  if (header.payload_size_bytes == 0) return SendError(header.request_id, why);
  incoming_ = Incoming{header, FFR_TRY(BufferPool::Process().Take(kDiscardedBytes)),
                       [this, why = std::move(why)](const FrameHeader& sent, const PooledBuffer&) {
                         return SendError(sent.request_id, why);
                       }};
  const std::span<std::byte> bytes = *incoming_->buffer;
  std::vector<std::span<std::byte>> places(header.payload_size_bytes / bytes.size(), bytes);
  places.push_back(bytes.first(header.payload_size_bytes % bytes.size()));
  return endpoint_->ReceivePayload(places);
}

Result<void> Conversation::Fetch(const FrameHeader& header, const net::RemoteRegion& source,
                                 PooledBuffer place, PayloadTaker then) {
  incoming_ = Incoming{header, std::move(place), std::move(then)};
  return endpoint_->remote_memory()->FetchPayload(source, *incoming_->buffer);
}

Result<void> Conversation::Refuse(const FrameHeader& header, const Error& error) {
  if (error.code == ErrorCode::kCorruption) return error;
  return SendError(header.request_id, error);
}

FrameHeader Conversation::HeaderOf(FrameType type, std::uint64_t request_id) const noexcept {
  return MakeHeader(type, request_id,
                    map_version_ == nullptr ? net::kMapVersion : map_version_->load());
}

Result<void> Conversation::SendReply(std::uint64_t request_id, Reply reply) {
  const auto payload = std::make_shared<const std::vector<std::byte>>(std::move(reply.payload));
  const std::span<const std::byte> piece(*payload);
  FFR_TRY(endpoint_->Send(HeaderOf(reply.type, request_id), reply.body, {&piece, 1}));
  if (!piece.empty()) payload_.Add(payload, piece.size());
  return {};
}

Result<void> Conversation::SendBody(FrameType type, std::uint64_t request_id,
                                    std::span<const std::byte> body) {
  return endpoint_->Send(HeaderOf(type, request_id), body, {});
}

Result<void> Conversation::SendError(std::uint64_t request_id, const Error& error) {
  metrics_.errors[error.code].Add();
  return SendBody(FrameType::kError, request_id, net::FromError(error).Encode());
}

Result<void> Conversation::SendBusy(std::uint64_t request_id) {
  return SendBody(FrameType::kBusy, request_id, net::Busy{kRetryAfterMs}.Encode());
}

Result<void> Conversation::MoveToRdma(net::RdmaRails& rails) {
  endpoint_ = FFR_TRY(rails.Accept(endpoint_));
  endpoint_->SetLimits(net::FrameLimits{});
  return {};
}

}  // namespace ffrecord::server
