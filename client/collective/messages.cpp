#include "client/collective/messages.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "libffrecord/base/cursor.h"

namespace ffrecord::client {
namespace {

Error Malformed(std::string_view message) {
  return Error{ErrorCode::kCorruption, std::string(message) + ": the body is malformed"};
}

}  // namespace

std::vector<std::byte> RingHello::Encode() const {
  ByteWriter writer;
  writer.PutBytes(secret);
  writer.Put(rank);
  writer.Put(world_size);
  writer.Put(chunk_size_bytes);
  return std::move(writer).Take();
}

Result<RingHello> RingHello::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  RingHello hello;
  const auto secret = reader.TakeBytes(hello.secret.size());
  hello.rank = reader.Take<std::uint32_t>();
  hello.world_size = reader.Take<std::uint32_t>();
  hello.chunk_size_bytes = reader.Take<std::uint64_t>();
  if (!reader.AtEnd()) return Malformed("HELLO of a collective");
  std::ranges::copy(secret, hello.secret.begin());
  return hello;
}

std::vector<std::byte> RingData::Encode() const {
  ByteWriter writer;
  writer.Reserve(40);
  writer.Put(sequence);
  writer.Put(count);
  writer.Put(first);
  writer.Put(payload_check);
  writer.Put(step);
  writer.Put(static_cast<std::uint8_t>(type));
  writer.Put(static_cast<std::uint8_t>(op));
  writer.Put(std::uint16_t{0});
  return std::move(writer).Take();
}

Result<RingData> RingData::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  RingData data;
  data.sequence = reader.Take<std::uint64_t>();
  data.count = reader.Take<std::uint64_t>();
  data.first = reader.Take<std::uint64_t>();
  data.payload_check = reader.Take<std::uint64_t>();
  data.step = reader.Take<std::uint32_t>();
  const auto type = reader.Take<std::uint8_t>();
  const auto op = reader.Take<std::uint8_t>();
  const auto zero = reader.Take<std::uint16_t>();
  if (!reader.AtEnd() || zero != 0 || type > static_cast<std::uint8_t>(ReduceType::kI64) ||
      op > static_cast<std::uint8_t>(ReduceOp::kMax))
    return Malformed("COLLECTIVE_DATA");
  data.type = static_cast<ReduceType>(type);
  data.op = static_cast<ReduceOp>(op);
  return data;
}

std::vector<std::byte> RingWaiting::Encode() const {
  ByteWriter writer;
  writer.Put(rank);
  return std::move(writer).Take();
}

Result<RingWaiting> RingWaiting::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  const RingWaiting waiting{reader.Take<std::uint32_t>()};
  if (!reader.AtEnd()) return Malformed("PING of a collective");
  return waiting;
}

}  // namespace ffrecord::client
