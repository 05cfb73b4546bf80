#include "server/service/cluster/peer_calls.h"

#include <algorithm>
#include <array>
#include <utility>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/protocol/metadata_messages.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/rpc/extent_sender.h"

namespace ffrecord::server {
namespace {

using net::FrameType;

// One request for bytes: so small that a rate is kept evenly.
constexpr std::uint32_t kReadBytes = 1U << 20;
// One frame of an upload.
constexpr std::uint32_t kPieceBytes = 4U << 20;
// A node makes a token for each connection, which lives longer than the token.
constexpr std::chrono::minutes kTokenTime{5};
constexpr std::uint16_t kNoPort = 0;

Error Senseless(const net::Channel& peer) {
  return {ErrorCode::kUnavailable, peer.peer() + ": an answer that does not fit the question"};
}

template <class Message, class ReplyMessage>
Result<ReplyMessage> Call(net::Channel& peer, FrameType type, const Message& message,
                          net::Deadline deadline) {
  const auto reply = FFR_TRY(peer.Call(type, message.Encode(), {}, deadline, "a question"));
  return ReplyMessage::Decode(reply.body);
}

// The pieces of one BATCH_READ of one entry, which come in order and without gaps.
class PieceReader {
 public:
  PieceReader(net::Channel& peer, std::uint32_t size_bytes)
      : peer_(peer), size_bytes_(size_bytes) {}

  Result<void> Read(std::uint64_t request, net::Deadline deadline, const TakePiece& take) {
    for (;;) {
      const auto header = FFR_TRY(peer_.Receive(request, deadline, "an extent"));
      if (header.type == net::ReplyTo(FrameType::kBatchRead)) return TakeDone();
      if (header.type != FrameType::kBatchData) return peer_.Break(Senseless(peer_));
      FFR_TRY(TakeData(header, deadline, take));
    }
  }

 private:
  Result<void> TakeData(const net::FrameHeader& header, net::Deadline deadline,
                        const TakePiece& take) {
    const auto data = net::BatchData::Decode(peer_.body());
    if (!data) return peer_.Break(data.error());
    std::uint64_t size_bytes = 0;
    for (const net::BatchPiece& piece : data.value().pieces) {
      if (piece.entry != 0 || piece.offset_bytes != received_bytes_ + size_bytes ||
          piece.size_bytes > size_bytes_ - piece.offset_bytes)
        return peer_.Break(Senseless(peer_));
      size_bytes += piece.size_bytes;
    }
    if (size_bytes != header.payload_size_bytes) return peer_.Break(Senseless(peer_));
    buffer_.resize(size_bytes);
    const std::array<std::span<std::byte>, 1> places{std::span<std::byte>(buffer_)};
    FFR_TRY(peer_.ReceivePayload(places, deadline));
    received_bytes_ += static_cast<std::uint32_t>(size_bytes);
    return take(buffer_);
  }

  Result<void> TakeDone() {
    const auto done = net::BatchDone::Decode(peer_.body());
    if (!done) return peer_.Break(done.error());
    if (done.value().failed_count > 0) {
      const auto status = done.value().statuses.empty() ? net::EntryStatus::kIoError
                                                        : done.value().statuses.front();
      return Error{net::ToErrorCode(status), peer_.peer() + ": the extent could not be read there"};
    }
    if (received_bytes_ != size_bytes_) return peer_.Break(Senseless(peer_));
    return {};
  }

