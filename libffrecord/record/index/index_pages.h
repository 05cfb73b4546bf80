#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/base/prefetch.h"
#include "libffrecord/format/v2_header.h"
#include "libffrecord/format/v2_index.h"
#include "libffrecord/record/index/index_part.h"
#include "libffrecord/record/index/kept_mappings.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// The index pages of one open version 2 file: fetched and checked when they are first touched, and
// looked up at once from then on. Every record that is read passes through here, hence the inline
// functions. Thread-safe; borrows the RangeReader and the directory of segments.
class IndexPages {
 public:
  struct File {
    const RangeReader& source;
    std::uint32_t number;
    const FileId& id;
    IndexGeometry geometry;
    std::span<const std::byte> directory;  // The offset of each segment, u64 each.
    std::uint64_t end_bytes;               // End of records and index: where the footer begins.
    bool may_be_compressed;
    bool is_formed = false;  // Records are made of bytes of another format.
  };
  explicit IndexPages(const File& file);

  // False if there was no memory to keep track of the pages: then call nothing else.
  explicit operator bool() const noexcept { return segments_ && checked_; }

  // The entry of record `index` if its page was checked before, else null. Nearly every look-up
  // succeeds here. Requires index < record_count.
  const std::byte* CheckedEntry(std::uint64_t index) const noexcept {
    const std::uint64_t page = index / kIndexEntriesPerPage;
    const std::uint64_t word = checked_[page / 64].load(std::memory_order_acquire);
    if ((word >> (page % 64) & 1) == 0) return nullptr;
    const std::uint64_t segment = SegmentOf(page);
    const std::byte* begin = segments_[segment].load(std::memory_order_acquire);
    return IndexEntryIn(begin + InSegment(page, segment), index % kIndexEntriesPerPage);
  }

  // The same, fetching and checking the page if necessary. Fails with kCorruption, or as the
  // RangeReader.
  Result<const std::byte*> Entry(std::uint64_t index) const;

  // The segment that Entry(index) would read; none if that would read nothing.
  std::optional<IndexPart> Lacking(std::uint64_t index) const;
  // Takes the bytes of such a segment, which were read elsewhere. Its pages are checked when they
  // are first touched, as any.
  void Take(const IndexPart& part, std::shared_ptr<const void> owner,
            std::span<const std::byte> bytes) const;

  // Brings an entry into the processor's cache, without waiting.
  static void PrefetchEntry(const std::byte* entry) noexcept {
    Prefetch(entry);
    Prefetch(entry + kIndexEntrySizeBytes - 1);  // One in three lies across two lines.
  }
  // Asks the kernel for the page of record `index`; waits only where a segment has to be fetched
  // over a network, as Entry would.
  void PrefetchPage(std::uint64_t index) const noexcept;

  // Whether an entry is plausible: its bytes lie inside the file, and the sizes agree.
  bool IsSane(const RecordLocation& location) const noexcept {
    constexpr std::uint64_t kPayloadOffsetMin =
        V2Header::kEncodedSizeBytes + V2RecordHeader::kEncodedSizeBytes;
    return location.offset_bytes >= kPayloadOffsetMin && location.offset_bytes <= file_.end_bytes &&
           location.stored_size_bytes <= file_.end_bytes - location.offset_bytes &&
           (SizesAreSane(location.stored_size_bytes, location.raw_size_bytes,
                         file_.may_be_compressed) ||
            (file_.is_formed &&
             FormedSizesAreSane(location.stored_size_bytes, location.raw_size_bytes)));
  }

 private:
  // A shift where possible: most writers make segments of 2^n pages.
  std::uint64_t SegmentOf(std::uint64_t page) const noexcept {
    return segment_shift_ >= 0 ? page >> segment_shift_ : page / file_.geometry.pages_per_segment;
  }
  std::uint64_t InSegment(std::uint64_t page, std::uint64_t segment) const noexcept {
    return (page - segment * file_.geometry.pages_per_segment) * kIndexPageSizeBytes;
  }
  std::uint64_t OffsetOf(std::uint64_t segment) const;
  bool LiesInside(std::uint64_t segment) const;
  Result<const std::byte*> FetchSegment(std::uint64_t segment) const;
  Result<const std::byte*> FetchFromCopies(std::uint64_t segment) const;
  Result<void> CheckPage(const std::byte* page, std::uint64_t page_number) const;

  const File file_;
  const int segment_shift_;
  ZeroedAtomics<const std::byte*> segments_;  // Null until fetched.
  ZeroedAtomics<std::uint64_t> checked_;      // One bit for each page.
  mutable KeptOwners owners_;
};

}  // namespace ffrecord
