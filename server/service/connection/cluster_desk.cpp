#include "server/service/connection/cluster_desk.h"

#include <spdlog/spdlog.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/net/protocol/cluster_messages.h"
#include "libffrecord/net/protocol/metadata_messages.h"
#include "server/service/cluster/cluster_service.h"
#include "server/service/connection/replies.h"

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

std::vector<std::byte> EncodePage(const cluster::Known& known, const std::string& after) {
  net::KnownReply reply;
  reply.incarnation = known.mark.incarnation;
  reply.revision = known.mark.revision;
  reply.term = known.mark.term.token;
  reply.term_revision = known.mark.term.revision;
  for (auto at = known.names.upper_bound(after); at != known.names.end() && !reply.more; ++at)
    reply.more = !reply.page.Add({at->first, at->second.revision, at->second.record.Encode()});
  return reply.Encode();
}

Result<Reply::Work> KnownJob(ClusterService& service, std::span<const std::byte> body) {
  auto question = FFR_TRY(net::AskKnown::Decode(body));
  return Reply::Work([&service, question = std::move(question)]() -> Result<Reply> {
    return Later<cluster::Known>(
        [&service, question](auto done) {
          service.Ask(cluster::AskKnown{"", question.with_names}, std::move(done));
        },
        [after = question.after](const cluster::Known& known) {
          return Answer(FrameType::kAskKnown, EncodePage(known, after));
        });
  });
}

// The job that puts a question of another node to the machines.
template <class Message, class Answered>
Result<Reply::Work> AskingJob(ClusterService& service, FrameType type,
                              std::span<const std::byte> body) {
  auto question = Asked(FFR_TRY(Message::Decode(body)));
  return Reply::Work([&service, type, question = std::move(question)]() -> Result<Reply> {
    return Later<Answered>(
        [&service, question](auto done) { service.Ask(question, std::move(done)); },
        [type](const Answered& answer) { return Answer(type, EncodeAnswer(answer)); });
  });
}

}  // namespace

Result<void> ClusterDesk::TakeClusterMap(const Frame& frame) {
  const auto request = FFR_TRY(net::ClusterMap::Decode(frame.body));
  if (service_ == nullptr) return conversation_.SendError(frame.header.request_id, NoCluster());
  auto map = service_->MapFor(request.known_version);
  if (!caller_.has(net::kCapabilityWaiting)) map.reply.waiting.clear();
  return conversation_.SendReply(
      frame.header.request_id,
      Answer(FrameType::kClusterMap, map.reply.Encode(), std::move(map.slots)));
}

Result<ClusterService*> ClusterDesk::ServiceFor(const Frame& frame) {
  const auto allowed = service_ == nullptr ? Result<void>(NoCluster()) : caller_.Allow(frame);
  if (allowed) return service_;
  FFR_TRY(conversation_.SendError(frame.header.request_id, allowed.error()));
  return nullptr;
}

Result<void> ClusterDesk::TakeSetMember(const Frame& frame) {
  const auto request = FFR_TRY(net::SetMember::Decode(frame.body));
  ClusterService* const service = FFR_TRY(ServiceFor(frame));
  if (service == nullptr) return {};
  return jobs_.Add(
      frame.header, Kind::kMetadata, [service, request, who = caller_.Who()]() -> Result<Reply> {
        return Later<void>(
            [service, request](auto done) { service->SetMember(request, std::move(done)); },
            [request, who] {
              spdlog::info("event=member_set node={} state={} {}", request.node,
                           static_cast<unsigned>(request.state), who);
              return Answer(FrameType::kSetMember);
            });
      });
}

Result<void> ClusterDesk::TakeSetLevel(const Frame& frame) {
  const auto request = FFR_TRY(net::SetLevel::Decode(frame.body));
  ClusterService* const service = FFR_TRY(ServiceFor(frame));
  if (service == nullptr) return {};
  return jobs_.Add(
      frame.header, Kind::kMetadata, [service, request, who = caller_.Who()]() -> Result<Reply> {
        return Later<std::uint32_t>(
            [service, request](auto done) { service->RaiseLevel(request.level, std::move(done)); },
            [who](std::uint32_t level) {
              spdlog::info("event=level_set level={} {}", level, who);
              return Answer(FrameType::kSetLevel, net::SetLevel{level}.Encode());
            });
      });
}

Result<void> ClusterDesk::TakeMetadata(const Frame& frame) {
  ClusterService* const service = FFR_TRY(ServiceFor(frame));
  if (service == nullptr) return {};
  const auto body = frame.body;
  if (frame.header.type == FrameType::kMetadataList) {
    return jobs_.Add(
        frame.header, Kind::kMetadata,
        [service, request = FFR_TRY(net::MetadataList::Decode(body))]() -> Result<Reply> {
          return Later<net::MetadataListReply>(
              [service, request](auto done) { service->ListMetadata(request, std::move(done)); },
              [](const net::MetadataListReply& reply) {
                return Answer(FrameType::kMetadataList, reply.Encode());
              });
        });
  }
  if (frame.header.type == FrameType::kMetadataPut) {
    return jobs_.Add(
        frame.header, Kind::kMetadata,
        [service, request = FFR_TRY(net::MetadataPut::Decode(body)),
         who = caller_.Who()]() -> Result<Reply> {
          return Later<void>(
              [service, request](auto done) { service->PutMetadata(request, std::move(done)); },
              [is_last = request.is_last, who] {
                if (is_last) spdlog::warn("event=metadata_restored {}", who);
                return Answer(FrameType::kMetadataPut);
              });
        });
  }
  return jobs_.Add(
      frame.header, Kind::kMetadata,
      [service, request = FFR_TRY(net::MetadataHistory::Decode(body))]() -> Result<Reply> {
        return Later<std::string>(
            [service, request](auto done) { service->WorkOnHistory(request, std::move(done)); },
            [](const std::string& json) {
              const auto bytes = std::as_bytes(std::span(json));
              return Answer(FrameType::kMetadataHistory, {}, {bytes.begin(), bytes.end()});
            });
      });
}

Result<void> ClusterDesk::TakePeerQuestion(const Frame& frame) {
  ClusterService* const service = FFR_TRY(ServiceFor(frame));
  if (service == nullptr) return {};
  const auto body = frame.body;
  const auto job = [&]() -> Result<Reply::Work> {
    switch (frame.header.type) {
      case FrameType::kAskHoldings:
        return AskingJob<net::AskHoldings, cluster::Holdings>(*service, frame.header.type, body);
      case FrameType::kAskHeard:
        return AskingJob<net::AskHeard, cluster::Flags>(*service, frame.header.type, body);
      case FrameType::kAskBuried:
        return AskingJob<net::AskBuried, cluster::Flags>(*service, frame.header.type, body);
      case FrameType::kAskKnown:
        return KnownJob(*service, body);
      default:
        return AskingJob<net::AskFilled, cluster::Flags>(*service, frame.header.type, body);
    }
  }();
  if (!job) return job.error();
  return jobs_.Add(frame.header, Kind::kLookUp, job.value());
}

}  // namespace ffrecord::server
