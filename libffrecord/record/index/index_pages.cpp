#include "libffrecord/record/index/index_pages.h"

#include <string>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/io/page_cache.h"
#include "libffrecord/source/file_copies.h"

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
  if (auto checked = CheckPage(page, page_number); !checked) {
    auto other = FetchFromCopies(segment_number);
    if (!other)
      return other.error().code == ErrorCode::kCorruption ? checked.error() : other.error();
    page = other.value() + InSegment(page_number, segment_number);
  }
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

Result<void> IndexPages::CheckPage(const std::byte* page, std::uint64_t page_number) const {
  return CheckIndexPage(std::span(page, kIndexPageSizeBytes), file_.id, page_number,
                        file_.geometry.entries_in_page(page_number));
}

std::uint64_t IndexPages::OffsetOf(std::uint64_t segment_number) const {
  return LoadLittleEndian<std::uint64_t>(file_.directory, 8 * segment_number);
}

// The segment of another copy of the file, whole: pages that were checked before are looked up in
// it from now on.
Result<const std::byte*> IndexPages::FetchFromCopies(std::uint64_t segment_number) const {
  const std::uint64_t first_page = segment_number * file_.geometry.pages_per_segment;
  const auto is_right = [&](std::span<const std::byte> segment) {
    for (std::uint64_t at = 0; at < segment.size(); at += kIndexPageSizeBytes)
      if (!CheckPage(segment.data() + at, first_page + at / kIndexPageSizeBytes)) return false;
    return true;
  };
  auto copy =
      FFR_TRY(FileCopies::ReadRight(file_.source, file_.number, OffsetOf(segment_number),
                                    file_.geometry.segment_size_bytes(segment_number), is_right));
  const std::byte* const bytes = copy->data();
  owners_.Keep(std::move(copy));
  segments_[segment_number].store(bytes, std::memory_order_release);
  return bytes;
}

bool IndexPages::LiesInside(std::uint64_t segment_number) const {
  const std::uint64_t offset_bytes = OffsetOf(segment_number);
  return offset_bytes % kIndexPageSizeBytes == 0 && offset_bytes >= V2Header::kEncodedSizeBytes &&
         offset_bytes <= file_.end_bytes &&
         file_.geometry.segment_size_bytes(segment_number) <= file_.end_bytes - offset_bytes;
}

std::optional<IndexPart> IndexPages::Lacking(std::uint64_t index) const {
  const std::uint64_t segment = SegmentOf(index / kIndexEntriesPerPage);
  if (segments_[segment].load(std::memory_order_acquire) != nullptr) return {};
  if (!LiesInside(segment)) return {};  // Entry() says so.
  return IndexPart{
      file_.number, segment, {{OffsetOf(segment), file_.geometry.segment_size_bytes(segment)}}};
}

void IndexPages::Take(const IndexPart& part, std::shared_ptr<const void> owner,
                      std::span<const std::byte> bytes) const {
  FFR_ASSERT(bytes.size() == file_.geometry.segment_size_bytes(part.number));
  const std::byte* none = nullptr;
  // Another thread may have fetched it meanwhile. `owner` keeps the bytes until they are kept.
  if (segments_[part.number].compare_exchange_strong(none, bytes.data(), std::memory_order_acq_rel))
    owners_.Keep(std::move(owner));
}

Result<const std::byte*> IndexPages::FetchSegment(std::uint64_t segment_number) const {
  const std::uint64_t offset_bytes = OffsetOf(segment_number);
  const std::uint64_t size_bytes = file_.geometry.segment_size_bytes(segment_number);
  if (!LiesInside(segment_number))
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
