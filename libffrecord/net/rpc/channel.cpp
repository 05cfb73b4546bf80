#include "libffrecord/net/rpc/channel.h"

#include <algorithm>
#include <utility>

#include "libffrecord/net/transport/descriptor_passing.h"
#include "libffrecord/net/transport/packet_marks.h"
#include "libffrecord/net/transport/tls/tls.h"
#include "libffrecord/pace/marks.h"

namespace ffrecord::net {
namespace {

std::string TypeName(FrameType type) {
  return "a frame of type " + std::to_string(static_cast<unsigned>(type));
}

}  // namespace

Result<std::unique_ptr<Channel>> Channel::Connect(const Address& address, Deadline deadline,
                                                  std::span<const std::byte> credential,
                                                  RetryAfter* retry_after) {
  return Open(FFR_TRY(ConnectTcp(address, deadline)), deadline, credential, retry_after);
}

Result<std::unique_ptr<Channel>> Channel::Open(std::unique_ptr<Endpoint> endpoint,
                                               Deadline deadline,
                                               std::span<const std::byte> credential,
                                               RetryAfter* retry_after) {
  std::unique_ptr<Channel> channel(new Channel(std::move(endpoint)));
  const auto binding = channel->endpoint_->channel_binding();
  auto greeted =
      channel->Greet(binding ? BindToken(credential, *binding)
                             : std::vector<std::byte>(credential.begin(), credential.end()),
                     deadline);
  if (greeted) return channel;
  if (retry_after != nullptr) *retry_after = channel->retry_after();
  return std::move(greeted).error();
}

void Channel::MarkAs(TrafficClass traffic) noexcept {
  const TrafficMark mark = pace::MarkOf(traffic);
  if (std::exchange(mark_, mark) != mark) MarkPackets(*endpoint_, mark);
}

Result<std::unique_ptr<Channel>> Channel::OpenLocal(std::unique_ptr<Endpoint> endpoint,
                                                    const LocalOffer& offer, Deadline deadline,
                                                    RetryAfter* retry_after) {
  std::unique_ptr<Channel> channel(new Channel(std::move(endpoint)));
  auto opened = channel->ProveLocal(offer, deadline);
  if (opened)
    opened = channel->Greet({offer.client_secret.begin(), offer.client_secret.end()}, deadline);
  if (opened) return channel;
  if (retry_after != nullptr) *retry_after = channel->retry_after();
  return std::move(opened).error();
}

// Until that has succeeded, the process that listens under the name is a stranger.
Result<void> Channel::ProveLocal(const LocalOffer& offer, Deadline deadline) {
  const auto reply = FFR_TRY(Call(FrameType::kLocalOpen, LocalOpen{offer.ticket}.Encode(), {},
                                  deadline, "a proof of the local socket's owner"));
  const auto proof = LocalOpenReply::Decode(reply.body);
  std::byte difference{0};
  for (std::size_t i = 0; proof && i < offer.daemon_secret.size(); ++i)
    difference |= proof.value().daemon_secret[i] ^ offer.daemon_secret[i];
  if (proof && difference == std::byte{0}) return {};
  return Break({ErrorCode::kUnavailable,
                "its local socket is answered by a process that is not the daemon"});
}

Result<void> Channel::Greet(std::vector<std::byte> credential, Deadline deadline) {
  endpoint_->SetLimits(FrameLimits{});
  Hello hello;
  hello.body_size_bytes_max = FrameLimits{}.body_size_bytes_max;
  hello.payload_size_bytes_max = FrameLimits{}.payload_size_bytes_max;
  hello.credential = std::move(credential);
  hello.capabilities = kCapabilityLocal | kCapabilityCancel | kCapabilityRdma | kCapabilityPlans |
                       kCapabilityPulls | kCapabilityCluster | kCapabilityIdentity |
                       kCapabilityWaiting | kCapabilityClasses | kCapabilityPatience |
                       kCapabilityKnownNames | kCapabilityOwnNames | kCapabilityUploadClass |
                       kCapabilityDiskNames;
  const auto reply = FFR_TRY(Call(FrameType::kHello, hello.Encode(), {}, deadline, "the greeting"));
  auto decoded = HelloReply::Decode(reply.body);
  if (!decoded) return Break(std::move(decoded).error());
  hello_ = std::move(decoded).value();
  if (hello_.version == Hello::kVersion) return {};
  return Break({ErrorCode::kInvalidArgument, peer() + " chose protocol version " +
                                                 std::to_string(hello_.version) +
                                                 ", which was not offered"});
}

Result<void> Channel::UseRdma(RdmaLinks& links, Deadline deadline) {
  if ((hello_.capabilities & kCapabilityRdma) == 0)
    return Error{ErrorCode::kUnavailable, "the daemon does not offer it"};
  const auto link = FFR_TRY(links.Make(RdmaLink::Side::kConnects));
  const auto reply = FFR_TRY(Call(FrameType::kRdmaConnect, link->own().Encode(), {}, deadline,
                                  "an answer to RDMA_CONNECT"));
  const auto peer = RdmaConnect::Decode(reply.body);
  if (!peer) return Break(peer.error());
  // The daemon has turned to the new connection, so there is no way back.
  auto endpoint = link->Connect(peer.value(), endpoint_);
  if (!endpoint) return Break(std::move(endpoint).error());
  endpoint_ = std::move(endpoint).value();
  endpoint_->SetLimits(FrameLimits{});
  auto answered = Call(FrameType::kPing, {}, {}, deadline, "an answer over RDMA");
  if (!answered) return Break(std::move(answered).error());
  return {};
}

Error Channel::Break(Error error) {
  broken_ = true;
  endpoint_->Close();
  if (error.code == ErrorCode::kCorruption) error.code = ErrorCode::kUnavailable;
  return error;
}

bool Channel::Alive() {
  if (!reusable()) return false;
  // Nothing is due between dialogues: whatever comes is GOAWAY, an end or an error. Twice, for an
  // endpoint that has read all there was does not look again at once.
  for (int i = 0; i < 2 && !broken_; ++i) {
    const auto event = endpoint_->Poll();
    broken_ = found_ || !event || event.value() != Endpoint::Event::kNone;
  }
  return !broken_;
}

Error Channel::TakeError() {
  auto reply = ErrorReply::Decode(body());
  return reply ? ToError(reply.value(), peer()) : Break(std::move(reply).error());
}

Result<std::uint64_t> Channel::Send(FrameType type, std::span<const std::byte> body,
                                    std::span<const std::span<const std::byte>> payload) {
  FrameHeader header;
  header.type = type;
  header.request_id = next_request_++;
  retry_after_.reset();
  if (auto sent = endpoint_->Send(header, body, payload); !sent)
    return Break(std::move(sent).error());
  return header.request_id;
}

Result<std::uint64_t> Channel::SendDescriptor(FrameType type, std::span<const std::byte> body,
                                              int descriptor) {
  FrameHeader header;
  header.type = type;
  header.request_id = next_request_++;
  DescriptorPassing* const passing = endpoint_->descriptors();
  if (passing == nullptr)
    return Break({ErrorCode::kInvalidArgument, "cannot send a descriptor to " + peer() + ": " +
                                                   std::string(transport()) +
                                                   " does not carry any; only shm does"});
  if (auto sent = passing->SendDescriptor(header, body, descriptor); !sent)
    return Break(std::move(sent).error());
  return header.request_id;
}

Result<bool> Channel::Push() {
  if (found_) return true;
  auto event = endpoint_->Poll();
  if (!event) return Break(std::move(event).error());
  if (event.value() == Endpoint::Event::kClosed)
    return Break({ErrorCode::kUnavailable, peer() + " closed the connection"});
  if (event.value() != Endpoint::Event::kNone) found_ = event.value();
  return found_.has_value();
}

Result<void> Channel::Flush(Deadline deadline) {
  auto flushed = found_ ? Result<void>(Error{ErrorCode::kConflict, "a frame has come"})
                        : net::Flush(*endpoint_, deadline);
  if (flushed) return {};
  if (flushed.error().code != ErrorCode::kConflict) return Break(std::move(flushed).error());
  // The daemon speaks before it was asked: it has failed, or it stops.
  if (endpoint_->header().type == FrameType::kError) return Break(TakeError());
  return Break({ErrorCode::kUnavailable, peer() + " stops, or sent " +
                                             TypeName(endpoint_->header().type) +
                                             " that was not asked for"});
}

Result<FrameHeader> Channel::Receive(std::uint64_t request, Deadline deadline,
                                     std::string_view what) {
  for (;;) {
    const auto found = std::exchange(found_, std::nullopt);
    auto event = found ? Result(*found) : NextEvent(*endpoint_, deadline, what);
    if (!event) return Break(std::move(event).error());
    if (event.value() != Endpoint::Event::kFrame)
      return Break({ErrorCode::kUnavailable,
                    peer() + " closed the connection while " + std::string(what) + " was awaited"});
    const FrameHeader header = endpoint_->header();
    // After GOAWAY, which comes once, the daemon still answers requests that it has taken: frames
    // without end would never be waited for, and so have no deadline.
    if (header.type == FrameType::kGoAway && !std::exchange(going_away_, true)) continue;
    if (header.type == FrameType::kError && header.request_id < request) return Break(TakeError());
    if (header.request_id != request)
      return Break({ErrorCode::kUnavailable, peer() + " sent " + TypeName(header.type) +
                                                 " for another request than " + std::string(what)});
    if (auto refusal = Refusal(what)) return *std::move(refusal);
    return header;
  }
}

std::optional<Error> Channel::Refusal(std::string_view what) {
  if (header().type == FrameType::kError) return TakeError();
  if (header().type != FrameType::kBusy) return std::nullopt;
  const auto busy = Busy::Decode(body());
  if (!busy) return Break(busy.error());
  retry_after_ = std::min(std::chrono::milliseconds(busy.value().retry_after_ms), kRetryAfterMax);
  return Error{ErrorCode::kUnavailable,
               peer() + " is busy and did not take the request for " + std::string(what)};
}

Result<Endpoint::Event> Channel::Poll() {
  for (;;) {
    const auto found = std::exchange(found_, std::nullopt);
    auto event = found ? Result(*found) : endpoint_->Poll();
    if (!event) return Break(std::move(event).error());
    if (event.value() == Endpoint::Event::kClosed)
      return Break({ErrorCode::kUnavailable, peer() + " closed the connection"});
    const bool is_frame = event.value() == Endpoint::Event::kFrame;
    // After GOAWAY, which comes once, the daemon still answers requests that it has taken.
    if (is_frame && header().type == FrameType::kGoAway && !std::exchange(going_away_, true))
      continue;
    return event;
  }
}

Result<void> Channel::BeginPayload(std::span<const std::span<std::byte>> places) {
  if (auto taken = endpoint_->ReceivePayload(places); !taken)
    return Break(std::move(taken).error());
  return {};
}

Result<void> Channel::ReceivePayload(std::span<const std::span<std::byte>> places,
                                     Deadline deadline) {
  FFR_TRY(BeginPayload(places));
  auto event = NextEvent(*endpoint_, deadline, "the rest of a payload");
  if (!event) return Break(std::move(event).error());
  if (event.value() != Endpoint::Event::kPayload)
    return Break({ErrorCode::kUnavailable, peer() + " closed the connection in a payload"});
  return {};
}

Result<Channel::Reply> Channel::Call(FrameType type, std::span<const std::byte> body,
                                     std::span<const std::span<const std::byte>> payload,
                                     Deadline deadline, std::string_view what) {
  const std::uint64_t request = FFR_TRY(Send(type, body, payload));
  const FrameHeader header = FFR_TRY(Receive(request, deadline, what));
  if (header.type != ReplyTo(type))
    return Break({ErrorCode::kUnavailable, peer() + " sent " + TypeName(header.type) + " where " +
                                               std::string(what) + " was awaited"});
  Reply reply;
  reply.body.assign(this->body().begin(), this->body().end());
  if (header.payload_size_bytes > 0) {
    reply.payload.resize(header.payload_size_bytes);
    const std::span<std::byte> place(reply.payload);
    FFR_TRY(ReceivePayload({&place, 1}, deadline));
  }
  return reply;
}

}  // namespace ffrecord::net
