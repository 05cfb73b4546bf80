#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/result.h>

namespace ffrecord::net {

// A region of memory of a peer, as RDMA addresses it: its first byte and the key that opens it.
struct RemoteRegion {
  std::uint64_t address = 0;
  std::uint32_t key = 0;

  bool operator==(const RemoteRegion&) const = default;
};

// Body of RDMA_CONNECT and of its reply: how one end's queue pair is reached, and what it can take.
// messages.h says what Encode and Decode do.
struct RdmaConnect {
  std::array<std::byte, 16> gid{};         // The port's, RoCE version 2.
  std::uint32_t queue_pair = 0;            // Below 2^24, as is the next.
  std::uint32_t packet_number = 0;         // The first that this end sends; random.
  std::uint32_t buffer_size_bytes = 4096;  // Size of one receive buffer: 256 to 1 MiB.
  std::uint16_t buffer_count = 8;          // Receive buffers, so messages that may be under way.
  std::uint16_t mtu_bytes = 1024;          // 256, 512, 1024, 2048 or 4096; the smaller one is used.

  bool operator==(const RdmaConnect&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<RdmaConnect> Decode(std::span<const std::byte> body);
};

}  // namespace ffrecord::net