  net::Channel& peer_;
  const std::uint32_t size_bytes_;
  std::uint32_t received_bytes_ = 0;
  std::vector<std::byte> buffer_;
};

// As number 0 of the connection.
Result<void> BindExtent(net::Channel& peer, const ExtentId& id, net::Deadline deadline) {
  const net::ExtentBind bind{0, {id}};
  const auto bound =
      FFR_TRY(peer.Call(FrameType::kExtentBind, bind.Encode(), {}, deadline, "an extent"));
  const auto reply = FFR_TRY(net::ExtentBindReply::Decode(bound.body));
  if (reply.missing_count > 0)
    return Error{ErrorCode::kNotFound, peer.peer() + ": the extent is not there"};
  return {};
}

Result<void> ReadPiece(net::Channel& peer, const net::BatchEntry& piece, net::Deadline deadline,
                       net::BatchRead::Class traffic_class, const TakePiece& take,
                       std::uint8_t options = 0) {
  net::BatchRead batch;
  batch.traffic_class = traffic_class;
  batch.options = options;
  batch.entries = {piece};
  peer.MarkAs(net::TrafficOf(traffic_class));
  const auto request = FFR_TRY(peer.Send(FrameType::kBatchRead, batch.Encode()));
  return PieceReader(peer, piece.size_bytes).Read(request, deadline, take);
}

}  // namespace

Result<std::unique_ptr<net::Channel>> PeerDialer::Dial(const std::string& address,
                                                       net::Deadline deadline) const {
  const net::Address at = FFR_TRY(net::Address::Parse(address, kNoPort));
  std::vector<std::byte> credential;
  if (keys_ != nullptr) {
    Token token;
    token.rights = static_cast<std::uint8_t>(Right::kRead) |
                   static_cast<std::uint8_t>(Right::kWrite) |
                   static_cast<std::uint8_t>(Right::kPeer);
    token.expires = WallClock::now() + kTokenTime;
    token.client = "node " + node_;
    credential = FFR_TRY(keys_->Sign(token));
  }
  if (tls_.certificate.empty()) return net::Channel::Connect(at, deadline, credential);
  const auto tls = FFR_TRY(net::TlsContext::Load(net::TlsContext::Side::kClient, tls_));
  return net::Channel::Open(FFR_TRY(net::ConnectTls(at, *tls, deadline)), deadline, credential);
}

// In as many messages as it takes.
Result<cluster::Holdings> CallPeer(net::Channel& peer, const cluster::AskHoldings& question,
                                   net::Deadline deadline) {
  cluster::Holdings holdings;
  for (std::size_t begin = 0; begin < question.extents.size();
       begin += net::AskHoldings::kCountMax) {
    net::AskHoldings message;
    message.promise_version = question.promise_version;
    const std::size_t end =
        std::min<std::size_t>(question.extents.size(), begin + net::AskHoldings::kCountMax);
    for (std::size_t i = begin; i < end; ++i) {
      const ManifestExtent& extent = question.extents[i];
      message.extents.push_back({extent.id, extent.size_bytes, extent.xxh3});
    }
    const auto reply = FFR_TRY((Call<net::AskHoldings, net::HoldingsReply>(
        peer, FrameType::kAskHoldings, message, deadline)));
    if (reply.holdings.size() != message.extents.size()) return Senseless(peer);
    for (const auto holding : reply.holdings)
      holdings.push_back(static_cast<cluster::Holding>(holding));
  }
  return holdings;
}

Result<cluster::Flags> CallPeer(net::Channel& peer, const cluster::AskHeard& question,
                                net::Deadline deadline) {
  auto reply = FFR_TRY((Call<net::AskHeard, net::FlagsReply>(
      peer, FrameType::kAskHeard, net::AskHeard{question.uploads}, deadline)));
  if (reply.flags.size() != question.uploads.size()) return Senseless(peer);
  return std::move(reply.flags);
}

Result<cluster::Flags> CallPeer(net::Channel& peer, const cluster::AskBuried& question,
                                net::Deadline deadline) {
  auto reply = FFR_TRY((Call<net::AskBuried, net::FlagsReply>(
      peer, FrameType::kAskBuried, net::AskBuried{question.keys}, deadline)));
  if (reply.flags.size() != question.keys.size()) return Senseless(peer);
  return std::move(reply.flags);
}

Result<cluster::Flags> CallPeer(net::Channel& peer, const cluster::AskFilled& question,
                                net::Deadline deadline) {
  auto reply = FFR_TRY((Call<net::AskFilled, net::FlagsReply>(
      peer, FrameType::kAskFilled, net::AskFilled{question.version}, deadline)));
  if (reply.flags.size() != 1) return Senseless(peer);
  return std::move(reply.flags);
}

// Page by page. A page that changes meanwhile is of another mark: then it begins anew.
Result<cluster::Known> CallPeer(net::Channel& peer, const cluster::AskKnown& question,
                                net::Deadline deadline) {
  net::AskKnown message{question.with_names, ""};
  cluster::Known known;
  for (bool more = true, is_first = true; more; is_first = false) {
    const auto reply = FFR_TRY(
        (Call<net::AskKnown, net::KnownReply>(peer, FrameType::kAskKnown, message, deadline)));
    const cluster::HistoryMark mark{
        reply.incarnation, reply.revision, {reply.term, reply.term_revision}};
    if (is_first || mark != known.mark) {
      known = {mark, {}};
      if (!std::exchange(message.after, "").empty()) continue;
    }
    for (const net::MetadataEntry& entry : reply.page.entries) {
      if (entry.key <= message.after) return Senseless(peer);  // Else it might never end.
      known.names[entry.key] = {FFR_TRY(cluster::DatasetRecord::Decode(entry.value)),
                                entry.revision};
      message.after = entry.key;
    }
    more = reply.more && !reply.page.entries.empty();
  }
  return known;
}

Result<void> CheckIsNode(net::Channel& peer, const std::string& node, const net::ClusterId& cluster,
                         std::uint32_t known_map_version, net::Deadline deadline) {
  const auto reply = FFR_TRY((Call<net::ClusterMap, net::ClusterMapReply>(
      peer, FrameType::kClusterMap, {known_map_version}, deadline)));
  if (reply.cluster == net::ClusterId{})
    return Error{ErrorCode::kUnavailable, peer.peer() + ": it has not found its cluster yet"};
  if (reply.node == node && reply.cluster == cluster) return {};
  return Error{ErrorCode::kDenied, peer.peer() + ": node " + node + " of cluster " + Hex(cluster) +
                                       " is expected there, and node " + reply.node +
                                       " of cluster " + Hex(reply.cluster) +
                                       " answers: correct `advertise` of one of them, or "
                                       "stop the one that is not yours"};
}

Result<void> ReadExtent(net::Channel& peer, const ManifestExtent& extent, net::Deadline deadline,
                        std::chrono::milliseconds piece_patience, const TakePiece& take,
                        const PauseBefore& pause) {
  const auto in_time = [&] { return std::min(deadline, Clock::now() + piece_patience); };
  FFR_TRY(BindExtent(peer, extent.id, in_time()));
  for (std::uint64_t offset = 0; offset < extent.size_bytes; offset += kReadBytes) {
    const auto size_bytes =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(kReadBytes, extent.size_bytes - offset));
    if (pause) FFR_TRY(pause(size_bytes));
    FFR_TRY(ReadPiece(peer, {0, static_cast<std::uint32_t>(offset), size_bytes, 0}, in_time(),
                      net::BatchRead::Class::kRepair, take));
  }
  return {};
}

