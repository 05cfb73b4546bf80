#include "server/service/connection/name_desk.h"

#include <spdlog/spdlog.h>

#include <span>
#include <string>
#include <utility>

#include "libffrecord/net/protocol/storage_messages.h"
#include "server/service/connection/replies.h"

namespace ffrecord::server {

Result<void> NameDesk::TakePublish(const Frame& frame) {
  auto publish = caller_.Permitted(frame, &net::Publish::name);
  // A bad name is the caller's mistake, but the payload behind it must be taken off all the same.
  if (!publish && publish.error().code == ErrorCode::kCorruption) return std::move(publish).error();
  if (!publish) return conversation_.Discard(frame.header, std::move(publish).error());
  return conversation_.Receive(frame.header, [this, publish = std::move(publish)](
                                                 const FrameHeader& sent, PooledBuffer buffer) {
    return jobs_.Add(sent, Kind::kMetadata,
                     [&names = names_, request = publish.value(), buffer, who = caller_.Who(),
                      own_prefix = std::string(caller_.prefix())]() -> Result<Reply> {
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

Result<void> NameDesk::TakeCheckRoom(const Frame& frame) {
  const auto request = caller_.Permitted(frame, &net::CheckRoom::name);
  if (!request) return conversation_.Refuse(frame.header, request.error());
  return jobs_.Add(frame.header, Kind::kLookUp,
                   [&names = names_, wanted = request.value()]() -> Result<Reply> {
                     FFR_TRY(names.CheckRoom(wanted.name, wanted.size_bytes));
                     return Answer(FrameType::kCheckRoom);
                   });
}

Result<void> NameDesk::TakeResolve(const Frame& frame) {
  const auto request = caller_.Permitted(frame, &net::Resolve::name);
  if (!request) return conversation_.Refuse(frame.header, request.error());
  return jobs_.Add(
      frame.header, Kind::kLookUp, [&names = names_, resolve = request.value()]() -> Result<Reply> {
        return Later<Names::Resolved>(
            [&names, resolve](auto done) { names.Resolve(resolve, std::move(done)); },
            [](Names::Resolved resolved) {
              return Answer(FrameType::kResolve, net::RevisionReply{resolved.revision}.Encode(),
                            std::move(resolved.manifest));
            });
      });
}

Result<void> NameDesk::TakeList(const Frame& frame) {
  // The prefix that is asked for: names outside one's own are not listed, not even by their number.
  const auto request = caller_.Permitted(frame, &net::List::prefix);
  if (!request) return conversation_.Refuse(frame.header, request.error());
  return jobs_.Add(frame.header, Kind::kLookUp,
                   [&names = names_, list = request.value(),
                    tells_classes = caller_.has(net::kCapabilityClasses)]() -> Result<Reply> {
                     return Later<net::ListReply>(
                         [&names, list](auto done) { names.List(list, std::move(done)); },
                         [tells_classes](net::ListReply reply) {
                           if (!tells_classes)
                             for (auto& entry : reply.entries) entry.durability.clear();
                           return Answer(FrameType::kList, reply.Encode());
                         });
                   });
}

Result<void> NameDesk::TakeDelete(const Frame& frame) {
  const auto request = caller_.Permitted(frame, &net::Delete::name);
  if (!request) return conversation_.Refuse(frame.header, request.error());
  return jobs_.Add(
      frame.header, Kind::kMetadata,
      [&names = names_, removal = request.value(), who = caller_.Who()]() -> Result<Reply> {
        return Later<void>([&names, removal](auto done) { names.Remove(removal, std::move(done)); },
                           [removal, who] {
                             spdlog::info("event=removed name={} {}", removal.name, who);
                             return Answer(FrameType::kDelete);
                           });
      });
}

}  // namespace ffrecord::server
