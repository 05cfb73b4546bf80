#include "libffrecord/net/protocol/cluster_messages.h"

#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/net/protocol/fields.h"

namespace ffrecord::net {
namespace {

constexpr std::size_t kNodeSizeMin = 3 * 2 + 4 + 1 + 1 + 2;
constexpr std::size_t kExtentSizeBytes = 16 + 8 + 8;

bool IsNodeId(const std::string& id) {
  return !id.empty() && id.size() <= NodeIdentity::kNodeSizeMax;
}

// A count of items of at least `size_min` bytes each, which all have to be in the body.
bool TakeCount(ByteReader& reader, std::uint32_t count_max, std::size_t size_min,
               std::uint32_t& count) {
  return TakeField(reader, count) && count <= count_max && count <= reader.remaining() / size_min;
}

// One byte for each item that was asked about.
template <class Item>
std::vector<std::byte> EncodeBytes(const std::vector<Item>& items) {
  FFR_ASSERT(items.size() <= AskHoldings::kCountMax);
  ByteWriter writer;
  writer.Put(static_cast<std::uint32_t>(items.size()));
  for (const auto item : items) writer.Put(static_cast<std::uint8_t>(item));
  return std::move(writer).Take();
}

template <class Item>
bool DecodeBytes(std::span<const std::byte> body, std::uint8_t value_max,
                 std::vector<Item>& items) {
  ByteReader reader(body);
  std::uint32_t count = 0;
  if (!TakeCount(reader, AskHoldings::kCountMax, 1, count)) return false;
  items.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto value = reader.Take<std::uint8_t>();
    if (value > value_max) return false;
    items.push_back(static_cast<Item>(value));
  }
  return reader.ok() && reader.AtEnd();
}

}  // namespace

std::vector<std::byte> ClusterMap::Encode() const { return EncodeFields(known_version); }

Result<ClusterMap> ClusterMap::Decode(std::span<const std::byte> body) {
  ClusterMap request;
  if (!DecodeFields(body, request.known_version)) return MalformedBody("CLUSTER_MAP");
  return request;
}

namespace {

// To the end of the body, which is here if none wait.
bool TakeWaiting(ByteReader& reader, ClusterMapReply& reply) {
  constexpr std::size_t kWaitingSizeMin = 2 + 1 + 2 + 8 + 2;
  if (reader.AtEnd()) return true;
  std::uint32_t count = 0;
  if (!TakeCount(reader, ClusterMapReply::kNodeCountMax, kWaitingSizeMin, count) || count == 0)
    return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    ClusterMapReply::Waiting one;
    if (!TakeFields(reader, one.id, one.address, one.since_unix_ms, one.daemon) ||
        !IsNodeId(one.id) || (i > 0 && one.id <= reply.waiting.back().id))
      return false;
    reply.waiting.push_back(std::move(one));
  }
  return reader.AtEnd();
}

}  // namespace

std::vector<std::byte> ClusterMapReply::Encode() const {
  FFR_ASSERT(nodes.size() <= kNodeCountMax);
  ByteWriter writer;
  PutFields(writer, version, replicas, cluster, node, static_cast<std::uint32_t>(nodes.size()));
  for (const Node& one : nodes)
    PutFields(writer, one.id, one.address, one.domain, one.weight, one.state, one.is_up,
              Zeros<2>());
  if (!waiting.empty()) PutFields(writer, static_cast<std::uint32_t>(waiting.size()));
  for (const Waiting& one : waiting)
    PutFields(writer, one.id, one.address, one.since_unix_ms, one.daemon);
  return std::move(writer).Take();
}

Result<ClusterMapReply> ClusterMapReply::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  ClusterMapReply reply;
  std::uint32_t count = 0;
  if (!TakeFields(reader, reply.version, reply.replicas, reply.cluster, reply.node) ||
      reply.replicas == 0 || !IsNodeId(reply.node) ||
      !TakeCount(reader, kNodeCountMax, kNodeSizeMin, count))
    return MalformedBody("reply to CLUSTER_MAP");
  reply.nodes.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    Node one;
    if (!TakeFields(reader, one.id, one.address, one.domain, one.weight, one.state, one.is_up,
                    Zeros<2>()) ||
        one.state > MemberState::kWaiting || !IsNodeId(one.id) ||
        (i > 0 && one.id <= reply.nodes.back().id))
      return MalformedBody("reply to CLUSTER_MAP");
    reply.nodes.push_back(std::move(one));
  }
  if (!TakeWaiting(reader, reply)) return MalformedBody("reply to CLUSTER_MAP");
  return reply;
}

