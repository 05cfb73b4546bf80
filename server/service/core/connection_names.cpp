// The frames that look up, list, publish and remove names: protocol.md, "Names".

#include <spdlog/spdlog.h>

#include <utility>

#include "server/service/core/connection.h"
#include "server/service/core/replies.h"

namespace ffrecord::server {
Result<void> Connection::TakePublish(const FrameHeader& header) {
  auto publish = Permitted(Right::kWrite, &net::Publish::name);
  // A bad name is the caller's mistake, but the payload behind it must be taken off all the same.
  if (!publish && publish.error().code == ErrorCode::kCorruption) return std::move(publish).error();
  if (!publish) return Discard(header, std::move(publish).error());
  return Receive(
      header, [this, publish = std::move(publish)](const FrameHeader& sent, PooledBuffer buffer) {
        return AddJob(sent, Kind::kMetadata,
                      [&names = context_.names, request = publish.value(), buffer, who = Who(),
                       own_prefix = token_ ? token_->prefix : std::string()]() -> Result<Reply> {
                        return Later<net::RevisionReply>(
                            [&names, request, buffer, own_prefix](auto done) {
                              const auto bytes = buffer ? std::span<const std::byte>(*buffer)
                                                        : std::span<const std::byte>();
                              names.Publish(request, bytes, own_prefix, std::move(done));
                            },
                            [request, who](const net::RevisionReply& reply) {
                              spdlog::info("event=published name={} revision={} {}", request.name,
                                           reply.revision, who);
                              return Answer(FrameType::kPublish, reply.Encode());
                            });
                      });
      });
}

Result<void> Connection::TakeCheckRoom(const FrameHeader& header) {
  const auto request = Permitted(Right::kWrite, &net::CheckRoom::name);
  if (!request) return Refuse(header, request.error());
  return AddJob(header, Kind::kLookUp,
                [&names = context_.names, wanted = request.value()]() -> Result<Reply> {
                  FFR_TRY(names.CheckRoom(wanted.name, wanted.size_bytes));
                  return Answer(FrameType::kCheckRoom);
                });
}

Result<void> Connection::TakeResolve(const FrameHeader& header) {
  const auto request = Permitted(Right::kRead, &net::Resolve::name);
  if (!request) return Refuse(header, request.error());
  return AddJob(header, Kind::kLookUp,
                [&names = context_.names, resolve = request.value()]() -> Result<Reply> {
                  return Later<Names::Resolved>(
                      [&names, resolve](auto done) { names.Resolve(resolve, std::move(done)); },
                      [](Names::Resolved resolved) {
                        return Answer(FrameType::kResolve,
                                      net::RevisionReply{resolved.revision}.Encode(),
                                      std::move(resolved.manifest));
                      });
                });
}

Result<void> Connection::TakeList(const FrameHeader& header) {
  // The prefix that is asked for: names outside one's own are not listed, not even by their number.
  const auto request = Permitted(Right::kRead, &net::List::prefix);
  if (!request) return Refuse(header, request.error());
  return AddJob(
      header, Kind::kLookUp,
      [&names = context_.names, list = request.value(),
       tells_classes = (capabilities_ & net::kCapabilityClasses) != 0]() -> Result<Reply> {
        return Later<net::ListReply>(
            [&names, list](auto done) { names.List(list, std::move(done)); },
            [tells_classes](net::ListReply reply) {
              if (!tells_classes)
                for (auto& entry : reply.entries) entry.durability.clear();
              return Answer(FrameType::kList, reply.Encode());
            });
      });
}

Result<void> Connection::TakeDelete(const FrameHeader& header) {
  const auto request = Permitted(Right::kDelete, &net::Delete::name);
  if (!request) return Refuse(header, request.error());
  return AddJob(
      header, Kind::kMetadata,
      [&names = context_.names, removal = request.value(), who = Who()]() -> Result<Reply> {
        return Later<void>([&names, removal](auto done) { names.Remove(removal, std::move(done)); },
                           [removal, who] {
                             spdlog::info("event=removed name={} {}", removal.name, who);
                             return Answer(FrameType::kDelete);
                           });
      });
}

}  // namespace ffrecord::server
