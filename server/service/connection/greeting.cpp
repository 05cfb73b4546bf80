#include "server/service/connection/greeting.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

#include "libffrecord/base/clock.h"
#include "server/service/cluster/cluster_service.h"
#include "server/service/connection/replies.h"

namespace ffrecord::server {
namespace {

Error NotMet() {
  return {ErrorCode::kDenied,
          "access denied: the local socket is for clients that this daemon has sent there"};
}

// Names that this daemon published outside of the cluster are not in it yet.
bool HasOwnNames(const ClusterService& cluster) {
  return cluster.adoption() != nullptr && cluster.adoption()->left_count() > 0;
}

}  // namespace

Greeting::~Greeting() {
  if (issued_ticket_) context_.local_tickets->Withdraw(*issued_ticket_);
}

Result<void> Greeting::TakeHello(const Frame& frame) {
  if (has_greeted_) return OutOfPlace("a second HELLO");
  const auto hello = FFR_TRY(net::Hello::Decode(frame.body));
  net::FrameLimits limits;
  if (conversation_.endpoint().descriptors() != nullptr)
    limits.descriptor_count_max = net::kSlabCountMax;
  auto version = net::CommonVersion(hello);
  if (version && (hello.body_size_bytes_max < limits.body_size_bytes_max ||
                  hello.payload_size_bytes_max < limits.payload_size_bytes_max))
    version = Error{ErrorCode::kInvalidArgument,
                    "a client of version 1 takes bodies of 2 MiB and payloads of 8 MiB"};
  if (!version) {
    conversation_.EndWhenSent();
    return conversation_.SendError(frame.header.request_id, version.error());
  }
  if (auto admitted = Admit(hello); !admitted) return TurnAway(frame.header, admitted.error());
  has_greeted_ = true;
  const std::string cipher = conversation_.endpoint().cipher();
  if (cipher.ends_with("kernel")) context_.metrics.kernel_tls.Add();
  spdlog::debug("event=greeted transport={} {} cipher=\"{}\"", conversation_.transport(),
                caller_.Who(), cipher);
  conversation_.endpoint().SetLimits(limits);
  auto identity = context_.identity();
  net::HelloReply reply;
  reply.version = version.value();
  reply.body_size_bytes_max = limits.body_size_bytes_max;
  reply.payload_size_bytes_max = limits.payload_size_bytes_max;
  was_alone_ = context_.cluster != nullptr && context_.cluster->is_alone();
  const bool is_node = context_.cluster != nullptr && !was_alone_;
  had_own_names_ = is_node && HasOwnNames(*context_.cluster);
  const std::uint64_t own =
      net::kCapabilityCancel | net::kCapabilityPulls | net::kCapabilityUploadClass |
      net::kCapabilityDiskNames |
      (context_.read_ahead.takes_plans() ? net::kCapabilityPlans : net::kCapabilityNone) |
      (is_node ? net::kCapabilityCluster | net::kCapabilityWaiting | net::kCapabilityClasses |
                     net::kCapabilityPatience | net::kCapabilityKnownNames
               : net::kCapabilityNone) |
      (had_own_names_ ? net::kCapabilityOwnNames : net::kCapabilityNone) |
      (identity ? net::kCapabilityIdentity : net::kCapabilityNone) |
      (OffersLocal() ? net::kCapabilityLocal : net::kCapabilityNone) |
      (context_.rdma != nullptr ? net::kCapabilityRdma : net::kCapabilityNone);
  reply.capabilities = hello.capabilities & own;
  caller_.SetCapabilities(reply.capabilities);
  reply.epoch = context_.epoch;
  if ((reply.capabilities & net::kCapabilityLocal) != 0) {
    reply.local = context_.local_tickets->Issue(caller_.token());
    issued_ticket_ = reply.local->ticket;
  }
  if ((reply.capabilities & net::kCapabilityIdentity) != 0) reply.identity = std::move(identity);
  reply.batch_entry_count_max = net::kBatchEntryCountMax;
  reply.bound_extent_count_max = net::kBoundExtentCountMax;
  return conversation_.SendBody(net::ReplyTo(FrameType::kHello), frame.header.request_id,
                                reply.Encode());
}

Result<void> Greeting::Admit(const net::Hello& hello) {
  if (conversation_.transport() == "shm") {
    if (!admission_->IsProvedBy(hello.credential)) return NotMet();
    caller_.SetToken(std::exchange(admission_, std::nullopt)->token);
    return {};
  }
  if (context_.token_keys == nullptr) return {};
  auto token = FFR_TRY(context_.token_keys->Check(hello.credential, WallClock::now(),
                                                  conversation_.endpoint().channel_binding()));
  caller_.SetToken(std::move(token));
  return {};
}

// The client received the ticket, and the secret that it expects, when it was admitted over TCP or
// TLS.
Result<void> Greeting::TakeLocalOpen(const Frame& frame) {
  if (FirstFrame() != FrameType::kLocalOpen) return OutOfPlace("LOCAL_OPEN where none belongs");
  const auto open = FFR_TRY(net::LocalOpen::Decode(frame.body));
  admission_ = context_.local_tickets->Take(open.ticket);
  if (!admission_) return TurnAway(frame.header, NotMet());
  return conversation_.SendBody(net::ReplyTo(FrameType::kLocalOpen), frame.header.request_id,
                                net::LocalOpenReply{admission_->daemon_secret}.Encode());
}

Result<void> Greeting::TurnAway(const FrameHeader& header, const Error& error) {
  conversation_.EndWhenSent();
  conversation_.SetFault("no valid token");
  context_.metrics.tokens_refused.Add();
  return conversation_.SendError(header.request_id, error);
}

FrameType Greeting::FirstFrame() const noexcept {
  const bool must_open = conversation_.transport() == "shm" && !has_greeted_ && !admission_;
  return must_open ? FrameType::kLocalOpen : FrameType::kHello;
}

bool Greeting::OffersLocal() const noexcept {
  return context_.local_tickets != nullptr && conversation_.transport() != "shm" &&
         conversation_.endpoint().has_local_peer();
}

const char* Greeting::TakeReasonToReturn() {
  const char* reason = nullptr;
  if (was_alone_ && !context_.cluster->is_alone())
    reason = "the daemon is a node of a cluster now";
  else if (had_own_names_ && !HasOwnNames(*context_.cluster))
    reason = "the cluster has all names of the daemon now";
  if (reason != nullptr) was_alone_ = had_own_names_ = false;
  return reason;
}

}  // namespace ffrecord::server
