#include "libffrecord/record/write/uncommitted_end.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "libffrecord/base/align.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/format/v2_footer.h"
#include "libffrecord/format/v2_index.h"
#include "libffrecord/format/v2_keys.h"
#include "libffrecord/format/v2_record.h"
#include "libffrecord/format/v2_section.h"
#include "libffrecord/record/index/column_copies.h"
#include "libffrecord/record/index/v2_commit.h"
#include "libffrecord/record/write/magic_scan.h"

namespace ffrecord {
namespace {

constexpr std::uint64_t kBlockBytes = V2Footer::kAlignmentBytes;
static_assert(kBlockBytes == kIndexPageSizeBytes && kBlockBytes == kKeyPageSizeBytes);

constexpr std::array<Magic, 3> kMagics{
    {{0xe5, 'R', 'E', 'C'}, {0xe5, 'K', 'E', 'Y'}, {0xe5, 'S', 'E', 'C'}}};

class Examination {
 public:
  Examination(FileWindow& window, std::uint64_t file_size_bytes, const V2Header& header,
              const CommittedPart& committed)
      : window_(window),
        size_bytes_(file_size_bytes),
        header_(header),
        committed_(committed),
        begin_bytes_(std::max(committed.size_bytes,
                              file_size_bytes - std::min(file_size_bytes, kCommitSearchBytesMax))),
        record_count_(committed.record_count) {}

  Result<UncommittedEnd> Run() {
    std::string sign = FFR_TRY(FindFooterOrTail());
    FFR_TRY(FollowHeaders());
    const std::uint64_t footer_offset_max = FFR_TRY(FooterOffsetMax());
    if (sign.empty() && size_bytes_ > footer_offset_max)
      sign = "the structures found there end before " + std::to_string(footer_offset_max) +
             ", and the " + std::to_string(size_bytes_ - footer_offset_max) +
             " bytes behind that can only be the end of a commit";
    return UncommittedEnd{std::move(sign), FFR_TRY(CountRecords())};
  }

 private:
  Result<std::string> FindFooterOrTail() {
    for (std::uint64_t at = AlignUp(begin_bytes_, kBlockBytes); at < size_bytes_;
         at += kBlockBytes) {
      const std::uint64_t size = std::min(kBlockBytes, size_bytes_ - at);
      const auto block = FFR_TRY(window_.View(at, size));
      if (LooksLikeV2Footer(block, committed_.size_bytes, at))
        return "a footer begins at " + std::to_string(at);
      if (size == kBlockBytes &&
          LooksLikeV2Tail(block.last<V2Tail::kEncodedSizeBytes>(), header_.file_id,
                          committed_.size_bytes, at + kBlockBytes))
        return "a tail ends at " + std::to_string(at + kBlockBytes);
    }
    return std::string();
  }

  // Follows structures that have a header: records, key blocks, sections.
  Result<void> FollowHeaders() {
    std::uint64_t at = FindMagic(window_, size_bytes_, kMagics, begin_bytes_);
    while (at < size_bytes_) {
      const std::uint64_t end = FFR_TRY(EndOfWhatBeginsAt(at));
      at = FindMagic(window_, size_bytes_, kMagics, std::max(end, at + 1));
    }
    return {};
  }

  // Where the structure at `at` ends, or would if it were whole, by its header, which is valid only
  // in its place; `at` if none begins there.
  Result<std::uint64_t> EndOfWhatBeginsAt(std::uint64_t at) {
    constexpr std::uint64_t kHeaderBytes = V2RecordHeader::kEncodedSizeBytes;
    static_assert(V2KeyBlockHeader::kEncodedSizeBytes == kHeaderBytes);
    static_assert(V2SectionHeader::kEncodedSizeBytes == kHeaderBytes);
    if (size_bytes_ - at < kHeaderBytes) return at;
    const auto bytes = FFR_TRY(window_.View(at, kHeaderBytes));
    const std::uint64_t body = at + kHeaderBytes;
    if (const auto record = DecodeV2RecordHeader(bytes, header_.file_id, at)) {
      record_count_ = std::max(record_count_, record.value().index + 1);
      records_end_bytes_ = body + record.value().stored_size_bytes;
      return *records_end_bytes_;
    }
    if (const auto block = DecodeV2KeyBlockHeader(bytes, header_.file_id, at)) {
      keys_end_bytes_ = body + block.value().contents_size_bytes;
      if (records_end_bytes_ == at) records_end_bytes_ = keys_end_bytes_;
      return keys_end_bytes_;
    }
    const auto section = DecodeV2SectionHeader(bytes, header_.file_id, at);
    if (!section) return at;
    sections_end_bytes_ = body + std::min(section.value().size_bytes, kCommitSearchBytesMax);
    return sections_end_bytes_;
  }

