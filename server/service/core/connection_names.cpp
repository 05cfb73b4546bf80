// The frames that look up, list, publish and remove names: protocol.md, "Names".

#include <spdlog/spdlog.h>

#include <utility>

#include "server/service/core/connection.h"
#include "server/service/core/replies.h"

namespace ffrecord::server {
namespace {

using net::FrameHeader;
using net::FrameType;
using Kind = JobPool::Kind;

}  // namespace

Result<void> Connection::TakePublish(const FrameHeader& header) {
  auto publish = net::Publish::Decode(endpoint_->body());
  if (publish)
    if (auto allowed = Allow(Right::kWrite, publish.value().name); !allowed)
      publish = std::move(allowed).error();
  // A bad name is the caller's mistake, but the payload behind it must be taken off all the same.
  if (!publish && publish.error().code == ErrorCode::kCorruption) return std::move(publish).error();
  if (!publish) return Discard(header, std::move(publish).error());
  return Receive(header, [this, publish = std::move(publish)](const FrameHeader& sent,
                                                              PooledBuffer buffer) {
    return AddJob(sent, Kind::kWrite,
                  [&catalog = context_.catalog, request = publish.value(), buffer, who = Who(),
                   own_prefix = token_ ? token_->prefix : std::string()]() -> Reply {
                    const auto bytes =
                        buffer ? std::span<const std::byte>(*buffer) : std::span<const std::byte>();
                    const auto reply = catalog.Publish(request, bytes, own_prefix);
                    if (!reply) return ErrorReplyOf(reply.error());
                    spdlog::info("event=published name={} revision={} {}", request.name,
                                 reply.value().revision, who);
                    return {net::ReplyTo(FrameType::kPublish), reply.value().Encode(), {}, false};
                  });
  });
}

Result<void> Connection::TakeCheckRoom(const FrameHeader& header) {
  auto request = net::CheckRoom::Decode(endpoint_->body());
  if (!request) return Refuse(header, std::move(request).error());
  if (auto allowed = Allow(Right::kWrite, request.value().name); !allowed)
    return SendError(header.request_id, allowed.error());
  return AddJob(
      header, Kind::kLookUp, [&catalog = context_.catalog, wanted = request.value()]() -> Reply {
        const auto checked = catalog.CheckRoom(wanted.name, wanted.size_bytes);
        return checked ? EmptyReply(FrameType::kCheckRoom) : ErrorReplyOf(checked.error());
      });
}

Result<void> Connection::TakeResolve(const FrameHeader& header) {
  auto request = net::Resolve::Decode(endpoint_->body());
  if (!request) return Refuse(header, std::move(request).error());
  if (auto allowed = Allow(Right::kRead, request.value().name); !allowed)
    return SendError(header.request_id, allowed.error());
  return AddJob(header, Kind::kLookUp,
                [&catalog = context_.catalog, name = request.value().name]() -> Reply {
                  auto resolved = catalog.Resolve(name);
                  if (!resolved) return ErrorReplyOf(resolved.error());
                  return {net::ReplyTo(FrameType::kResolve),
                          net::RevisionReply{resolved.value().revision}.Encode(),
                          std::move(resolved.value().manifest), false};
                });
}

Result<void> Connection::TakeList(const FrameHeader& header) {
  auto request = net::List::Decode(endpoint_->body());
  if (!request) return Refuse(header, std::move(request).error());
  // The prefix that is asked for: names outside one's own are not listed, not even by their number.
  if (auto allowed = Allow(Right::kRead, request.value().prefix); !allowed)
    return SendError(header.request_id, allowed.error());
  return AddJob(header, Kind::kLookUp,
                [&catalog = context_.catalog, list = request.value()]() -> Reply {
                  const auto reply = catalog.List(list);
                  if (!reply) return ErrorReplyOf(reply.error());
                  return {net::ReplyTo(FrameType::kList), reply.value().Encode(), {}, false};
                });
}

Result<void> Connection::TakeDelete(const FrameHeader& header) {
  auto request = net::Delete::Decode(endpoint_->body());
  if (!request) return Refuse(header, std::move(request).error());
  if (auto allowed = Allow(Right::kDelete, request.value().name); !allowed)
    return SendError(header.request_id, allowed.error());
  return AddJob(header, Kind::kWrite,
                [&catalog = context_.catalog, removal = request.value(), who = Who()]() -> Reply {
                  const auto removed = catalog.Remove(removal);
                  if (!removed) return ErrorReplyOf(removed.error());
                  spdlog::info("event=removed name={} {}", removal.name, who);
                  return EmptyReply(FrameType::kDelete);
                });
}

// A malformed body ends the connection; a bad name is only the caller's mistake.

}  // namespace ffrecord::server
