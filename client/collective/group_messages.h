#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/client/collective.h>
#include <ffrecord/result.h>

#include "client/collective/schedule.h"
#include "libffrecord/net/protocol/rdma_messages.h"

namespace ffrecord::client {

// Messages between ranks of a collective group, beside ERROR; protocol.md, "Collectives". Decode()
// fails with kCorruption if a body is not exactly such a message.

// Opens a connection to a rank that this one will send to (type HELLO). The reply has no body, but
// over RDMA, where it is GroupRing.
struct GroupHello {
  std::array<std::byte, 16> secret{};
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  std::uint64_t chunk_size_bytes = 0;
  WireType wire = WireType::kExact;
  GroupTransport transport = GroupTransport::kTcp;
  std::uint16_t streams = 1;  // Connections from each rank to each other that it sends to.
  std::uint16_t stream = 0;   // Which of them this is.

  bool operator==(const GroupHello&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<GroupHello> Decode(std::span<const std::byte> body);
};

// A piece of an array (type COLLECTIVE_DATA); its elements are the payload.
struct CollectiveData {
  static constexpr std::size_t kEncodedSizeBytes = 48;

  std::uint64_t sequence = 0;       // Number of the operation, from 0.
  std::uint64_t count = 0;          // Elements of the whole array.
  std::uint64_t first = 0;          // The piece's first element in it.
  std::uint64_t payload_check = 0;  // XXH3-64 of the payload: a flipped bit is no wrong sum.
  std::uint32_t step = 0;
  ReduceType type = ReduceType::kF32;
  ReduceOp op = ReduceOp::kSum;  // kSum where nothing is reduced.
  Collective collective = Collective::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  std::uint32_t root = 0;
  std::int32_t shift = 0;  // The elements were multiplied by 2 to the power of it; wire.h.

  bool operator==(const CollectiveData&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<CollectiveData> Decode(std::span<const std::byte> body);
};

// Memory of the receiver that pieces are written into: the body of the reply to HELLO over RDMA.
struct GroupRing {
  net::RemoteRegion memory{};
  std::uint64_t size_bytes = 0;

  bool operator==(const GroupRing&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<GroupRing> Decode(std::span<const std::byte> body);
};

// A piece that has been written into the receiver's GroupRing already (type COLLECTIVE_PLACED).
struct CollectivePlaced {
  CollectiveData data{};
  std::uint64_t offset_bytes = 0;  // In the ring.
  std::uint64_t size_bytes = 0;

  bool operator==(const CollectivePlaced&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<CollectivePlaced> Decode(std::span<const std::byte> body);
};

// Where there are several streams, or RDMA: pieces that came on this one are in their places (type
// COLLECTIVE_TAKEN, against the direction of the data, no reply). Until then they may have to be
// sent again on another, and what was written stays where it is.
struct CollectiveTaken {
  std::uint64_t first = 0;      // Pieces of a connection are counted from 0.
  std::uint32_t pieces = 0;     // That many from there on.
  std::uint32_t waited_us = 0;  // So long the last of them waited for its place, not for the wire.

  bool operator==(const CollectiveTaken&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<CollectiveTaken> Decode(std::span<const std::byte> body);
};

// "I am held up, and by whom" (type PING, no reply), so that the one who holds up all is named. A
// rank that others wait for and whose program has not submitted the operation says so of itself.
struct GroupWaiting {
  std::uint32_t rank = 0;  // The rank that holds up.
  bool is_absent = false;  // It has said that it lives and has not joined.

  bool operator==(const GroupWaiting&) const = default;
  std::vector<std::byte> Encode() const;
  static Result<GroupWaiting> Decode(std::span<const std::byte> body);
};

}  // namespace ffrecord::client
