#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/place.h"

namespace ffrecord {

// The widest column that may be copied: readers do not read wider ones without the rest.
inline constexpr std::uint64_t kCopiedColumnBytesMax = 64;

// The values of one column of the records of one index segment, back to back.
struct ColumnChunk {
  std::uint64_t offset_bytes = 0;
  std::uint64_t check = 0;

  bool operator==(const ColumnChunk&) const = default;
};

// A column copy section: where the chunks are. format.md, "Column copy".
struct ColumnCopy {
  std::uint32_t column = 0;
  std::vector<ColumnChunk> chunks;  // One for each index segment.

  bool operator==(const ColumnCopy&) const = default;
};

// Size of the section for that many index segments.
constexpr std::uint64_t ColumnCopySizeBytes(std::uint64_t segment_count) noexcept {
  return 8 + 16 * segment_count;
}

// Fails with kCorruption unless the section is one of `segment_count` chunks.
Result<ColumnCopy> DecodeColumnCopy(std::span<const std::byte> bytes, std::uint64_t segment_count);
std::vector<std::byte> EncodeColumnCopy(const ColumnCopy& copy);

std::uint64_t ColumnChunkCheck(std::span<const std::byte> values, const FileId& id,
                               std::uint64_t offset_bytes);

}  // namespace ffrecord