void DoubtExtent(net::Channel& peer, net::Deadline deadline) {
  const auto leave = [](std::span<const std::byte>) { return Result<void>(); };
  // The first byte, which nobody wants: meanwhile the node is busy with it.
  (void)ReadPiece(peer, {0, 0, 1, 0}, deadline, net::BatchRead::Class::kRepair, leave,
                  net::BatchRead::kDoubted);
}

Result<void> ReadExtentPart(net::Channel& peer, const ExtentId& id, std::uint64_t offset_bytes,
                            std::span<std::byte> destination, net::Deadline deadline) {
  FFR_TRY(BindExtent(peer, id, deadline));
  while (!destination.empty()) {
    const auto size_bytes =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(kReadBytes, destination.size()));
    const auto take = [&](std::span<const std::byte> piece) -> Result<void> {
      std::ranges::copy(piece, destination.begin());
      destination = destination.subspan(piece.size());
      return {};
    };
    FFR_TRY(ReadPiece(peer, {0, static_cast<std::uint32_t>(offset_bytes), size_bytes, 0}, deadline,
                      net::BatchRead::Class::kPrefetch, take));
    offset_bytes += size_bytes;
  }
  return {};
}

Result<void> StoreExtent(net::Channel& peer, const ManifestExtent& extent,
                         std::span<const std::byte> bytes, net::Deadline deadline) {
  const auto request =
      FFR_TRY(net::SendPutBegin(peer, {extent.id, extent.size_bytes}, TrafficClass::kRepair));
  const auto header = FFR_TRY(peer.Receive(request, deadline, "an extent"));
  if (header.type != net::ReplyTo(FrameType::kPutBegin)) return Senseless(peer);
  const bool is_there = FFR_TRY(net::PutBeginReply::Decode(peer.body())).already_sealed;
  for (std::size_t offset = 0; !is_there && offset < bytes.size(); offset += kPieceBytes) {
    const std::array payload{
        bytes.subspan(offset, std::min<std::size_t>(kPieceBytes, bytes.size() - offset))};
    FFR_TRY(peer.Send(FrameType::kPutData, net::PutData{extent.id, offset}.Encode(), payload));
    FFR_TRY(peer.Flush(deadline));
  }
  const net::PutSeal seal{extent.id, extent.xxh3};
  FFR_TRY(peer.Call(FrameType::kPutSeal, seal.Encode(), {}, deadline, "an extent"));
  return {};
}

}  // namespace ffrecord::server
