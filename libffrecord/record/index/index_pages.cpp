#include "libffrecord/record/index/index_pages.h"

#include <string>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/io/page_cache.h"

namespace ffrecord {

IndexPages::IndexPages(const File& file)
    : file_(file),
      segment_shift_(std::has_single_bit(file.geometry.pages_per_segment)
                         ? std::countr_zero(file.geometry.pages_per_segment)
                         : -1),
      segments_(file.geometry.segment_count()),
      checked_(file.geometry.page_count() / 64 + 1) {}

Result<const std::byte*> IndexPages::Entry(std::uint64_t index) const {
  const std::uint64_t page_number = index / kIndexEntriesPerPage;
  const std::uint64_t segment_number = SegmentOf(page_number);
  const std::byte* segment = segments_[segment_number].load(std::memory_order_acquire);
  if (segment == nullptr) segment = FFR_TRY(FetchSegment(segment_number));
  const std::byte* page = segment + InSegment(page_number, segment_number);
  auto checked = CheckIndexPage(std::span(page, kIndexPageSizeBytes), file_.id, page_number,
                                file_.geometry.entries_in_page(page_number));
  if (!checked) return std::move(checked).error();
  checked_[page_number / 64].fetch_or(std::uint64_t{1} << (page_number % 64),
                                      std::memory_order_release);
  return IndexEntryIn(page, index % kIndexEntriesPerPage);
}

void IndexPages::PrefetchPage(std::uint64_t index) const noexcept {
  const std::uint64_t page = index / kIndexEntriesPerPage;
  const std::uint64_t segment_number = SegmentOf(page);
  const std::byte* segment = segments_[segment_number].load(std::memory_order_acquire);
  if (segment == nullptr) {
    // The first random batch of a large file touches nearly as many segments as it has records.
    const auto fetched = FetchSegment(segment_number);
    if (!fetched) return;  // Entry() will report why.
    segment = fetched.value();
  }
  WillNeed({segment + InSegment(page, segment_number), kIndexPageSizeBytes});
}

Result<const std::byte*> IndexPages::FetchSegment(std::uint64_t segment_number) const {
  const auto offset_bytes = LoadLittleEndian<std::uint64_t>(file_.directory, 8 * segment_number);
  const std::uint64_t size_bytes = file_.geometry.segment_size_bytes(segment_number);
  if (offset_bytes % kIndexPageSizeBytes != 0 || offset_bytes < V2Header::kEncodedSizeBytes ||
      offset_bytes > file_.end_bytes || size_bytes > file_.end_bytes - offset_bytes)
    return Error{ErrorCode::kCorruption, "index segment " + std::to_string(segment_number) +
                                             " does not lie between header and footer"};
  auto mapped = FFR_TRY(file_.source.MapIndex(file_.number, offset_bytes, size_bytes));
  FFR_ASSERT(mapped.bytes.size() == size_bytes);
  // If two threads fetch one segment, both copies are kept, and either will do.
  owners_.Keep(std::move(mapped.owner));
  segments_[segment_number].store(mapped.bytes.data(), std::memory_order_release);
  return mapped.bytes.data();
}

}  // namespace ffrecord
