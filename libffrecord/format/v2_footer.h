#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/checksum.h"
#include "libffrecord/format/place.h"
#include "libffrecord/format/v2_section.h"

namespace ffrecord {

// The end of each commit, but for the tail. format.md, "Footer and tail".
struct V2Footer {
  static constexpr std::uint64_t kFixedSizeBytes = 64;
  static constexpr std::uint64_t kSectionSizeBytes = 32;
  static constexpr std::uint64_t kSectionCountMax = 4096;
  static constexpr std::uint64_t kEncodedSizeBytesMax =
      kFixedSizeBytes + kSectionCountMax * kSectionSizeBytes;
  static constexpr std::uint64_t kAlignmentBytes = 4096;
  static constexpr std::uint64_t kDictionaryCountMax = 64;

  std::uint64_t record_count = 0;
  std::uint64_t raw_size_bytes = 0;
  std::uint64_t stored_size_bytes = 0;
  Digest128 fingerprint{};
  std::uint64_t previous_commit_bytes = 0;  // File size at the commit before; 0 in the first.
  std::vector<V2Section> sections;

  // The section of that type, or null.
  const V2Section* Find(std::uint32_t type) const noexcept;
};

// `bytes` is exactly the footer, at `offset_bytes`; its check, kept in the tail, holds already.
// Fails with kCorruption; afterwards every section lies between header and footer, types that
// occur once do, there are at most kDictionaryCountMax dictionaries, and the commit before ends
// between header and footer.
Result<V2Footer> DecodeV2Footer(std::span<const std::byte> bytes, std::uint64_t offset_bytes);
std::vector<std::byte> EncodeV2Footer(const V2Footer& footer);

std::uint64_t FooterCheck(std::span<const std::byte> bytes, const FileId& id,
                          std::uint64_t offset_bytes);

// The last 64 bytes of a commit.
struct V2Tail {
  static constexpr std::uint64_t kEncodedSizeBytes = 64;

  std::uint64_t footer_offset_bytes = 0;
  std::uint64_t footer_size_bytes = 0;
  std::uint64_t footer_check = 0;

  bool operator==(const V2Tail&) const = default;
};

// The id that a tail states; none unless these bytes begin like a tail.
std::optional<FileId> FileIdOfV2Tail(
    std::span<const std::byte, V2Tail::kEncodedSizeBytes> bytes) noexcept;

// `bytes` are the last of a file of `file_size_bytes` whose header says `id`. Fails with
// kCorruption; afterwards the footer lies between header and tail.
Result<V2Tail> DecodeV2Tail(std::span<const std::byte, V2Tail::kEncodedSizeBytes> bytes,
                            const FileId& id, std::uint64_t file_size_bytes);
void EncodeV2Tail(const V2Tail& tail, const FileId& id, std::uint64_t file_size_bytes,
                  std::span<std::byte, V2Tail::kEncodedSizeBytes> encoded);

// Finds the rest of the end of a damaged commit that began at `begin_bytes`, where the one before
// it ends. Both are true of a whole end, of one in which a few bits or a whole field changed, and
// hardly ever of anything else: another file inside of a record is none.
//
// `bytes` end at `end_bytes` of the file `id`.
bool LooksLikeV2Tail(std::span<const std::byte, V2Tail::kEncodedSizeBytes> bytes, const FileId& id,
                     std::uint64_t begin_bytes, std::uint64_t end_bytes);
// `bytes` begin at `offset_bytes`. False if they are fewer than V2Footer::kFixedSizeBytes.
bool LooksLikeV2Footer(std::span<const std::byte> bytes, std::uint64_t begin_bytes,
                       std::uint64_t offset_bytes);

}  // namespace ffrecord
