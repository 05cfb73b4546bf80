#include "client/dataset/extent_legs.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "libffrecord/net/protocol/storage_messages.h"

namespace ffrecord::client {
namespace {

// The answer to the request, which must be of its type.
Result<void> Await(net::Connection& connection, std::uint64_t request, net::FrameType type,
                   net::Deadline deadline, std::string_view what) {
  const auto header = FFR_TRY(connection.Receive(request, deadline, what));
  if (header.type == net::ReplyTo(type) && header.payload_size_bytes == 0) return {};
  return connection.Break(
      {ErrorCode::kUnavailable,
       connection.peer() + " sent another frame where " + std::string(what) + " was awaited"});
}

}  // namespace

Result<std::uint64_t> ExtentLegs::Send(const ExtentSource& source,
                                       const std::function<void(std::uint64_t)>& sent) {
  FFR_TRY(Begin());
  const std::uint64_t xxh3 = FFR_TRY(SendPieces(source, sent));
  FFR_TRY(Seal(xxh3));
  return xxh3;
}

std::vector<Result<void>> ExtentLegs::outcomes() const {
  std::vector<Result<void>> outcomes;
  for (const Leg& leg : legs_) outcomes.push_back(leg.outcome);
  return outcomes;
}

Result<void> ExtentLegs::Each(const std::function<Result<void>(Leg&)>& work) {
  for (Leg& leg : legs_)
    if (leg.is_open()) leg.outcome = work(leg);
  if (std::ranges::any_of(legs_, &Leg::is_open)) return {};
  return legs_.front().outcome;
}

// Requests go out to all before the first answer is awaited, here and in Seal(): each may cost a
// write to a disk.
Result<void> ExtentLegs::Begin() {
  const net::PutBegin begin{extent_.id, extent_.size_bytes};
  const auto ask = [&](Leg& leg) -> Result<void> {
    FFR_TRY(leg.session.PrepareUploads(leg.connection, deadline_));
    leg.request = FFR_TRY(net::SendPutBegin(leg.connection, begin, TrafficClass::kCheckpoint));
    return {};
  };
  const auto take_answer = [&](Leg& leg) -> Result<void> {
    FFR_TRY(Await(leg.connection, leg.request, net::FrameType::kPutBegin, deadline_,
                  "room for an extent"));
    // Sealed already: the reply to PUT_SEAL was lost. The bytes are read once more for their sum.
    auto begun = net::PutBeginReply::Decode(leg.connection.body());
    if (!begun) return leg.connection.Break(std::move(begun).error());
    leg.is_sealed = begun.value().already_sealed;
    return {};
  };
  FFR_TRY(Each(ask));
  return Each(take_answer);
}

Result<std::uint64_t> ExtentLegs::SendPieces(const ExtentSource& source,
                                             const std::function<void(std::uint64_t)>& sent) {
  Xxh3Stream sum;
  std::span<std::byte> room;  // The first one; a piece fits all of them.
  std::uint64_t size = 0;
  std::span<const std::byte> bytes;
  const auto find_room = [&](Leg& leg) -> Result<void> {
    const auto own = FFR_TRY(leg.sender.Room());
    if (room.empty()) room = own;
    size = std::min<std::uint64_t>(size, own.size());
    return {};
  };
  const auto send = [&](Leg& leg) {
    return leg.is_sealed ? Result<void>() : leg.sender.Send(bytes);
  };
  for (std::uint64_t done = 0; done < extent_.size_bytes; done += bytes.size()) {
    room = {};
    size = extent_.size_bytes - done;
    FFR_TRY(Each(find_room));
    bytes = FFR_TRY(source(extent_.offset_bytes + done, room.first(size)));
    sum.Update(bytes);
    FFR_TRY(Each(send));
    if (sent) sent(done + bytes.size());
  }
  FFR_TRY(Each([](Leg& leg) { return leg.sender.Finish(); }));
  return sum.Finish64();
}

Result<void> ExtentLegs::Seal(std::uint64_t xxh3) {
  const auto body = net::PutSeal{extent_.id, xxh3}.Encode();
  const auto ask = [&](Leg& leg) -> Result<void> {
    leg.request = FFR_TRY(leg.connection.Send(net::FrameType::kPutSeal, body));
    return {};
  };
  FFR_TRY(Each(ask));
  return Each([&](Leg& leg) {
    return Await(leg.connection, leg.request, net::FrameType::kPutSeal, deadline_,
                 "the seal of an extent");
  });
}

}  // namespace ffrecord::client
