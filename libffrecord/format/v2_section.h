#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/format/place.h"

namespace ffrecord {

// One entry of the footer's table of sections. format.md, "Sections".
struct V2Section {
  static constexpr std::uint32_t kSegmentDirectory = 1;
  static constexpr std::uint32_t kSchema = 2;
  static constexpr std::uint32_t kDictionary = 3;
  static constexpr std::uint32_t kKeyDirectory = 4;
  static constexpr std::uint32_t kMetadata = 5;
  static constexpr std::uint32_t kColumnCopy = 6;
  static constexpr std::uint32_t kFacts = 7;

  static constexpr std::uint64_t kSchemaSizeBytesMax = std::uint64_t{1} << 20;
  static constexpr std::uint64_t kDictionarySizeBytesMax = std::uint64_t{16} << 20;
  static constexpr std::uint64_t kMetadataSizeBytesMax = std::uint64_t{16} << 20;
  static constexpr std::uint64_t kFactsSizeBytesMax = std::uint64_t{2} << 20;
  static constexpr std::uint64_t kKeyDirectorySizeBytesMax = std::uint64_t{64} * 16;

  std::uint32_t type = 0;
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t check = 0;

  bool operator==(const V2Section&) const = default;
};

// Checked before a section is fetched, for a forged size costs as much as a true one. Fails with
// kCorruption if it is larger than its type may be. The segment directory, column copies and types
// that are not known have no limit of their own.
Result<void> CheckSectionSize(const V2Section& section);

std::uint64_t SectionCheck(std::span<const std::byte> bytes, const FileId& id,
                           std::uint64_t offset_bytes);

// The 32 bytes before each section but the segment directory, by which a scan finds it.
struct V2SectionHeader {
  static constexpr std::size_t kEncodedSizeBytes = 32;

  std::uint64_t check = 0;  // Checksum of the section, as in the footer.
  std::uint32_t type = 0;
  std::uint64_t size_bytes = 0;

  bool operator==(const V2SectionHeader&) const = default;
};

// Fails with kCorruption if `bytes` is short or is not a section header of file `id` at
// `header_offset_bytes`.
Result<V2SectionHeader> DecodeV2SectionHeader(std::span<const std::byte> bytes, const FileId& id,
                                              std::uint64_t header_offset_bytes);

void EncodeV2SectionHeader(const V2SectionHeader& header, const FileId& id,
                           std::uint64_t header_offset_bytes,
                           std::span<std::byte, V2SectionHeader::kEncodedSizeBytes> encoded);

}  // namespace ffrecord
