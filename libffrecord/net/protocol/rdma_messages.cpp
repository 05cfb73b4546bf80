#include "libffrecord/net/protocol/rdma_messages.h"

#include <bit>

#include "libffrecord/net/protocol/fields.h"

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
  return EncodeFields(gid, queue_pair, packet_number, buffer_size_bytes, buffer_count, mtu_bytes);
}

Result<RdmaConnect> RdmaConnect::Decode(std::span<const std::byte> body) {
  RdmaConnect connect;
  const bool fits =
      DecodeFields(body, connect.gid, connect.queue_pair, connect.packet_number,
                   connect.buffer_size_bytes, connect.buffer_count, connect.mtu_bytes) &&
      connect.queue_pair < kNumberLimit && connect.packet_number < kNumberLimit &&
      connect.buffer_size_bytes >= kBufferSizeMin && connect.buffer_size_bytes <= kBufferSizeMax &&
      connect.buffer_count >= kBufferCountMin && connect.buffer_count <= kBufferCountMax &&
      std::has_single_bit(connect.mtu_bytes) && connect.mtu_bytes >= 256 &&
      connect.mtu_bytes <= 4096;
  if (!fits) return MalformedBody("RDMA_CONNECT");
  return connect;
}

}  // namespace ffrecord::net
