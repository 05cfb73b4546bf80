#include "libffrecord/format/v2_index.h"

#include <string>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/endian.h"

namespace ffrecord {
namespace {

constexpr std::size_t kCheckedBegin = 8;

std::uint64_t PageCheck(std::span<const std::byte> page, const FileId& id,
                        std::uint64_t page_number) {
  return Xxh3(page.subspan(kCheckedBegin), SeedOf(id, PlaceTag::kIndexPage, page_number));
}

}  // namespace

Result<void> CheckIndexPage(std::span<const std::byte> page, const FileId& id,
                            std::uint64_t page_number, std::uint64_t entry_count) {
  FFR_ASSERT(page.size() == kIndexPageSizeBytes);
  const auto corrupt = [&](const char* found) {
    return Error{ErrorCode::kCorruption,
                 "index page " + std::to_string(page_number) + ": " + found};
  };
  if (LoadLittleEndian<std::uint64_t>(page, 0) != PageCheck(page, id, page_number))
    return corrupt("checksum does not match");
  if (LoadLittleEndian<std::uint32_t>(page, 8) != entry_count)
    return corrupt("count of entries does not match the footer's count of records");
  const auto unused = page.subspan(kIndexEntriesBegin + kIndexEntrySizeBytes * entry_count);
  if (LoadLittleEndian<std::uint32_t>(page, 12) != 0 ||
      std::any_of(unused.begin(), unused.end(), [](std::byte b) { return b != std::byte{}; }))
    return corrupt("reserved bytes are not zero");
  return {};
}

void StoreIndexEntry(const RecordLocation& location, std::uint64_t slot,
                     std::span<std::byte> page) noexcept {
  const std::size_t begin = kIndexEntriesBegin + kIndexEntrySizeBytes * slot;
  StoreLittleEndian(page, begin, location.check);
  StoreLittleEndian(page, begin + 8, location.offset_bytes, 6);
  StoreLittleEndian(page, begin + 14, location.stored_size_bytes, 5);
  StoreLittleEndian(page, begin + 19, location.raw_size_bytes, 5);
}

void SealIndexPage(const FileId& id, std::uint64_t page_number, std::uint64_t entry_count,
                   std::span<std::byte> page) noexcept {
  FFR_ASSERT(entry_count > 0 && entry_count <= kIndexEntriesPerPage);
  StoreLittleEndian(page, 8, static_cast<std::uint32_t>(entry_count));
  StoreLittleEndian(page, 0, PageCheck(page, id, page_number));
}

}  // namespace ffrecord
