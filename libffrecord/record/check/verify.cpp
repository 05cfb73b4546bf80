#include <ffrecord/verify.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/base/endian.h"
#include "libffrecord/format/fingerprint.h"
#include "libffrecord/format/user_metadata.h"
#include "libffrecord/format/v2_facts.h"
#include "libffrecord/format/v2_index.h"
#include "libffrecord/record/check/key_check.h"
#include "libffrecord/record/check/verify_source.h"
#include "libffrecord/record/index/column_copies.h"
#include "libffrecord/record/index/file_index.h"
#include "libffrecord/record/write/uncommitted_end.h"
#include "libffrecord/source/file_window.h"
#include "libffrecord/source/local_files.h"

namespace ffrecord {
namespace {

constexpr std::uint64_t kPaddingViewBytes = std::uint64_t{1} << 20;  // Checked in one piece.

using Progress = std::function<bool(std::uint64_t, std::uint64_t)>;

// Verifies one file from front to back. `end_` is the end of the structures checked so far.
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
      return Error{ErrorCode::kDeadlineExceeded,
                   source_.file_name(0) + ": the check was cancelled"};
    return {};
  }

  // Bytes [end_, begin) must be zero.
  void CheckPadding(std::uint64_t begin_bytes, const std::string& before) {
    while (end_ < begin_bytes) {
      const std::uint64_t size = std::min(begin_bytes - end_, kPaddingViewBytes);
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

  // True if the payload is intact. Adds it to the fingerprint.
  bool CheckPayload(std::uint64_t index, const RecordLocation& location) {
    const auto stored = window_.View(location.offset_bytes, location.stored_size_bytes);
    if (!stored) {
      BadRecord(index, stored.error().message);
      return false;
    }
    if (!index_.Matches(index, location.check, stored.value())) {
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
    const auto decompressed = index_.Decompress(stored.value(), *raw.value());
    if (!decompressed) {
      BadRecord(index, decompressed.error().message);
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

  // Records are in the order of their indices. All other structures are known before, and lie
  // between them.
  Result<void> CheckV2(const V2Layout& layout) {
    CheckFront();
    FFR_TRY(CollectStructures(layout));
    fingerprint_ = FingerprintChain(index_.schema().Encode());
    end_ = V2Header::kEncodedSizeBytes;
    for (std::uint64_t index = 0; index < index_.record_count(); ++index) {
      CheckTotalsOfCommitsWith(index);
      FFR_TRY(CheckV2Record(layout, index));
    }
    FFR_TRY(PassStructuresBelow(layout.commit_size_bytes));
    CheckTotalsOfCommitsWith(index_.record_count());
    if (report_.problem_count == 0 && !keys_.agrees())
      Problem("the key runs do not list the keys that stand between the records");
    if (layout.commit_size_bytes < report_.file_size_bytes) CheckUncommittedEnd(layout);
    return {};
  }

  void CheckUncommittedEnd(const V2Layout& layout) {
    const std::string bytes =
        std::to_string(report_.file_size_bytes - layout.commit_size_bytes) + " bytes at the end";
    const auto end = ExamineEnd(source_, window_, index_);
    if (!end)
      Problem(bytes + ": " + end.error().message);
    else if (end.value().sign_of_commit.empty())
      Problem(bytes + " are ignored: an append is under way or was cut off, and the next one " +
              "removes them");
    else
      Problem(bytes + " are ignored, and look like a damaged commit (" +
              end.value().sign_of_commit + "): 'ffrecord repair' keeps its records, appending is " +
              "refused");
  }

  // Readers of a file whose header is damaged, or that of another file, use its copy.
  void CheckFront() {
    const auto bytes = window_.View(0, V2Header::kEncodedSizeBytes);
    const auto header = bytes ? DecodeV2Header(bytes.value()) : bytes.error();
    const bool is_own = header && header.value().file_id == index_.v2_layout()->header.file_id;
    if (!is_own)
      Problem((header ? "header: it is that of another file" : header.error().message) +
              "; readers use its copy at the end, 'ffrecord repair' makes a whole file");
  }

  // Only forged facts have a valid checksum and say something else than the front of the file.
  void CheckFacts(std::span<const std::byte> bytes, const V2Header& header) {
    const auto facts = DecodeV2Facts(bytes);
    if (!facts)
      Problem(facts.error().message);
    else if (!(facts.value().header == header))
      Problem("facts: the copy of the header differs from it");
    else if (facts.value().schema != index_.schema().Encode())
      Problem("facts: the copy of the schema differs from it");
  }

  // A structure that is not a record: its range, and its name in messages.
  struct Structure {
    std::uint64_t begin_bytes;
    std::uint64_t end_bytes;
    std::string name;
  };

  // Collects the structures of all commits, newest first, as far as their chain is intact; those
  // that commits share once.
  Result<void> CollectStructures(const V2Layout& layout) {
    const V2Source source{source_, 0, layout.header.file_id};
    std::set<std::uint64_t> known;
    for (std::uint64_t size = layout.commit_size_bytes; size != 0;) {
      auto commit = ReadCommit(source, size);
      if (!commit) {
        Problem("the commit that ends at " + std::to_string(size) + ": " + commit.error().message);
        break;
      }
      FFR_TRY(CollectCommit(source, layout.header, commit.value(), known));
      size = commit.value().footer.previous_commit_bytes;
      commits_.push_back(std::move(commit).value());
      const bool goes_back =
          commits_.size() == 1 ||
          commits_.back().footer.record_count <= commits_[commits_.size() - 2].footer.record_count;
      if (goes_back) continue;
      Problem("the commit that ends at " + std::to_string(commits_.back().size_bytes) +
              " has more records than the one after it");
      commits_.pop_back();
      break;
    }
    std::sort(structures_.begin(), structures_.end(),
              [](const auto& a, const auto& b) { return a.begin_bytes < b.begin_bytes; });
    return {};
  }

  Result<void> CollectCommit(const V2Source& source, const V2Header& header, const V2Commit& commit,
                             std::set<std::uint64_t>& known) {
    structures_.push_back({commit.footer_offset_bytes,
                           commit.footer_offset_bytes + commit.footer_size_bytes, "the footer"});
    structures_.push_back(
        {commit.size_bytes - V2Tail::kEncodedSizeBytes, commit.size_bytes, "the tail"});
    for (const V2Section& section : commit.footer.sections) {
      if (!known.insert(section.offset_bytes).second) continue;
      CollectSection(header, section);
      if (section.type == V2Section::kSegmentDirectory)
        CollectSegments(source, header, commit, section, known);
      if (section.type == V2Section::kKeyDirectory) CollectKeyRuns(source, header, commit, section);
    }
    CollectColumnChunks(commit);
    return {};
  }

  void CollectSection(const V2Header& header, const V2Section& section) {
    const std::string name = "section of type " + std::to_string(section.type);
    const auto sized = CheckSectionSize(section);
    if (!sized) return Problem(sized.error().message);
    const auto bytes = window_.View(section.offset_bytes, section.size_bytes);
    if (!bytes)
      Problem(name + ": " + bytes.error().message);
    else if (SectionCheck(bytes.value(), header.file_id, section.offset_bytes) != section.check)
      Problem(name + ": checksum does not match");
    else if (section.type == V2Section::kMetadata)
      CheckMetadata(bytes.value());
    else if (section.type == V2Section::kFacts)
      CheckFacts(bytes.value(), header);
    // Files of the first versions have no section headers. A damaged header is reported as padding
    // that is not zero.
    std::uint64_t begin = section.offset_bytes;
    const std::uint64_t header_offset = begin - V2SectionHeader::kEncodedSizeBytes;
    if (const auto before = window_.View(header_offset, V2SectionHeader::kEncodedSizeBytes)) {
      const auto found = DecodeV2SectionHeader(before.value(), header.file_id, header_offset);
      if (found) begin = header_offset;
      if (found &&
          !(found.value() == V2SectionHeader{section.check, section.type, section.size_bytes}))
        Problem(name + ": its header and the footer differ");
    }
    structures_.push_back({begin, section.offset_bytes + section.size_bytes, name});
  }

  // Only forged metadata has a valid checksum and cannot be read.
  void CheckMetadata(std::span<const std::byte> bytes) {
    const auto metadata = DecodeMetadata(bytes);
    if (!metadata) Problem(metadata.error().message);
  }

  // Looking up records checks the segments of the newest commit. This checks the segments that were
  // replaced.
  void CollectSegments(const V2Source& source, const V2Header& header, const V2Commit& commit,
                       const V2Section& section, std::set<std::uint64_t>& known) {
    const IndexGeometry geometry{commit.footer.record_count, header.pages_per_segment};
    if (section.size_bytes / 8 != geometry.segment_count())
      return Problem("the segment directory at " + std::to_string(section.offset_bytes) +
                     " does not fit the records of its commit");
    const auto directory = source.FetchSection(section);
    if (!directory) return;  // Said already.
    const bool is_newest = commits_.empty();
    for (std::uint64_t segment = 0; segment < geometry.segment_count(); ++segment) {
      const auto offset = LoadLittleEndian<std::uint64_t>(directory.value().bytes, 8 * segment);
      const std::uint64_t size = geometry.segment_size_bytes(segment);
      const std::string name = "index segment " + std::to_string(segment);
      if (!known.insert(offset).second) continue;
      if (offset > commit.footer_offset_bytes || size > commit.footer_offset_bytes - offset) {
        if (!is_newest) Problem(name + ": does not lie below the footer of its commit");
        continue;  // Damage is reported by its records.
      }
      structures_.push_back({offset, offset + size, name});
      if (!is_newest) CheckReplacedSegment(header, geometry, segment, offset);
    }
  }

  void CollectKeyRuns(const V2Source& source, const V2Header& header, const V2Commit& commit,
                      const V2Section& section) {
    const auto directory = source.FetchSection(section);
    if (!directory) return;  // Said already.
    const auto runs = DecodeKeyDirectory(directory.value().bytes, commit.footer_offset_bytes);
    if (!runs) return Problem(runs.error().message);
    for (const KeyRun& run : runs.value()) {
      if (!known_runs_.insert(run.offset_bytes).second) continue;
      structures_.push_back({run.offset_bytes, run.offset_bytes + run.size_bytes(), "key run"});
      // The runs of the newest commit list all keys.
      const bool is_newest = commits_.empty();
      const auto checked = CheckKeyRun(window_, header.file_id, run, is_newest ? &keys_ : nullptr);
      if (!checked) Problem(checked.error().message);
    }
  }

  void CollectColumnChunks(const V2Commit& commit) {
    V2Layout layout;
    layout.header = index_.v2_layout()->header;
    layout.footer = commit.footer;
    layout.footer_offset_bytes = commit.footer_offset_bytes;
    const Schema& schema = index_.schema();
    const auto copies = ReadColumnCopies(source_, 0, layout, schema);
    if (!copies) return Problem(copies.error().message);
    const std::uint64_t per_segment = kIndexEntriesPerPage * layout.header.pages_per_segment;
    std::vector<std::byte> values;
    for (const ColumnCopy& copy : copies.value())
      for (std::uint64_t segment = 0; segment < copy.chunks.size(); ++segment) {
        const ColumnChunk& chunk = copy.chunks[segment];
        if (!known_chunks_.insert(chunk.offset_bytes).second) continue;
        const std::uint64_t size_bytes =
            schema.width_bytes(copy.column) *
            std::min(per_segment, commit.footer.record_count - segment * per_segment);
        if (size_bytes > commit.footer_offset_bytes)
          return Problem("column chunk: it is too large");
        values.resize(size_bytes);
        const auto read = ReadColumnChunk(source_, 0, layout, chunk, values);
        if (!read) Problem(read.error().message);
        structures_.push_back(
            {chunk.offset_bytes, chunk.offset_bytes + values.size(), "column chunk"});
      }
  }

  void CheckReplacedSegment(const V2Header& header, const IndexGeometry& geometry,
                            std::uint64_t segment, std::uint64_t offset_bytes) {
    const std::uint64_t size = geometry.segment_size_bytes(segment);
    const auto pages = window_.View(offset_bytes, size);
    if (!pages) return Problem(pages.error().message);
    for (std::uint64_t i = 0; i < size / kIndexPageSizeBytes; ++i) {
      const std::uint64_t page = segment * geometry.pages_per_segment + i;
      const auto checked =
          CheckIndexPage(pages.value().subspan(i * kIndexPageSizeBytes, kIndexPageSizeBytes),
                         header.file_id, page, geometry.entries_in_page(page));
      if (!checked) Problem("replaced " + checked.error().message);
    }
  }

  // Checks key blocks, which no section lists: they stand directly behind the previous structure.
  Result<void> PassKeyBlocks(std::uint64_t begin_bytes) {
    const V2Header& header = index_.v2_layout()->header;
    if ((header.append_features & V2Header::kKeys) == 0) return {};
    while (!lost_ && end_ < begin_bytes &&
           begin_bytes - end_ > V2KeyBlockHeader::kEncodedSizeBytes) {
      std::uint64_t size_bytes = 0;
      const auto checked = CheckKeyBlock(window_, header.file_id, end_, keys_, size_bytes);
      if (!checked) Problem(checked.error().message);
      if (size_bytes == 0) break;  // The rest must be padding.
      FFR_TRY(Advance(end_ + size_bytes));
    }
    return {};
  }

  // Checks what lies between the structures that begin below `begin_bytes`.
  Result<void> PassStructuresBelow(std::uint64_t begin_bytes) {
    for (; passed_count_ < structures_.size(); ++passed_count_) {
      const Structure& next = structures_[passed_count_];
      if (next.begin_bytes >= begin_bytes) break;
      FFR_TRY(PassKeyBlocks(next.begin_bytes));
      if (!lost_ && next.begin_bytes < end_)
        Problem(next.name + ": begins at " + std::to_string(next.begin_bytes) +
                ", inside of what ends at " + std::to_string(end_));
      else if (!lost_)
        CheckPadding(next.begin_bytes, next.name);
      lost_ = false;
      FFR_TRY(Advance(next.end_bytes));
    }
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
    FFR_TRY(PassStructuresBelow(location.offset_bytes));
    FFR_TRY(PassKeyBlocks(location.offset_bytes));
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

  // Checks the totals of the commits with this count that were not checked yet, oldest first. There
  // may be none: the opened commit may be damaged, or cut off, when it is read again.
  void CheckTotalsOfCommitsWith(std::uint64_t record_count) {
    for (; totals_count_ < commits_.size(); ++totals_count_) {
      const V2Commit& commit = commits_[commits_.size() - 1 - totals_count_];
      if (commit.footer.record_count != record_count) break;
      CheckTotals(commit);
    }
  }

  // Requires that the records below the commit's count, and no others, have been checked.
  void CheckTotals(const V2Commit& commit) {
    if (report_.bad_record_count > 0) return;  // The totals cannot agree then.
    const V2Footer& footer = commit.footer;
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
  bool lost_ = false;                  // `end_` is unknown, because a record's place is.
  std::vector<V2Commit> commits_;      // Newest first.
  std::size_t totals_count_ = 0;       // How many of them, from the oldest on, were checked.
  std::vector<Structure> structures_;  // In file order.
  std::size_t passed_count_ = 0;       // Structures passed so far.
  std::set<std::uint64_t> known_runs_;
  std::set<std::uint64_t> known_chunks_;
  KeyTally keys_;
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
  // From front to back: the kernel reads ahead.
  const auto source = FFR_TRY(OpenLocalFiles({&path, 1}, {.io = IoPolicy::kBuffered}));
  return VerifySource(*source, progress);
}

}  // namespace ffrecord
