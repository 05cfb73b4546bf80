#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/format/place.h"

namespace ffrecord {

inline constexpr std::uint64_t kRecordCountMax = std::uint64_t{1} << 48;
// Bounds for a record, raw or stored, and for the offset of a payload: sizes and offsets lie below
// these.
inline constexpr std::uint64_t kRecordSizeBytesEnd = std::uint64_t{1} << 40;
inline constexpr std::uint64_t kPayloadOffsetBytesEnd = std::uint64_t{1} << 48;
// No zstd frame is compressed by more: a block of 128 KiB takes at least 4 bytes.
inline constexpr std::uint64_t kCompressionRatioMax = 65'536;

// Where the bytes of one record lie in its file. Stored size = raw size: the bytes are the record;
// else the record is made of them: they are one zstd frame, or with an index in place a sample of
// another format (record_form.h).
struct RecordLocation {
  std::uint64_t check = 0;  // v2: XXH3-64, seeded with the place. v1: CRC-32.
  std::uint64_t offset_bytes = 0;
  std::uint64_t stored_size_bytes = 0;
  std::uint64_t raw_size_bytes = 0;

  bool compressed() const noexcept { return stored_size_bytes != raw_size_bytes; }
  bool operator==(const RecordLocation&) const = default;
};

// Whether sizes can be those of a record: stored <= raw, and no frame is compressed beyond reason.
constexpr bool SizesAreSane(std::uint64_t stored_size_bytes, std::uint64_t raw_size_bytes,
                            bool may_be_compressed) noexcept {
  if (stored_size_bytes == raw_size_bytes) return true;
  return may_be_compressed && stored_size_bytes < raw_size_bytes &&
         raw_size_bytes / kCompressionRatioMax < stored_size_bytes;
}

// The same for records that are made of samples of another format (record_form.h): all that is not
// in a sample is a size, a number or a mark for each of at most 1,024 columns.
constexpr bool FormedSizesAreSane(std::uint64_t stored_size_bytes,
                                  std::uint64_t raw_size_bytes) noexcept {
  constexpr std::uint64_t kMadeBytesMax = std::uint64_t{1024} * 16;
  return stored_size_bytes > 0 && raw_size_bytes <= stored_size_bytes + kMadeBytesMax;
}

// The 32 bytes before each payload, from which a scan rebuilds the index. format.md, "Record".
struct V2RecordHeader {
  static constexpr std::size_t kEncodedSizeBytes = 32;

  std::uint64_t check = 0;  // Checksum of the stored bytes.
  std::uint64_t index = 0;
  std::uint64_t stored_size_bytes = 0;
  std::uint64_t raw_size_bytes = 0;

  bool operator==(const V2RecordHeader&) const = default;
};

// Fails with kCorruption if `bytes` is short or is not the header of file `id` at
// `header_offset_bytes`.
Result<V2RecordHeader> DecodeV2RecordHeader(std::span<const std::byte> bytes, const FileId& id,
                                            std::uint64_t header_offset_bytes);

void EncodeV2RecordHeader(const V2RecordHeader& header, const FileId& id,
                          std::uint64_t header_offset_bytes,
                          std::span<std::byte, V2RecordHeader::kEncodedSizeBytes> encoded);

// Where the payload begins whose header may begin at `end_bytes`: the smallest multiple of
// `alignment_bytes` (a power of two) that leaves room for the header.
constexpr std::uint64_t PayloadOffsetAfter(std::uint64_t end_bytes,
                                           std::uint32_t alignment_bytes) noexcept {
  const std::uint64_t mask = std::uint64_t{alignment_bytes} - 1;
  return (end_bytes + V2RecordHeader::kEncodedSizeBytes + mask) & ~mask;
}

}  // namespace ffrecord
