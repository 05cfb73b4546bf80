// The frames about a cluster: its map for clients, and what its nodes ask each other; protocol.md,
// "Clusters".

#include <spdlog/spdlog.h>

#include <utility>

#include "libffrecord/net/protocol/cluster_messages.h"
#include "server/service/cluster/cluster_service.h"
#include "server/service/core/connection.h"
#include "server/service/core/replies.h"

namespace ffrecord::server {
namespace {

Error NoCluster() { return {ErrorCode::kInvalidArgument, "this daemon is not one of a cluster"}; }

cluster::AskHoldings Asked(const net::AskHoldings& message) {
  cluster::AskHoldings question;
  question.promise_version = message.promise_version;
  for (const auto& extent : message.extents)
    question.extents.push_back({extent.id, extent.size_bytes, extent.xxh3});
  return question;
}
cluster::AskHeard Asked(const net::AskHeard& message) { return {"", message.uploads}; }
cluster::AskBuried Asked(const net::AskBuried& message) { return {"", message.keys}; }
cluster::AskFilled Asked(const net::AskFilled& message) { return {"", message.version}; }

std::vector<std::byte> EncodeAnswer(const cluster::Holdings& holdings) {
  net::HoldingsReply reply;
  for (const auto holding : holdings)
    reply.holdings.push_back(static_cast<net::HoldingsReply::Holding>(holding));
  return reply.Encode();
}
std::vector<std::byte> EncodeAnswer(const cluster::Flags& flags) {
  return net::FlagsReply{flags}.Encode();
}

// The job that puts a question of another node to the machines.
template <class Message, class Answered>
Result<Connection::Work> AskingJob(ClusterService& service, FrameType type,
                                   std::span<const std::byte> body) {
  auto question = Asked(FFR_TRY(Message::Decode(body)));
  return Connection::Work([&service, type, question = std::move(question)]() -> Result<Reply> {
    return Later<Answered>(
        [&service, question](auto done) { service.Ask(question, std::move(done)); },
        [type](const Answered& answer) { return Answer(type, EncodeAnswer(answer)); });
  });
}

}  // namespace

std::uint32_t Connection::map_version() const noexcept {
  return context_.cluster == nullptr ? net::kMapVersion : context_.cluster->map_version().load();
}

Result<void> Connection::TakeClusterMap(const FrameHeader& header) {
  const auto request = FFR_TRY(net::ClusterMap::Decode(endpoint_->body()));
  if (context_.cluster == nullptr) return SendError(header.request_id, NoCluster());
  auto map = context_.cluster->MapFor(request.known_version);
  return SendReply(header.request_id,
                   Answer(FrameType::kClusterMap, map.reply.Encode(), std::move(map.slots)));
}

Result<void> Connection::TakeSetMember(const FrameHeader& header) {
  const auto request = FFR_TRY(net::SetMember::Decode(endpoint_->body()));
  if (context_.cluster == nullptr) return SendError(header.request_id, NoCluster());
  if (auto allowed = Allow(Right::kAdmin, token_ ? token_->prefix : ""); !allowed)
    return SendError(header.request_id, allowed.error());
  return AddJob(
      header, Kind::kMetadata,
      [&service = *context_.cluster, request, who = Who()]() -> Result<Reply> {
        return Later<void>(
            [&service, request](auto done) { service.SetMember(request, std::move(done)); },
            [request, who] {
              spdlog::info("event=member_set node={} state={} {}", request.node,
                           static_cast<unsigned>(request.state), who);
              return Answer(FrameType::kSetMember);
            });
      });
}

Result<void> Connection::TakePeerQuestion(const FrameHeader& header) {
  if (context_.cluster == nullptr) return SendError(header.request_id, NoCluster());
  if (auto allowed = Allow(Right::kPeer, token_ ? token_->prefix : ""); !allowed)
    return SendError(header.request_id, allowed.error());
  ClusterService& service = *context_.cluster;
  const auto body = endpoint_->body();
  const auto job = [&]() -> Result<Work> {
    switch (header.type) {
      case FrameType::kAskHoldings:
        return AskingJob<net::AskHoldings, cluster::Holdings>(service, header.type, body);
      case FrameType::kAskHeard:
        return AskingJob<net::AskHeard, cluster::Flags>(service, header.type, body);
      case FrameType::kAskBuried:
        return AskingJob<net::AskBuried, cluster::Flags>(service, header.type, body);
      default:
        return AskingJob<net::AskFilled, cluster::Flags>(service, header.type, body);
    }
  }();
  if (!job) return job.error();
  return AddJob(header, Kind::kLookUp, job.value());
}

}  // namespace ffrecord::server