std::vector<std::byte> SetMember::Encode() const { return EncodeFields(state, Zeros<3>(), node); }

Result<SetMember> SetMember::Decode(std::span<const std::byte> body) {
  SetMember request;
  if (!DecodeFields(body, request.state, Zeros<3>(), request.node) ||
      request.state > MemberState::kOut || !IsNodeId(request.node))
    return MalformedBody("SET_MEMBER");
  return request;
}

std::vector<std::byte> SetLevel::Encode() const { return EncodeFields(level); }

Result<SetLevel> SetLevel::Decode(std::span<const std::byte> body) {
  SetLevel request;
  if (!DecodeFields(body, request.level)) return MalformedBody("SET_LEVEL");
  return request;
}

// --- Between daemons ----------------------------------------------------------------------------

std::vector<std::byte> AskHoldings::Encode() const {
  FFR_ASSERT(!extents.empty() && extents.size() <= kCountMax);
  ByteWriter writer;
  PutFields(writer, promise_version, static_cast<std::uint32_t>(extents.size()));
  for (const Extent& extent : extents) PutFields(writer, extent.id, extent.size_bytes, extent.xxh3);
  return std::move(writer).Take();
}

Result<AskHoldings> AskHoldings::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  AskHoldings question;
  std::uint32_t count = 0;
  if (!TakeField(reader, question.promise_version) ||
      !TakeCount(reader, kCountMax, kExtentSizeBytes, count) || count == 0)
    return MalformedBody("ASK_HOLDINGS");
  question.extents.resize(count);
  for (Extent& extent : question.extents)
    if (!TakeFields(reader, extent.id, extent.size_bytes, extent.xxh3))
      return MalformedBody("ASK_HOLDINGS");
  if (!reader.AtEnd()) return MalformedBody("ASK_HOLDINGS");
  return question;
}

std::vector<std::byte> HoldingsReply::Encode() const { return EncodeBytes(holdings); }

Result<HoldingsReply> HoldingsReply::Decode(std::span<const std::byte> body) {
  HoldingsReply reply;
  if (!DecodeBytes(body, static_cast<std::uint8_t>(Holding::kPromised), reply.holdings))
    return MalformedBody("reply to ASK_HOLDINGS");
  return reply;
}

std::vector<std::byte> AskHeard::Encode() const {
  FFR_ASSERT(!uploads.empty() && uploads.size() <= kCountMax);
  ByteWriter writer;
  writer.Put(static_cast<std::uint32_t>(uploads.size()));
  for (const std::uint64_t upload : uploads) writer.Put(upload);
  return std::move(writer).Take();
}

Result<AskHeard> AskHeard::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  AskHeard question;
  std::uint32_t count = 0;
  if (!TakeCount(reader, kCountMax, sizeof(std::uint64_t), count) || count == 0)
    return MalformedBody("ASK_HEARD");
  question.uploads.resize(count);
  for (std::uint64_t& upload : question.uploads) upload = reader.Take<std::uint64_t>();
  if (!reader.AtEnd()) return MalformedBody("ASK_HEARD");
  return question;
}

std::vector<std::byte> AskBuried::Encode() const {
  FFR_ASSERT(!keys.empty() && keys.size() <= kCountMax);
  ByteWriter writer;
  writer.Put(static_cast<std::uint32_t>(keys.size()));
  for (const std::string& key : keys) PutField(writer, key);
  return std::move(writer).Take();
}

Result<AskBuried> AskBuried::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  AskBuried question;
  std::uint32_t count = 0;
  if (!TakeCount(reader, kCountMax, sizeof(std::uint16_t), count) || count == 0)
    return MalformedBody("ASK_BURIED");
  question.keys.resize(count);
  for (std::string& key : question.keys)
    if (!TakeField(reader, key) || key.size() > kKeySizeMax) return MalformedBody("ASK_BURIED");
  if (!reader.AtEnd()) return MalformedBody("ASK_BURIED");
  return question;
}

std::vector<std::byte> AskFilled::Encode() const { return EncodeFields(version); }

Result<AskFilled> AskFilled::Decode(std::span<const std::byte> body) {
  AskFilled question;
  if (!DecodeFields(body, question.version)) return MalformedBody("ASK_FILLED");
  return question;
}

std::vector<std::byte> FlagsReply::Encode() const { return EncodeBytes(flags); }

Result<FlagsReply> FlagsReply::Decode(std::span<const std::byte> body) {
  FlagsReply reply;
  if (!DecodeBytes(body, 1, reply.flags)) return MalformedBody("reply with flags");
  return reply;
}

}  // namespace ffrecord::net
