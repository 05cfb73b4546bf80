#include "libffrecord/format/checkpoint_segment.h"

#include <algorithm>

#include "libffrecord/base/align.h"
#include "libffrecord/base/assert.h"
#include "libffrecord/base/cursor.h"

namespace ffrecord {
namespace {

constexpr std::array<std::byte, 8> kTrailerMagic{std::byte{0xE5}, std::byte{0x46}, std::byte{0x46},
                                                 std::byte{0x53}, std::byte{0x45}, std::byte{0x47},
                                                 std::byte{0x4D}, std::byte{0x54}};
constexpr std::uint64_t kTagBlock = 8;
constexpr std::uint64_t kTagTrailer = 9;

std::uint64_t Tagged(std::uint64_t tag, std::uint64_t number) noexcept {
  return tag << 56 | number;
}

}  // namespace

std::array<std::byte, 16> TakeId(ByteReader& reader) noexcept {
  std::array<std::byte, 16> id{};
  const auto bytes = reader.TakeBytes(id.size());
  std::copy(bytes.begin(), bytes.end(), id.begin());
  return id;
}

SegmentLayout LayoutOfSegment(std::uint64_t payload_size_bytes) noexcept {
  FFR_ASSERT(payload_size_bytes <= kSegmentPayloadMax);
  FFR_ASSERT(payload_size_bytes % kSegmentAlignment == 0);
  SegmentLayout layout{};
  layout.payload_size_bytes = payload_size_bytes;
  layout.block_count = (payload_size_bytes + kSegmentBlockSize - 1) / kSegmentBlockSize;
  layout.table_offset_bytes = payload_size_bytes;
  layout.table_size_bytes = layout.block_count * 8;
  layout.file_size_bytes = AlignUp(
      layout.table_offset_bytes + layout.table_size_bytes + kSegmentTrailerSize, kSegmentAlignment);
  layout.trailer_offset_bytes = layout.file_size_bytes - kSegmentTrailerSize;
  return layout;
}

std::uint64_t SegmentBlockCheck(const SegmentId& id, std::uint64_t offset_bytes,
                                std::span<const std::byte> block) noexcept {
  return Xxh3(block, PlaceSeed(id, Tagged(kTagBlock, offset_bytes)));
}

std::vector<std::byte> EncodeSegmentEnd(const SegmentId& id, const SegmentLayout& layout,
                                        std::span<const std::uint64_t> block_checks) {
  FFR_ASSERT(block_checks.size() == layout.block_count);
  ByteWriter writer;
  for (const std::uint64_t check : block_checks) writer.Put(check);
  const Digest128 digest = SegmentTableDigest(writer.bytes());
  const std::vector<std::byte> padding(layout.trailer_offset_bytes - layout.table_offset_bytes -
                                       layout.table_size_bytes);
  writer.PutBytes(padding);
  writer.PutBytes(kTrailerMagic);
  writer.PutBytes(id);
  writer.Put(layout.payload_size_bytes);
  writer.PutBytes(digest);
  writer.Put(layout.file_size_bytes);
  writer.Put(Xxh3(writer.bytes().last(kSegmentTrailerSize - 8),
                  PlaceSeed(id, Tagged(kTagTrailer, layout.trailer_offset_bytes))));
  return std::move(writer).Take();
}

Digest128 SegmentTableDigest(std::span<const std::byte> table) noexcept {
  return Xxh3Digest(table);
}

}  // namespace ffrecord
