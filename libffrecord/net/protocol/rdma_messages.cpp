#include "libffrecord/net/protocol/rdma_messages.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "libffrecord/base/cursor.h"

namespace ffrecord::net {
namespace {

constexpr std::uint32_t kNumberLimit = 1U << 24;
constexpr std::uint32_t kBufferSizeMin = 256;
constexpr std::uint32_t kBufferSizeMax = 1U << 20;
// Credits of one message are counted in one byte.
constexpr std::uint16_t kBufferCountMin = 2;
constexpr std::uint16_t kBufferCountMax = 255;

}  // namespace

std::vector<std::byte> RdmaConnect::Encode() const {
  ByteWriter writer;
  writer.PutBytes(gid);
  writer.Put(queue_pair);
  writer.Put(packet_number);
  writer.Put(buffer_size_bytes);
  writer.Put(buffer_count);
  writer.Put(mtu_bytes);
  return std::move(writer).Take();
}

Result<RdmaConnect> RdmaConnect::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  RdmaConnect connect;
  const auto gid = reader.TakeBytes(connect.gid.size());
  connect.queue_pair = reader.Take<std::uint32_t>();
  connect.packet_number = reader.Take<std::uint32_t>();
  connect.buffer_size_bytes = reader.Take<std::uint32_t>();
  connect.buffer_count = reader.Take<std::uint16_t>();
  connect.mtu_bytes = reader.Take<std::uint16_t>();
  const bool fits =
      reader.AtEnd() && connect.queue_pair < kNumberLimit && connect.packet_number < kNumberLimit &&
      connect.buffer_size_bytes >= kBufferSizeMin && connect.buffer_size_bytes <= kBufferSizeMax &&
      connect.buffer_count >= kBufferCountMin && connect.buffer_count <= kBufferCountMax &&
      std::has_single_bit(connect.mtu_bytes) && connect.mtu_bytes >= 256 &&
      connect.mtu_bytes <= 4096;
  if (!fits) return Error{ErrorCode::kCorruption, "RDMA_CONNECT: the body is malformed"};
  std::copy_n(gid.begin(), connect.gid.size(), connect.gid.begin());
  return connect;
}

}  // namespace ffrecord::net
