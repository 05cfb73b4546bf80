#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/place.h"

namespace ffrecord {

inline constexpr std::size_t kKeySizeBytesMax = 65'535;
inline constexpr std::uint64_t kKeyPageSizeBytes = 4096;
inline constexpr std::uint64_t kKeyEntriesPerPage = 170;
inline constexpr std::size_t kKeyRunCountMax = 64;

std::uint64_t KeyHash(const FileId& id, std::span<const std::byte> key) noexcept;

// One key of one record, as a page of a run has it. format.md, "Keys".
struct KeyEntry {
  std::uint64_t hash = 0;
  std::uint64_t record_index : 48 = 0;
  std::uint64_t size_bytes : 16 = 0;
  std::uint64_t offset_bytes = 0;  // Offset of the key's bytes in the file; below 2^48.

  bool operator==(const KeyEntry&) const = default;
  // The order of a run.
  friend bool operator<(const KeyEntry& a, const KeyEntry& b) noexcept {
    return a.hash != b.hash ? a.hash < b.hash : a.record_index < b.record_index;
  }
};
static_assert(sizeof(KeyEntry) == 24);

// Checks the page at `offset_bytes` of the file `id`, which must hold `entry_count` entries. Fails
// with kCorruption. Requires page.size() == kKeyPageSizeBytes.
Result<void> CheckKeyPage(std::span<const std::byte> page, const FileId& id,
                          std::uint64_t offset_bytes, std::uint64_t entry_count);

// Requires slot < kKeyEntriesPerPage and a page of kKeyPageSizeBytes.
KeyEntry LoadKeyEntry(std::span<const std::byte> page, std::uint64_t slot) noexcept;
void StoreKeyEntry(const KeyEntry& entry, std::uint64_t slot, std::span<std::byte> page) noexcept;

// Completes a page of which `entry_count` entries are stored and the rest is zero.
void SealKeyPage(const FileId& id, std::uint64_t offset_bytes, std::uint64_t entry_count,
                 std::span<std::byte> page) noexcept;

// One entry of the key directory: entries in order, in pages that all but the last are full.
struct KeyRun {
  std::uint64_t offset_bytes = 0;
  std::uint64_t entry_count = 0;

  std::uint64_t page_count() const noexcept {
    return entry_count / kKeyEntriesPerPage + (entry_count % kKeyEntriesPerPage != 0);
  }
  std::uint64_t size_bytes() const noexcept { return page_count() * kKeyPageSizeBytes; }
  // Requires page < page_count().
  std::uint64_t entries_in_page(std::uint64_t page) const noexcept {
    const std::uint64_t left = entry_count - page * kKeyEntriesPerPage;
    return left < kKeyEntriesPerPage ? left : kKeyEntriesPerPage;
  }
  bool operator==(const KeyRun&) const = default;
};

// Fails with kCorruption; afterwards there are 1 to kKeyRunCountMax runs, none empty, each whole
// pages between header and `end_bytes`, at a multiple of the page size.
Result<std::vector<KeyRun>> DecodeKeyDirectory(std::span<const std::byte> bytes,
                                               std::uint64_t end_bytes);
std::vector<std::byte> EncodeKeyDirectory(std::span<const KeyRun> runs);

// Keys of consecutive records, as they stand between the records.
struct V2KeyBlockHeader {
  static constexpr std::size_t kEncodedSizeBytes = 32;
  static constexpr std::size_t kContentsSizeBytesMax = std::size_t{1} << 20;
  // Size of the head before each key in the contents: index and size.
  static constexpr std::size_t kKeyHeadBytes = 8;

  std::uint64_t check = 0;  // Checksum of the contents.
  std::uint32_t key_count = 0;
  std::uint32_t contents_size_bytes = 0;

  bool operator==(const V2KeyBlockHeader&) const = default;
};

// Fails with kCorruption if `bytes` is short or is not the header of a key block of file `id` at
// `header_offset_bytes`.
Result<V2KeyBlockHeader> DecodeV2KeyBlockHeader(std::span<const std::byte> bytes, const FileId& id,
                                                std::uint64_t header_offset_bytes);
// The header of these contents.
std::array<std::byte, V2KeyBlockHeader::kEncodedSizeBytes> EncodeV2KeyBlockHeader(
    std::span<const std::byte> contents, std::uint32_t key_count, const FileId& id,
    std::uint64_t header_offset_bytes);

// One key of a block; borrows the contents.
struct BlockKey {
  std::uint64_t record_index = 0;
  std::span<const std::byte> key;
};

// All keys of a block, in order. Fails with kCorruption if the contents do not match the header, or
// are not what its count says.
Result<std::vector<BlockKey>> DecodeKeyBlock(const V2KeyBlockHeader& header,
                                             std::span<const std::byte> contents, const FileId& id,
                                             std::uint64_t header_offset_bytes);

// Appends one key to the contents of a block. Requires 1 <= key.size() <= kKeySizeBytesMax.
void AppendBlockKey(std::uint64_t record_index, std::span<const std::byte> key,
                    std::vector<std::byte>& contents);

}  // namespace ffrecord
