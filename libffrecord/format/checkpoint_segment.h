#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/cursor.h"

namespace ffrecord {

// A segment file: tensor bytes, then a checksum of each block of them, then a trailer.
// format.md, "Segment". All pure functions.
using SegmentId = std::array<std::byte, 16>;

inline constexpr std::uint64_t kSegmentBlockSize = 64 << 10;
inline constexpr std::uint64_t kSegmentAlignment = 4096;     // For the payload and large tensors.
inline constexpr std::uint64_t kSegmentSmallAlignment = 64;  // For tensors below 4 KiB.
inline constexpr std::uint64_t kSegmentTrailerSize = 64;
// So that no sum of offsets and sizes can overflow.
inline constexpr std::uint64_t kSegmentPayloadMax = std::uint64_t{1} << 48;

// Takes 16 bytes: an id or a digest. Zeros if they are not there.
std::array<std::byte, 16> TakeId(ByteReader& reader) noexcept;

// Where the parts of a segment with a payload of that size lie, in bytes. The payload is padded to
// kSegmentAlignment; so is the file, whose last bytes are the trailer.
struct SegmentLayout {
  std::uint64_t payload_size_bytes;
  std::uint64_t block_count;
  std::uint64_t table_offset_bytes;  // The padded payload's size.
  std::uint64_t table_size_bytes;
  std::uint64_t trailer_offset_bytes;
  std::uint64_t file_size_bytes;
};

// Requires payload_size_bytes <= kSegmentPayloadMax and a multiple of kSegmentAlignment.
SegmentLayout LayoutOfSegment(std::uint64_t payload_size_bytes) noexcept;

// The checksum of the block at `offset_bytes`, a multiple of kSegmentBlockSize, in segment `id`.
std::uint64_t SegmentBlockCheck(const SegmentId& id, std::uint64_t offset_bytes,
                                std::span<const std::byte> block) noexcept;

// Everything after the payload: the table, zeros, the trailer. Requires block_checks.size() to be
// that of the layout.
std::vector<std::byte> EncodeSegmentEnd(const SegmentId& id, const SegmentLayout& layout,
                                        std::span<const std::uint64_t> block_checks);

// XXH3-128 of the table as it is stored: what a part manifest holds.
Digest128 SegmentTableDigest(std::span<const std::byte> table) noexcept;

}  // namespace ffrecord
