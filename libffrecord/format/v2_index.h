#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/format/place.h"
#include "libffrecord/format/v2_record.h"

namespace ffrecord {

inline constexpr std::uint64_t kIndexPageSizeBytes = 4096;
inline constexpr std::uint64_t kIndexEntriesPerPage = 170;

// Which page holds which record, and which segment which page. format.md, "Index segment".
// Requires record_count <= kRecordCountMax and pages_per_segment > 0: nothing overflows then.
struct IndexGeometry {
  std::uint64_t record_count = 0;
  std::uint64_t pages_per_segment = 1;

  std::uint64_t page_count() const noexcept {
    return (record_count + kIndexEntriesPerPage - 1) / kIndexEntriesPerPage;
  }
  std::uint64_t segment_count() const noexcept {
    return (page_count() + pages_per_segment - 1) / pages_per_segment;
  }
  // Requires page < page_count().
  std::uint64_t entries_in_page(std::uint64_t page) const noexcept {
    return std::min(kIndexEntriesPerPage, record_count - page * kIndexEntriesPerPage);
  }
  // Requires segment < segment_count().
  std::uint64_t segment_size_bytes(std::uint64_t segment) const noexcept {
    return kIndexPageSizeBytes *
           std::min(pages_per_segment, page_count() - segment * pages_per_segment);
  }
};

// Checks the page `page_number` of the file `id`, which must hold `entry_count` entries. Fails
// with kCorruption. Requires page.size() == kIndexPageSizeBytes.
Result<void> CheckIndexPage(std::span<const std::byte> page, const FileId& id,
                            std::uint64_t page_number, std::uint64_t entry_count);

inline constexpr std::size_t kIndexEntriesBegin = 16;
inline constexpr std::size_t kIndexEntrySizeBytes = 24;
static_assert(kIndexEntriesBegin + kIndexEntrySizeBytes * kIndexEntriesPerPage ==
              kIndexPageSizeBytes);

// Where the entry lies in its page. Requires slot < kIndexEntriesPerPage.
constexpr const std::byte* IndexEntryIn(const std::byte* page, std::uint64_t slot) noexcept {
  return page + kIndexEntriesBegin + kIndexEntrySizeBytes * slot;
}

// Decodes the kIndexEntrySizeBytes at `entry`: three loads, for every record that is read is looked
// up here. The fields of 8, 6, 5 and 5 bytes lie back to back.
inline RecordLocation DecodeIndexEntry(const std::byte* entry) noexcept {
  const std::span bytes(entry, kIndexEntrySizeBytes);
  const auto check = LoadLittleEndian<std::uint64_t>(bytes, 0);
  const auto middle = LoadLittleEndian<std::uint64_t>(bytes, 8);
  const auto last = LoadLittleEndian<std::uint64_t>(bytes, 16);
  return {check, middle & ((std::uint64_t{1} << 48) - 1),
          middle >> 48 | (last & ((std::uint64_t{1} << 24) - 1)) << 16, last >> 24};
}

// Requires slot < kIndexEntriesPerPage and a page of kIndexPageSizeBytes.
void StoreIndexEntry(const RecordLocation& location, std::uint64_t slot,
                     std::span<std::byte> page) noexcept;

// Completes a page of which `entry_count` entries are stored and the rest is zero.
void SealIndexPage(const FileId& id, std::uint64_t page_number, std::uint64_t entry_count,
                   std::span<std::byte> page) noexcept;

}  // namespace ffrecord
