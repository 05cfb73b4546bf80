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
#include "libffrecord/record/index/v2_commit.h"
#include "libffrecord/record/write/column_copy_writer.h"
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
        explained_bytes_(begin_bytes_),
        record_count_(committed.record_count) {}

  Result<UncommittedEnd> Run() {
    std::string sign = FFR_TRY(FindFooterOrTail());
    FFR_TRY(FollowHeaders());
    FFR_TRY(FindIndex());
    FFR_TRY(PassKeyRuns());
    if (sign.empty() && is_ended_ && size_bytes_ > FooterOffsetMax())
      sign = "the index of a commit is followed by " +
             std::to_string(size_bytes_ - explained_bytes_) + " bytes that can only be its end";
    return UncommittedEnd{std::move(sign), record_count_};
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
      if (end > at) explained_bytes_ = end;
      at = FindMagic(window_, size_bytes_, kMagics, std::max(end, at + 1));
    }
    return {};
  }

  // Where the structure at `at` ends, or would if it were whole, by its header; `at` if none begins
  // there.
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
      is_ended_ = false;
      return *records_end_bytes_;
    }
    if (const auto block = DecodeV2KeyBlockHeader(bytes, header_.file_id, at)) {
      const std::uint64_t end = body + block.value().contents_size_bytes;
      if (records_end_bytes_ == at) records_end_bytes_ = end;
      return end;
    }
    // Sections are written where a commit ends; those behind the file's header apart.
    const auto section = DecodeV2SectionHeader(bytes, header_.file_id, at);
    if (!section || section.value().size_bytes > size_bytes_ - body) return at;
    is_ended_ = is_ended_ || committed_.size_bytes > 0;
    has_column_copies_ = has_column_copies_ || section.value().type == V2Section::kColumnCopy;
    return body + section.value().size_bytes;
  }

  // Finds the index segment behind the last records by any of its pages. The records that the pages
  // list existed.
  Result<void> FindIndex() {
    const std::uint64_t first = records_end_bytes_.value_or(begin_bytes_);
    if (record_count_ == 0 || first > size_bytes_) return {};
    const std::uint64_t pages = header_.pages_per_segment;
    const std::uint64_t segment = (record_count_ - 1) / (kIndexEntriesPerPage * pages);
    bool is_found = false;
    for (std::uint64_t at = AlignUp(first, kBlockBytes);
         at < size_bytes_ && size_bytes_ - at >= kBlockBytes; at += kBlockBytes) {
      const auto block = FFR_TRY(window_.View(at, kBlockBytes));
      const auto count = LoadLittleEndian<std::uint32_t>(block, 8);
      if (count == 0 || count > kIndexEntriesPerPage) continue;
      std::uint64_t page = segment * pages;
      const std::uint64_t end = page + pages;
      while (page < end && !CheckIndexPage(block, header_.file_id, page, count)) ++page;
      if (page == end) {
        if (is_found) break;
        continue;
      }
      is_found = true;
      is_ended_ = true;
      record_count_ = std::max(record_count_, page * kIndexEntriesPerPage + count);
      explained_bytes_ = std::max(explained_bytes_, at + kBlockBytes);
    }
    return {};
  }

  Result<void> PassKeyRuns() {
    std::uint64_t at = AlignUp(explained_bytes_, kBlockBytes);
    while (is_ended_ && at < size_bytes_ && size_bytes_ - at >= kBlockBytes) {
      const auto block = FFR_TRY(window_.View(at, kBlockBytes));
      const auto count = LoadLittleEndian<std::uint32_t>(block, 8);
      if (count == 0 || count > kIndexEntriesPerPage ||
          !CheckKeyPage(block, header_.file_id, at, count))
        break;
      at += kBlockBytes;
      explained_bytes_ = at;
    }
    return {};
  }

  // The last offset at which the footer of a commit with these structures may begin.
  std::uint64_t FooterOffsetMax() const {
    const IndexGeometry geometry{record_count_, header_.pages_per_segment};
    std::uint64_t end = explained_bytes_ + 8 * geometry.segment_count();
    // The column chunks of a segment have no headers.
    if (committed_.copies_columns && !has_column_copies_)
      end += ColumnCopyWriter::kCopiedBytesMax * kIndexEntriesPerPage * header_.pages_per_segment;
    return AlignUp(end, kBlockBytes);
  }

  FileWindow& window_;
  const std::uint64_t size_bytes_;
  const V2Header& header_;
  const CommittedPart& committed_;
  const std::uint64_t begin_bytes_;
  std::uint64_t explained_bytes_;  // Where the last structure that was found ends.
  std::uint64_t record_count_;
  std::optional<std::uint64_t> records_end_bytes_;  // Of the last record and its keys.
  bool is_ended_ = false;  // A structure that ends a commit follows the last record.
  bool has_column_copies_ = false;
};

}  // namespace

Result<UncommittedEnd> ExamineEnd(FileWindow& window, std::uint64_t file_size_bytes,
                                  const V2Header& header, const CommittedPart& committed) {
  return Examination(window, file_size_bytes, header, committed).Run();
}

Result<UncommittedEnd> ExamineEnd(FileWindow& window, std::uint64_t file_size_bytes,
                                  const V2Layout& layout) {
  const bool copies = (layout.header.append_features & V2Header::kColumnCopies) != 0;
  return ExamineEnd(window, file_size_bytes, layout.header,
                    {layout.commit_size_bytes, layout.footer.record_count, copies});
}

}  // namespace ffrecord
