#include <ffrecord/verify.h>

#include <algorithm>
#include <string>
#include <utility>

#include "libffrecord/base/endian.h"
#include "libffrecord/format/fingerprint.h"
#include "libffrecord/format/v2_index.h"
#include "libffrecord/format/zstd_codec.h"
#include "libffrecord/record/coalesce.h"
#include "libffrecord/record/file_index.h"
#include "libffrecord/record/file_window.h"
#include "libffrecord/record/verify_source.h"

namespace ffrecord {
namespace {

using Progress = std::function<bool(std::uint64_t, std::uint64_t)>;

// One file, from front to back. `end_` is where the structures checked so far end.
class Verification {
 public:
  Verification(const RangeReader& source, const FileIndex& index, const Progress& progress)
      : source_(source), index_(index), window_(source, 0), progress_(progress) {
    report_.format_version = index.format_version();
    report_.record_count = index.record_count();
    report_.file_size_bytes = source.file_size_bytes(0);
  }

  Result<VerifyReport> Run() {
    FFR_TRY(index_.v2_layout() != nullptr ? CheckV2(*index_.v2_layout()) : CheckV1());
    if (progress_) progress_(report_.file_size_bytes, report_.file_size_bytes);
    return std::move(report_);
  }

 private:
  void Problem(const std::string& found) {
    ++report_.problem_count;
    if (report_.problems.size() < VerifyReport::kProblemsMax) report_.problems.push_back(found);
  }

  void BadRecord(std::uint64_t index, const std::string& found) {
    ++report_.bad_record_count;
    Problem("record " + std::to_string(index) + ": " + found);
  }

  Result<void> Advance(std::uint64_t end_bytes) {
    end_ = end_bytes;
    if (progress_ && !progress_(end_bytes, report_.file_size_bytes))
      return Error{ErrorCode::kDeadlineExceeded, source_.file_name(0) + ": check was broken off"};
    return {};
  }

  // Bytes [end_, begin) must be zero.
  void CheckPadding(std::uint64_t begin_bytes, const std::string& before) {
    while (end_ < begin_bytes) {
      const std::uint64_t size = std::min(begin_bytes - end_, kPieceBytesMax);
      const auto padding = window_.View(end_, size);
      if (!padding) return Problem("padding before " + before + ": " + padding.error().message);
      const auto bytes = padding.value();
      const auto found =
          std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{}; });
      if (found != bytes.end())
        return Problem("padding before " + before + ": byte " +
                       std::to_string(end_ + static_cast<std::uint64_t>(found - bytes.begin())) +
                       " is not zero");
      end_ += size;
    }
  }

  // Whether the payload is what was written. Adds it to the fingerprint.
  bool CheckPayload(std::uint64_t index, const RecordLocation& location) {
    const auto stored = window_.View(location.offset_bytes, location.stored_size_bytes);
    if (!stored) {
      BadRecord(index, stored.error().message);
      return false;
    }
    if (!index_.Matches(index, location, stored.value())) {
      BadRecord(index, std::to_string(location.stored_size_bytes) + " bytes at " +
                           std::to_string(location.offset_bytes) + " fail their checksum");
      return false;
    }
    if (!location.compressed()) {
      fingerprint_.Add(stored.value());
      return true;
    }
    auto raw = BufferPool::Process().Take(location.raw_size_bytes);
    if (!raw) {
      BadRecord(index, raw.error().message);
      return false;
    }
    const auto expanded = ExpandZstd(stored.value(), *raw.value());
    if (!expanded) {
      BadRecord(index, expanded.error().message);
      return false;
    }
    fingerprint_.Add(*raw.value());
    return true;
  }

  Result<void> CheckV1() {
    for (std::uint64_t index = 0; index < index_.record_count(); ++index) {
      RecordLocation location;
      if (index_.Locate(index, location) != ErrorCode::kOk) {
        BadRecord(index, index_.Explain(index));
        continue;
      }
      CheckPayload(index, location);
      FFR_TRY(Advance(location.offset_bytes + location.stored_size_bytes));
    }
    return {};
  }

  Result<void> CheckV2(const V2Layout& layout) {
    fingerprint_ = FingerprintChain(index_.schema().Encode());
    end_ = V2Header::kEncodedSizeBytes;
    const IndexGeometry geometry{index_.record_count(), layout.header.pages_per_segment};
    const std::uint64_t entries_per_segment = kIndexEntriesPerPage * geometry.pages_per_segment;
    for (std::uint64_t segment = 0; segment < geometry.segment_count(); ++segment) {
      const std::uint64_t first = segment * entries_per_segment;
      const std::uint64_t last = std::min(first + entries_per_segment, index_.record_count());
      for (std::uint64_t index = first; index < last; ++index)
        FFR_TRY(CheckV2Record(layout, index));
      FFR_TRY(CheckSegment(layout, segment, geometry.segment_size_bytes(segment)));
    }
    CheckSections(layout);
    CheckPadding(layout.footer_offset_bytes, "the footer");
    end_ = layout.footer_offset_bytes + V2Footer::kFixedSizeBytes +
           V2Footer::kSectionSizeBytes * layout.footer.sections.size();
    CheckPadding(report_.file_size_bytes - V2Tail::kEncodedSizeBytes, "the tail");
    CheckTotals(layout.footer);
    return {};
  }

