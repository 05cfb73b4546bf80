#include "client/collective/group_messages.h"

#include "client/collective/reduce.h"
#include "client/collective/wire.h"
#include "libffrecord/net/protocol/fields.h"

namespace ffrecord::client {

using net::DecodeFields;
using net::EncodeFields;
using net::MalformedBody;

std::vector<std::byte> GroupHello::Encode() const {
  return EncodeFields(secret, rank, world_size, chunk_size_bytes, static_cast<std::uint16_t>(wire),
                      static_cast<std::uint16_t>(transport), streams, stream);
}

Result<GroupHello> GroupHello::Decode(std::span<const std::byte> body) {
  GroupHello hello;
  std::uint16_t wire = 0;
  std::uint16_t transport = 0;
  if (!DecodeFields(body, hello.secret, hello.rank, hello.world_size, hello.chunk_size_bytes, wire,
                    transport, hello.streams, hello.stream) ||
      wire > static_cast<std::uint16_t>(WireType::kF16) ||
      transport > static_cast<std::uint16_t>(GroupTransport::kRdma) ||
      hello.stream >= hello.streams)
    return MalformedBody("HELLO of a collective");
  hello.wire = static_cast<WireType>(wire);
  hello.transport = static_cast<GroupTransport>(transport);
  return hello;
}

std::vector<std::byte> GroupRing::Encode() const {
  return EncodeFields(memory.address, size_bytes, memory.key);
}

Result<GroupRing> GroupRing::Decode(std::span<const std::byte> body) {
  GroupRing ring;
  if (!DecodeFields(body, ring.memory.address, ring.size_bytes, ring.memory.key) ||
      ring.memory.address + ring.size_bytes < ring.memory.address)
    return MalformedBody("the reply to HELLO of a collective");
  return ring;
}

std::vector<std::byte> CollectiveData::Encode() const {
  return EncodeFields(sequence, count, first, payload_check, step, type, op, collective, algorithm,
                      root, shift);
}

Result<CollectiveData> CollectiveData::Decode(std::span<const std::byte> body) {
  CollectiveData data;
  if (!DecodeFields(body, data.sequence, data.count, data.first, data.payload_check, data.step,
                    data.type, data.op, data.collective, data.algorithm, data.root, data.shift) ||
      data.shift < kWireShiftMin || data.shift > kWireShiftMax ||
      FindTraits(data.type) == nullptr || FindTraits(data.op) == nullptr ||
      !IsOffered(data.collective, data.algorithm))
    return MalformedBody("COLLECTIVE_DATA");
  return data;
}

std::vector<std::byte> CollectivePlaced::Encode() const {
  return EncodeFields(data.Encode(), offset_bytes, size_bytes);
}

Result<CollectivePlaced> CollectivePlaced::Decode(std::span<const std::byte> body) {
  constexpr std::size_t kHead = CollectiveData::kEncodedSizeBytes;
  if (body.size() < kHead) return MalformedBody("COLLECTIVE_PLACED");
  CollectivePlaced placed;
  placed.data = FFR_TRY(CollectiveData::Decode(body.first(kHead)));
  if (!DecodeFields(body.subspan(kHead), placed.offset_bytes, placed.size_bytes))
    return MalformedBody("COLLECTIVE_PLACED");
  return placed;
}

std::vector<std::byte> CollectiveTaken::Encode() const {
  return EncodeFields(first, pieces, waited_us);
}

Result<CollectiveTaken> CollectiveTaken::Decode(std::span<const std::byte> body) {
  CollectiveTaken taken;
  if (!DecodeFields(body, taken.first, taken.pieces, taken.waited_us))
    return MalformedBody("COLLECTIVE_TAKEN");
  return taken;
}

std::vector<std::byte> GroupWaiting::Encode() const {
  return EncodeFields(rank, is_absent, net::Zeros<3>());
}

Result<GroupWaiting> GroupWaiting::Decode(std::span<const std::byte> body) {
  GroupWaiting waiting;
  if (!DecodeFields(body, waiting.rank, waiting.is_absent, net::Zeros<3>()))
    return MalformedBody("PING of a collective");
  return waiting;
}

}  // namespace ffrecord::client
