#include "client/collective/messages.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "client/collective/wire.h"
#include "libffrecord/base/cursor.h"

namespace ffrecord::client {
namespace {

Error Malformed(std::string_view message) {
  return Error{ErrorCode::kCorruption, std::string(message) + ": the body is malformed"};
}

}  // namespace

std::vector<std::byte> GroupHello::Encode() const {
  ByteWriter writer;
  writer.PutBytes(secret);
  writer.Put(rank);
  writer.Put(world_size);
  writer.Put(chunk_size_bytes);
  writer.Put(static_cast<std::uint16_t>(wire));
  writer.Put(static_cast<std::uint16_t>(transport));
  writer.Put(streams);
  writer.Put(stream);
  return std::move(writer).Take();
}

Result<GroupHello> GroupHello::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  GroupHello hello;
  const auto secret = reader.TakeBytes(hello.secret.size());
  hello.rank = reader.Take<std::uint32_t>();
  hello.world_size = reader.Take<std::uint32_t>();
  hello.chunk_size_bytes = reader.Take<std::uint64_t>();
  const auto wire = reader.Take<std::uint16_t>();
  const auto transport = reader.Take<std::uint16_t>();
  hello.streams = reader.Take<std::uint16_t>();
  hello.stream = reader.Take<std::uint16_t>();
  if (!reader.AtEnd() || wire > static_cast<std::uint16_t>(WireType::kF16) ||
      transport > static_cast<std::uint16_t>(GroupTransport::kRdma) ||
      hello.stream >= hello.streams)
    return Malformed("HELLO of a collective");
  hello.wire = static_cast<WireType>(wire);
  hello.transport = static_cast<GroupTransport>(transport);
  std::ranges::copy(secret, hello.secret.begin());
  return hello;
}

std::vector<std::byte> GroupRing::Encode() const {
  ByteWriter writer;
  writer.Put(memory.address);
  writer.Put(size_bytes);
  writer.Put(memory.key);
  return std::move(writer).Take();
}

Result<GroupRing> GroupRing::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  GroupRing ring;
  ring.memory.address = reader.Take<std::uint64_t>();
  ring.size_bytes = reader.Take<std::uint64_t>();
  ring.memory.key = reader.Take<std::uint32_t>();
  if (!reader.AtEnd() || ring.memory.address + ring.size_bytes < ring.memory.address)
    return Malformed("the reply to HELLO of a collective");
  return ring;
}

std::vector<std::byte> CollectiveData::Encode() const {
  ByteWriter writer;
  writer.Reserve(kEncodedSizeBytes);
  writer.Put(sequence);
  writer.Put(count);
  writer.Put(first);
  writer.Put(payload_check);
  writer.Put(step);
  writer.Put(static_cast<std::uint8_t>(type));
  writer.Put(static_cast<std::uint8_t>(op));
  writer.Put(static_cast<std::uint8_t>(collective));
  writer.Put(static_cast<std::uint8_t>(algorithm));
  writer.Put(root);
  writer.Put(static_cast<std::uint32_t>(shift));
  return std::move(writer).Take();
}

Result<CollectiveData> CollectiveData::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  CollectiveData data;
  data.sequence = reader.Take<std::uint64_t>();
  data.count = reader.Take<std::uint64_t>();
  data.first = reader.Take<std::uint64_t>();
  data.payload_check = reader.Take<std::uint64_t>();
  data.step = reader.Take<std::uint32_t>();
  data.type = static_cast<ReduceType>(reader.Take<std::uint8_t>());
  data.op = static_cast<ReduceOp>(reader.Take<std::uint8_t>());
  data.collective = static_cast<Collective>(reader.Take<std::uint8_t>());
  data.algorithm = static_cast<Algorithm>(reader.Take<std::uint8_t>());
  data.root = reader.Take<std::uint32_t>();
  data.shift = static_cast<std::int32_t>(reader.Take<std::uint32_t>());
  if (!reader.AtEnd() || data.shift < kWireShiftMin || data.shift > kWireShiftMax ||
      data.type > ReduceType::kBytes || data.op > ReduceOp::kMax ||
      !IsOffered(data.collective, data.algorithm))
    return Malformed("COLLECTIVE_DATA");
  return data;
}

std::vector<std::byte> CollectivePlaced::Encode() const {
  ByteWriter writer;
  writer.PutBytes(data.Encode());
  writer.Put(offset_bytes);
  writer.Put(size_bytes);
  return std::move(writer).Take();
}

Result<CollectivePlaced> CollectivePlaced::Decode(std::span<const std::byte> body) {
  constexpr std::size_t kHead = CollectiveData::kEncodedSizeBytes;
  if (body.size() < kHead) return Malformed("COLLECTIVE_PLACED");
  CollectivePlaced placed;
  placed.data = FFR_TRY(CollectiveData::Decode(body.first(kHead)));
  ByteReader reader(body.subspan(kHead));
  placed.offset_bytes = reader.Take<std::uint64_t>();
  placed.size_bytes = reader.Take<std::uint64_t>();
  if (!reader.AtEnd()) return Malformed("COLLECTIVE_PLACED");
  return placed;
}

std::vector<std::byte> CollectiveTaken::Encode() const {
  ByteWriter writer;
  writer.Put(first);
  writer.Put(pieces);
  writer.Put(waited_us);
  return std::move(writer).Take();
}

Result<CollectiveTaken> CollectiveTaken::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  CollectiveTaken taken;
  taken.first = reader.Take<std::uint64_t>();
  taken.pieces = reader.Take<std::uint32_t>();
  taken.waited_us = reader.Take<std::uint32_t>();
  if (!reader.AtEnd()) return Malformed("COLLECTIVE_TAKEN");
  return taken;
}

std::vector<std::byte> GroupWaiting::Encode() const {
  ByteWriter writer;
  writer.Put(rank);
  writer.Put(static_cast<std::uint32_t>(is_absent));
  return std::move(writer).Take();
}

Result<GroupWaiting> GroupWaiting::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  const auto rank = reader.Take<std::uint32_t>();
  const auto is_absent = reader.Take<std::uint32_t>();
  if (!reader.AtEnd() || is_absent > 1) return Malformed("PING of a collective");
  return GroupWaiting{rank, is_absent == 1};
}

}  // namespace ffrecord::client
