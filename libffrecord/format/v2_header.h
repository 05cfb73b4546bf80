#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/format/place.h"

namespace ffrecord {

// The first 128 bytes of a version 2 file. format.md, "Header".
struct V2Header {
  static constexpr std::size_t kEncodedSizeBytes = 128;
  static constexpr std::size_t kMagicSizeBytes = 12;
  static constexpr std::uint16_t kMajorVersion = 2;
  static constexpr std::uint32_t kPagesPerSegmentDefault = 256;
  static constexpr std::uint32_t kPagesPerSegmentMax = 65'536;

  // Bits of required_features.
  static constexpr std::uint64_t kZstd = 1;        // Records may be zstd frames.
  static constexpr std::uint64_t kSchema = 2;      // There is a schema section.
  static constexpr std::uint64_t kDictionary = 4;  // Frames may need one; requires kZstd.
  static constexpr std::uint64_t kKnownRequired = kZstd | kSchema | kDictionary;
  // Bits of append_features.
  static constexpr std::uint64_t kKeys = 1;          // Records may have keys.
  static constexpr std::uint64_t kColumnCopies = 2;  // There are column copies.
  static constexpr std::uint64_t kKnownAppend = kKeys | kColumnCopies;

  std::uint16_t minor_version = 0;
  std::uint64_t required_features = 0;
  std::uint64_t append_features = 0;
  std::uint64_t optional_features = 0;
  FileId file_id{};
  std::uint32_t alignment_bytes = 1;
  std::uint32_t pages_per_segment = kPagesPerSegmentDefault;

  bool operator==(const V2Header&) const = default;
};

// True if `bytes` begins with the magic of a version 2 file, or of what comes after it.
bool HasV2Magic(std::span<const std::byte> bytes) noexcept;

// Whether the first bytes of a file, 12 of them or more, are those of some other kind of file, and
// not of a damaged record file of either version: no version 1 file has so many records as they
// would say, and they are nothing like the magic. A wrong bit does not make them so.
bool BeginsLikeAnotherKind(std::span<const std::byte> bytes) noexcept;

// Fails with kCorruption if `bytes` is short or a check fails, with kInvalidArgument if the file
// needs a newer library: a newer major version or an unknown required feature.
Result<V2Header> DecodeV2Header(std::span<const std::byte> bytes);

void EncodeV2Header(const V2Header& header,
                    std::span<std::byte, V2Header::kEncodedSizeBytes> encoded);

}  // namespace ffrecord
