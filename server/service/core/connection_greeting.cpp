// The frames that open a conversation, and what its client may do: protocol.md, "Conversation".

#include <spdlog/spdlog.h>

#include <utility>

#include "libffrecord/base/clock.h"
#include "server/service/cluster/cluster_service.h"
#include "server/service/core/connection.h"
#include "server/service/core/replies.h"

namespace ffrecord::server {
namespace {

// The client's name, as the maker of its token wrote it: one line of a log stays one line.
std::string Printable(std::string text) {
  for (char& byte : text)
    if (byte < ' ' || byte > '~' || byte == '"') byte = '?';
  return text;
}

Error NotMet() {
  return {ErrorCode::kDenied,
          "access denied: the local socket is for clients that this daemon has sent there"};
}

}  // namespace

Result<void> Connection::TakeHello(const FrameHeader& header) {
  if (has_greeted_) return OutOfPlace("a second HELLO");
  const auto hello = FFR_TRY(net::Hello::Decode(endpoint_->body()));
  net::FrameLimits limits;
  if (endpoint_->descriptors() != nullptr) limits.descriptor_count_max = net::kSlabCountMax;
  auto version = net::CommonVersion(hello);
  if (version && (hello.body_size_bytes_max < limits.body_size_bytes_max ||
                  hello.payload_size_bytes_max < limits.payload_size_bytes_max))
    version = Error{ErrorCode::kInvalidArgument,
                    "a client of version 1 takes bodies of 2 MiB and payloads of 8 MiB"};
  if (!version) {
    is_closing_ = true;
    return SendError(header.request_id, version.error());
  }
  if (auto admitted = Admit(hello); !admitted) return TurnAway(header, admitted.error());
  has_greeted_ = true;
  const std::string cipher = endpoint_->cipher();
  if (cipher.ends_with("kernel")) context_.metrics.kernel_tls.Add();
  spdlog::debug("event=greeted transport={} {} cipher=\"{}\"", transport(), Who(), cipher);
  endpoint_->SetLimits(limits);
  auto identity = context_.identity();
  net::HelloReply reply;
  reply.version = version.value();
  reply.body_size_bytes_max = limits.body_size_bytes_max;
  reply.payload_size_bytes_max = limits.payload_size_bytes_max;
  was_alone_ = context_.cluster != nullptr && context_.cluster->is_alone();
  const bool is_node = context_.cluster != nullptr && !was_alone_;
  had_own_names_ = is_node && HasOwnNames(*context_.cluster);
  const std::uint64_t own =
      net::kCapabilityCancel | net::kCapabilityPulls |
      (context_.read_ahead.takes_plans() ? net::kCapabilityPlans : net::kCapabilityNone) |
      (is_node ? net::kCapabilityCluster | net::kCapabilityWaiting | net::kCapabilityClasses |
                     net::kCapabilityPatience | net::kCapabilityKnownNames
               : net::kCapabilityNone) |
      (had_own_names_ ? net::kCapabilityOwnNames : net::kCapabilityNone) |
      (identity ? net::kCapabilityIdentity : net::kCapabilityNone) |
      (OffersLocal() ? net::kCapabilityLocal : net::kCapabilityNone) |
      (context_.rdma != nullptr ? net::kCapabilityRdma : net::kCapabilityNone);
  reply.capabilities = capabilities_ = hello.capabilities & own;
  reply.epoch = context_.epoch;
  if ((reply.capabilities & net::kCapabilityLocal) != 0) {
    reply.local = context_.local_tickets->Issue(token_);
    issued_ticket_ = reply.local->ticket;
  }
  if ((reply.capabilities & net::kCapabilityIdentity) != 0) reply.identity = std::move(identity);
  reply.batch_entry_count_max = net::kBatchEntryCountMax;
  reply.bound_extent_count_max = net::kBoundExtentCountMax;
  return SendBody(net::ReplyTo(FrameType::kHello), header.request_id, reply.Encode());
}

Result<void> Connection::Admit(const net::Hello& hello) {
  if (transport() == "shm") {
    if (!admission_->IsProvedBy(hello.credential)) return NotMet();
    token_ = std::exchange(admission_, std::nullopt)->token;
    return {};
  }
  if (context_.token_keys == nullptr) return {};
  token_ = FFR_TRY(
      context_.token_keys->Check(hello.credential, WallClock::now(), endpoint_->channel_binding()));
  return {};
}

// The client received the ticket, and the secret that it expects, when it was admitted over TCP or
// TLS.
Result<void> Connection::TakeLocalOpen(const FrameHeader& header) {
  if (FirstFrame() != FrameType::kLocalOpen) return OutOfPlace("LOCAL_OPEN where none belongs");
  const auto open = FFR_TRY(net::LocalOpen::Decode(endpoint_->body()));
  admission_ = context_.local_tickets->Take(open.ticket);
  if (!admission_) return TurnAway(header, NotMet());
  return SendBody(net::ReplyTo(FrameType::kLocalOpen), header.request_id,
                  net::LocalOpenReply{admission_->daemon_secret}.Encode());
}

Result<void> Connection::TurnAway(const FrameHeader& header, const Error& error) {
  is_closing_ = true;
  fault_ = "no valid token";
  context_.metrics.tokens_refused.Add();
  return SendError(header.request_id, error);
}

FrameType Connection::FirstFrame() const noexcept {
  const bool must_open = transport() == "shm" && !has_greeted_ && !admission_;
  return must_open ? FrameType::kLocalOpen : FrameType::kHello;
}

bool Connection::OffersLocal() const noexcept {
  return context_.local_tickets != nullptr && transport() != "shm" && endpoint_->has_local_peer();
}

Result<void> Connection::Allow(Right right, std::string_view name) {
  if (!token_) return {};
  if (token_->Allows(right, name)) return {};
  // Once: how often is in the metrics.
  if (!std::exchange(has_been_denied_, true)) spdlog::warn("event=denied {}", Who());
  return token_->Denial(right);
}

std::string Connection::Who() const {
  return "peer=" + peer() + " client=\"" + Printable(token_ ? token_->client : "") + "\"";
}

}  // namespace ffrecord::server