  // The last offset at which the footer of a commit with these records, keys and sections may
  // begin. A commit has more before its footer if some of it is damaged, but never less.
  Result<std::uint64_t> FooterOffsetMax() {
    const IndexGeometry geometry{record_count_, header_.pages_per_segment};
    std::uint64_t end = begin_bytes_;
    if (records_end_bytes_) {
      const std::uint64_t segment = geometry.segment_count() - 1;
      const std::uint64_t first_record =
          segment * geometry.pages_per_segment * kIndexEntriesPerPage;
      end = AlignUp(*records_end_bytes_, kBlockBytes) + geometry.segment_size_bytes(segment) +
            committed_.copied_bytes * (record_count_ - first_record);
    }
    end = FFR_TRY(EndOfKeyPages(std::max(end, keys_end_bytes_)));
    end = std::max(end, sections_end_bytes_) + 8 * geometry.segment_count();
    // A commit that ended in the first block would lack its own begin.
    return std::max(AlignUp(end, kBlockBytes), AlignUp(begin_bytes_ + 1, kBlockBytes));
  }

  // Pages of key runs have no header, but are valid only in their places, one behind the other. The
  // last may have been begun: a whole commit ends with a whole block.
  Result<std::uint64_t> EndOfKeyPages(std::uint64_t end_bytes) {
    if ((header_.append_features & V2Header::kKeys) == 0) return end_bytes;
    for (std::uint64_t at = AlignUp(end_bytes, kBlockBytes); at < size_bytes_; at = end_bytes) {
      if (size_bytes_ - at < kBlockBytes) return size_bytes_;
      const auto block = FFR_TRY(window_.View(at, kBlockBytes));
      const auto count = LoadLittleEndian<std::uint32_t>(block, 8);
      if (count == 0 || count > kIndexEntriesPerPage ||
          !CheckKeyPage(block, header_.file_id, at, count))
        break;
      end_bytes = at + kBlockBytes;
    }
    return end_bytes;
  }

  // The records that pages of their index list existed, also if their headers are gone. A page says
  // only its number, so this holds for a page in any place.
  Result<std::uint64_t> CountRecords() {
    const std::uint64_t first = records_end_bytes_.value_or(begin_bytes_);
    if (record_count_ == 0 || first > size_bytes_) return record_count_;
    std::uint64_t found_count = record_count_;
    const std::uint64_t pages = header_.pages_per_segment;
    const std::uint64_t segment = (record_count_ - 1) / (kIndexEntriesPerPage * pages);
    for (std::uint64_t at = AlignUp(first, kBlockBytes);
         at < size_bytes_ && size_bytes_ - at >= kBlockBytes; at += kBlockBytes) {
      const auto block = FFR_TRY(window_.View(at, kBlockBytes));
      const auto count = LoadLittleEndian<std::uint32_t>(block, 8);
      if (count == 0 || count > kIndexEntriesPerPage) continue;
      std::uint64_t page = segment * pages;
      const std::uint64_t end = page + pages;
      while (page < end && !CheckIndexPage(block, header_.file_id, page, count)) ++page;
      if (page < end)
        found_count = std::max(found_count, page * kIndexEntriesPerPage + count);
      else if (found_count > record_count_)
        break;
    }
    return found_count;
  }

  FileWindow& window_;
  const std::uint64_t size_bytes_;
  const V2Header& header_;
  const CommittedPart& committed_;
  const std::uint64_t begin_bytes_;
  std::uint64_t record_count_;                      // By the headers of records.
  std::optional<std::uint64_t> records_end_bytes_;  // End of the last record and its keys.
  std::uint64_t keys_end_bytes_ = 0;                // End of the last key block.
  std::uint64_t sections_end_bytes_ = 0;            // End of the last section.
};

}  // namespace

Result<UncommittedEnd> ExamineEnd(FileWindow& window, std::uint64_t file_size_bytes,
                                  const V2Header& header, const CommittedPart& committed) {
  return Examination(window, file_size_bytes, header, committed).Run();
}

Result<UncommittedEnd> ExamineEnd(const RangeReader& source, FileWindow& window,
                                  const FileIndex& index) {
  const V2Layout& layout = *index.v2_layout();
  CommittedPart committed{layout.commit_size_bytes, layout.footer.record_count};
  for (const ColumnCopy& copy : FFR_TRY(ReadColumnCopies(source, 0, layout, index.schema())))
    committed.copied_bytes += index.schema().width_bytes(copy.column);
  return ExamineEnd(window, source.file_size_bytes(0), layout.header, committed);
}

}  // namespace ffrecord