  Result<void> CheckV2Record(const V2Layout& layout, std::uint64_t index) {
    RecordLocation location;
    if (index_.Locate(index, location) != ErrorCode::kOk) {
      BadRecord(index, index_.Explain(index));
      lost_ = true;
      return {};
    }
    const std::string name = "record " + std::to_string(index);
    const std::uint64_t header_offset = location.offset_bytes - V2RecordHeader::kEncodedSizeBytes;
    if (!lost_ && location.offset_bytes != PayloadOffsetAfter(end_, layout.header.alignment_bytes))
      Problem(name + ": begins at " + std::to_string(location.offset_bytes) + ", not at " +
              std::to_string(PayloadOffsetAfter(end_, layout.header.alignment_bytes)));
    else if (!lost_)
      CheckPadding(header_offset, name);
    lost_ = false;
    CheckRecordHeader(layout, index, location, header_offset);
    if (CheckPayload(index, location)) {
      raw_size_bytes_ += location.raw_size_bytes;
      stored_size_bytes_ += location.stored_size_bytes;
    }
    return Advance(location.offset_bytes + location.stored_size_bytes);
  }

  void CheckRecordHeader(const V2Layout& layout, std::uint64_t index,
                         const RecordLocation& location, std::uint64_t header_offset) {
    const auto bytes = window_.View(header_offset, V2RecordHeader::kEncodedSizeBytes);
    if (!bytes) return Problem("record " + std::to_string(index) + ": " + bytes.error().message);
    const auto header = DecodeV2RecordHeader(bytes.value(), layout.header.file_id, header_offset);
    if (!header) return Problem("record " + std::to_string(index) + ": " + header.error().message);
    const V2RecordHeader expected{location.check, index, location.stored_size_bytes,
                                  location.raw_size_bytes};
    if (!(header.value() == expected))
      Problem("record " + std::to_string(index) + ": its header and its index entry differ");
  }

  // The pages were checked when records were looked up.
  Result<void> CheckSegment(const V2Layout& layout, std::uint64_t segment,
                            std::uint64_t size_bytes) {
    const auto offset = LoadLittleEndian<std::uint64_t>(layout.directory.bytes, 8 * segment);
    const std::string name = "index segment " + std::to_string(segment);
    if (offset > layout.footer_offset_bytes) {  // Its records have said so already.
      lost_ = true;
      return {};
    }
    if (!lost_ && offset != AlignUp(end_, kIndexPageSizeBytes))
      Problem(name + ": begins at " + std::to_string(offset) + ", not at " +
              std::to_string(AlignUp(end_, kIndexPageSizeBytes)));
    else if (!lost_)
      CheckPadding(offset, name);
    lost_ = false;
    return Advance(offset + size_bytes);
  }

  void CheckSections(const V2Layout& layout) {
    std::vector<V2Section> sections = layout.footer.sections;
    std::sort(sections.begin(), sections.end(),
              [](const auto& a, const auto& b) { return a.offset_bytes < b.offset_bytes; });
    if (lost_) end_ = sections.front().offset_bytes;  // The directory at least is there.
    for (const V2Section& section : sections) {
      const std::string name = "section of type " + std::to_string(section.type);
      CheckPadding(section.offset_bytes, name);
      const auto bytes = window_.View(section.offset_bytes, section.size_bytes);
      if (!bytes)
        Problem(name + ": " + bytes.error().message);
      else if (SectionCheck(bytes.value(), layout.header.file_id, section.offset_bytes) !=
               section.check)
        Problem(name + ": checksum does not match");
      end_ = std::max(end_, section.offset_bytes + section.size_bytes);
    }
  }

  void CheckTotals(const V2Footer& footer) {
    if (report_.bad_record_count > 0) return;  // Then they cannot agree.
    if (raw_size_bytes_ != footer.raw_size_bytes)
      Problem("footer: the raw sizes of the records do not add up to what it states");
    if (stored_size_bytes_ != footer.stored_size_bytes)
      Problem("footer: the stored sizes of the records do not add up to what it states");
    if (fingerprint_.digest() != footer.fingerprint)
      Problem("footer: the fingerprint is not that of the records");
  }

  const RangeReader& source_;
  const FileIndex& index_;
  FileWindow window_;
  const Progress& progress_;
  VerifyReport report_;
  std::uint64_t end_ = 0;
  bool lost_ = false;  // `end_` is not known, for a record's place is not.
  FingerprintChain fingerprint_{{}};
  std::uint64_t raw_size_bytes_ = 0;
  std::uint64_t stored_size_bytes_ = 0;
};

}  // namespace

Result<VerifyReport> VerifySource(const RangeReader& source, const Progress& progress) {
  const auto indexes = FFR_TRY(OpenIndexes(source, {}));
  return Verification(source, *indexes.front(), progress).Run();
}

Result<VerifyReport> VerifyFile(const std::filesystem::path& path, const Progress& progress) {
  const auto source = FFR_TRY(OpenLocalFiles(std::span(&path, 1), {}));
  return VerifySource(*source, progress);
}

}  // namespace ffrecord
