#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/base/checksum.h"

namespace ffrecord {

// The first 12 bytes of a version 1 file. format.md, "Version 1".
struct V1Header {
  static constexpr std::size_t kEncodedSizeBytes = 12;
  static constexpr std::uint64_t kTableEntrySizeBytes = 12;  // CRC-32 and offset of one record.

  std::uint32_t metadata_crc32 = 0;  // For record_count and both tables; 0: from before 2021.
  std::uint64_t record_count = 0;    // At byte 4, hence unaligned: decoded field by field.

  // Size of header and tables; also the offset of record 0.
  std::uint64_t metadata_size_bytes() const noexcept {
    return kEncodedSizeBytes + kTableEntrySizeBytes * record_count;
  }
};

// Makes the checks that need no more than the header: the file is long enough for it and for its
// tables, and a file without records has nothing else. Afterwards sizes and offsets computed from
// record_count cannot overflow. Fails with kCorruption.
Result<V1Header> DecodeV1Header(std::span<const std::byte> bytes, std::uint64_t file_size_bytes);

// Checks `metadata`, bytes [0, metadata_size_bytes()) of the file, in the order that the page
// gives: metadata CRC, first offset, order of the offsets, last offset. Fails with kCorruption.
Result<void> CheckV1Tables(const V1Header& header, std::span<const std::byte> metadata,
                           std::uint64_t file_size_bytes);

// One record as the tables state it; nothing is checked. Requires index < record_count.
struct V1Entry {
  std::uint32_t crc32;
  std::uint64_t begin_bytes;
  std::uint64_t end_bytes;
};
V1Entry LoadV1Entry(const V1Header& header, std::span<const std::byte> metadata,
                    std::uint64_t index, std::uint64_t file_size_bytes) noexcept;

// Fingerprint of a version 1 file: of its metadata and its size.
Digest128 V1Fingerprint(std::span<const std::byte> metadata, std::uint64_t file_size_bytes);

// CRC-32 of A || B from that of A, that of B, and B's size.
std::uint32_t CombineCrc32(std::uint32_t first, std::uint32_t second,
                           std::uint64_t second_size_bytes) noexcept;

}  // namespace ffrecord
