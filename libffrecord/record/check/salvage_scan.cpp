#include "libffrecord/record/check/salvage_scan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>

#include "libffrecord/base/align.h"
#include "libffrecord/format/user_metadata.h"
#include "libffrecord/format/v2_column_copy.h"
#include "libffrecord/format/v2_footer.h"
#include "libffrecord/format/v2_keys.h"
#include "libffrecord/format/v2_record.h"
#include "libffrecord/record/index/v2_commit.h"
#include "libffrecord/record/write/column_copy_writer.h"
#include "libffrecord/record/write/magic_scan.h"
#include "libffrecord/record/write/uncommitted_end.h"

namespace ffrecord {
namespace {

constexpr Magic kSectionMagic{0xe5, 'S', 'E', 'C'};
constexpr Magic kTailMagic{0xe5, 'F', 'F', 'R'};
constexpr Magic kRecordMagic{0xe5, 'R', 'E', 'C'};
// Begin structures that are seeded with the id of their file and their place there.
constexpr std::array<Magic, 3> kPlacedMagics{kRecordMagic, kSectionMagic, kTailMagic};
// As disks write them, to the right place or a wrong one; and how many are counted.
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kPagesMax = 1 << 16;
constexpr std::size_t kTailIdOffset = 32;

class SalvageScanner {
 public:
  SalvageScanner(const RangeReader& source, FileWindow& window)
      : source_(source), window_(window), size_bytes_(source.file_size_bytes(0)) {}

  Result<std::optional<SalvageScan>> Run() {
    if (!FFR_TRY(FindHeader())) return std::optional<SalvageScan>();
    const V2Source source{source_, 0, scan_.header.file_id};
    CommittedPart committed;
    if (auto commit = FFR_TRY(FindNewestCommit(source))) {
      committed = {commit->size_bytes, commit->footer.record_count};
      has_footer_ = true;
      if (!header_is_whole_) TakeHeaderFrom(source, commit->footer);
      FFR_TRY(OpenIndex(source, *commit));
      for (const V2Section& section : commit->footer.sections)
        if (!Take(section)) damaged_types_.push_back(section.type);
      if (commit->size_bytes == size_bytes_) CountKeys(source, *commit);
    }
    scan_.record_count_min = committed.record_count;
    scan_.record_count_is_known = has_footer_ && committed.size_bytes == size_bytes_;
    if (!scan_.record_count_is_known) ExamineWhatIsBehind(committed);
    // The list of a commit is complete. Without a commit, or with a damaged section, searches the
    // whole file.
    if (!scan_.record_count_is_known || !damaged_types_.empty()) FindSections();
    Conclude();
    return std::optional<SalvageScan>(std::move(scan_));
  }

 private:
  // Finds the header, or at least the file id, from a tail.
  Result<bool> FindHeader() {
    const auto head = window_.View(0, std::min<std::uint64_t>(size_bytes_, 128));
    if (head) {
      auto header = DecodeV2Header(head.value());
      if (header && IsHeaderOfAnother(header.value())) return true;
      if (header) {
        scan_.header = header.value();
        header_is_whole_ = true;
        return true;
      }
      if (header.error().code != ErrorCode::kCorruption) return std::move(header).error();
    }
    for (std::uint64_t at = FindMagic(window_, size_bytes_, kTailMagic, 0); at < size_bytes_;
         at = FindMagic(window_, size_bytes_, kTailMagic, at + 1)) {
      const auto bytes = window_.View(at, V2Tail::kEncodedSizeBytes);
      if (!bytes) continue;
      FileId id;
      std::memcpy(id.data(), bytes.value().data() + kTailIdOffset, id.size());
      if (!DecodeV2Tail(bytes.value().first<V2Tail::kEncodedSizeBytes>(), id,
                        at + V2Tail::kEncodedSizeBytes))
        continue;
      scan_.header.file_id = id;
      return true;
    }
    return false;
  }

  // Whether the file ends with a commit of another id, and most of the file belongs to it: then the
  // header was written to the wrong place, and the id of the commit is taken.
  bool IsHeaderOfAnother(const V2Header& header) {
    constexpr std::uint64_t kTailBytes = V2Tail::kEncodedSizeBytes;
    if (size_bytes_ < kTailBytes) return false;
    const auto bytes = window_.View(size_bytes_ - kTailBytes, kTailBytes);
    if (!bytes) return false;
    const auto tail = bytes.value().first<kTailBytes>();
    const auto id = FileIdOfV2Tail(tail);
    if (!id || *id == header.file_id || !DecodeV2Tail(tail, *id, size_bytes_)) return false;
    if (PagesOf(*id) < PagesOf(header.file_id)) return false;
    scan_.header.file_id = *id;
    return true;
  }

  // The number of pages in which a record, a section or a tail begins that file `id` has there; of
  // long files, of the first of them.
  std::uint64_t PagesOf(const FileId& id) {
    std::uint64_t count = 0;
    std::uint64_t at = FindMagic(window_, size_bytes_, kPlacedMagics, 0);
    while (at < size_bytes_ && count < kPagesMax) {
      const bool is_own = IsPlaced(id, at);
      count += is_own ? 1 : 0;
      const std::uint64_t next = is_own ? AlignDown(at, kPageBytes) + kPageBytes : at + 1;
      at = FindMagic(window_, size_bytes_, kPlacedMagics, next);
    }
    return count;
  }

  bool IsPlaced(const FileId& id, std::uint64_t at) {
    constexpr std::uint64_t kTailBytes = V2Tail::kEncodedSizeBytes;
    const auto bytes = window_.View(at, std::min(kTailBytes, size_bytes_ - at));
    if (!bytes) return false;
    const auto head = bytes.value();
    if (DecodeV2RecordHeader(head.first(std::min(head.size(), V2RecordHeader::kEncodedSizeBytes)),
                             id, at))
      return true;
    if (head.size() >= V2SectionHeader::kEncodedSizeBytes &&
        DecodeV2SectionHeader(head.first(V2SectionHeader::kEncodedSizeBytes), id, at))
      return true;
    return head.size() == kTailBytes && DecodeV2Tail(head.first<kTailBytes>(), id, at + kTailBytes);
  }

  // The header's copy among the facts; without one, the features that a file with these sections
  // needs.
  void TakeHeaderFrom(const V2Source& source, const V2Footer& footer) {
    const auto facts = ReadFacts(source, footer);
    if (facts && facts.value()) {
      scan_.header = facts.value()->header;
      header_is_whole_ = true;
      scan_.kept.push_back("the header, by its copy");
      return;
    }
    const auto bit_if = [&](std::uint32_t type, std::uint64_t bit) {
      return footer.Find(type) != nullptr ? bit : std::uint64_t{0};
    };
    scan_.header.required_features = V2Header::kZstd |
                                     bit_if(V2Section::kSchema, V2Header::kSchema) |
                                     bit_if(V2Section::kDictionary, V2Header::kDictionary);
  }

  // Opens the index of this commit, or of the newest one before it that can be opened: records are
  // looked up in it as readers do.
  Result<void> OpenIndex(const V2Source& source, const V2Commit& newest) {
    auto opened = OpenV2Index(source, scan_.header, newest, {});
    for (std::uint64_t end = newest.size_bytes; !opened;) {
      if (opened.error().code != ErrorCode::kCorruption) return std::move(opened).error();
      auto older = FFR_TRY(FindCommitBelow(source, end));
      if (!older) return {};
      end = older->size_bytes;
      opened = OpenV2Index(source, scan_.header, *std::move(older), {});
    }
    scan_.index = std::move(opened).value();
    return {};
  }

  // Reports what may be lost behind the newest whole commit.
  void ExamineWhatIsBehind(const CommittedPart& committed) {
    const bool is_opened =
        scan_.index && scan_.index->v2_layout()->commit_size_bytes == committed.size_bytes;
    const auto end = is_opened ? ExamineEnd(source_, window_, *scan_.index)
                               : ExamineEnd(window_, size_bytes_, scan_.header, committed);
    if (end) scan_.record_count_min = end.value().record_count_min;
    if (!has_footer_)
      scan_.losses.push_back("footer and tail");
    else
      scan_.losses.push_back("the end of the file: its last " +
                             std::to_string(size_bytes_ - committed.size_bytes) + " bytes are " +
                             (end && end.value().sign_of_commit.empty()
                                  ? "an append that was never finished"
                                  : "a damaged commit") +
                             ", whose intact records are kept");
  }

  Result<std::optional<V2Commit>> FindNewestCommit(const V2Source& source) {
    auto commit = ReadCommit(source, size_bytes_);
    if (commit) return std::optional<V2Commit>(std::move(commit).value());
    if (commit.error().code != ErrorCode::kCorruption) return std::move(commit).error();
    return FindCommitBelow(source, size_bytes_);
  }

  // Notes the section if it is whole.
  bool Take(const V2Section& section) {
    has_key_directory_ = has_key_directory_ || section.type == V2Section::kKeyDirectory;
    // These two list only offsets; the repair writes new ones.
    if (section.type == V2Section::kSegmentDirectory || section.type == V2Section::kKeyDirectory)
      return true;
    const bool known = section.type == V2Section::kSchema ||
                       section.type == V2Section::kDictionary ||
                       section.type == V2Section::kMetadata ||
                       section.type == V2Section::kColumnCopy || section.type == V2Section::kFacts;
    if (!known || section.size_bytes > V2Section::kMetadataSizeBytesMax) return false;
    const auto bytes = window_.View(section.offset_bytes, section.size_bytes);
    const bool whole = bytes && SectionCheck(bytes.value(), scan_.header.file_id,
                                             section.offset_bytes) == section.check;
    if (whole)
      sections_.insert_or_assign(
          section.offset_bytes,
          std::pair(section.type, std::vector(bytes.value().begin(), bytes.value().end())));
    return whole;
  }

  void CountKeys(const V2Source& source, const V2Commit& commit) {
    scan_.key_count = 0;
    const V2Section* section = commit.footer.Find(V2Section::kKeyDirectory);
    if (section == nullptr) return;
    scan_.key_count.reset();
    const auto directory = source.FetchSection(*section);
    if (!directory) return;
    const auto runs = DecodeKeyDirectory(directory.value().bytes, commit.footer_offset_bytes);
    if (!runs) return;
    std::uint64_t count = 0;  // Entries of at most 64 runs of at most 2^48 keys.
    for (const KeyRun& run : runs.value()) count += run.entry_count;
    scan_.key_count = count;
  }

  void FindSections() {
    std::uint64_t begin = 0;
    for (;;) {
      const std::uint64_t at = FindMagic(window_, size_bytes_, kSectionMagic, begin);
      if (at >= size_bytes_) return;
      begin = at + 1;
      const auto bytes = window_.View(at, V2SectionHeader::kEncodedSizeBytes);
      if (!bytes) continue;
      const auto header = DecodeV2SectionHeader(bytes.value(), scan_.header.file_id, at);
      if (!header) continue;
      const std::uint64_t offset = at + V2SectionHeader::kEncodedSizeBytes;
      if (header.value().size_bytes > size_bytes_ - offset) continue;
      // Skips a whole section: it contains no other, or its bytes would be kept twice.
      if (Take({header.value().type, offset, header.value().size_bytes, header.value().check}))
        begin = offset + header.value().size_bytes;
    }
  }

  // The last schema and metadata count: they are those of the newest commit.
  void Conclude() {
    for (auto& [offset, section] : sections_) {
      auto& [type, bytes] = section;
      if (type == V2Section::kSchema) {
        auto schema = Schema::Decode(bytes);
        if (schema) scan_.schema = std::move(schema).value();
        has_schema_ = bool(schema);
      } else if (type == V2Section::kMetadata) {
        auto metadata = DecodeMetadata(bytes);
        if (metadata) scan_.metadata = std::move(metadata).value();
        if (!metadata) damaged_types_.push_back(type);
      } else if (type == V2Section::kColumnCopy) {
        column_copies_.push_back(&bytes);
      } else if (type == V2Section::kFacts) {
        ConcludeFacts(bytes);
      } else {
        ConcludeDictionary(bytes);
      }
    }
    if (!header_is_whole_) {
      scan_.losses.insert(scan_.losses.begin(), "the header: alignment is 1 now");
      scan_.header.required_features = V2Header::kZstd;
      scan_.header.append_features =
          (has_key_directory_ ? V2Header::kKeys : 0) |
          (column_copies_.empty() ? std::uint64_t{0} : V2Header::kColumnCopies);
    }
    scan_.has_keys = (scan_.header.append_features & V2Header::kKeys) != 0;
    // Metadata of an older commit do not list the nulls of later records. Without the list, all
    // nullable columns may hold nulls.
    if (!scan_.record_count_is_known || IsDamaged(V2Section::kMetadata))
      scan_.metadata.erase(std::string(kNullsMetadata));
    ConcludeColumnCopies();
    Account();
  }

  void ConcludeFacts(std::span<const std::byte> bytes) {
    const auto facts = DecodeV2Facts(bytes);
    if (!facts || facts.value().header.file_id != scan_.header.file_id) return;
    scan_.key_column = facts.value().key_column;
    if (!header_is_whole_) scan_.kept.push_back("the header, by its copy");
    scan_.header = facts.value().header;
    header_is_whole_ = true;
    if (has_schema_) return;
    auto schema = Schema::Decode(facts.value().schema);
    has_schema_ = schema && !facts.value().schema.empty();
    if (has_schema_) scan_.schema = std::move(schema).value();
  }

  // Writes the messages.
  void Account() {
    const V2Header& header = scan_.header;
    auto& kept = scan_.kept;
    auto& losses = scan_.losses;
    if (has_schema_) kept.push_back("the schema");
    if (!has_schema_ && (header.required_features & V2Header::kSchema) != 0)
      losses.push_back("the schema: records are plain bytes now");
    if (!scan_.metadata.empty()) kept.push_back("the metadata");
    if (IsDamaged(V2Section::kMetadata))
      losses.push_back(scan_.metadata.empty() ? "the metadata"
                                              : "the newest metadata: older ones are kept");
    const std::size_t dictionaries = scan_.dictionaries.size();
    if (dictionaries > 0)
      kept.push_back(dictionaries == 1 ? std::string("the dictionary")
                                       : std::to_string(dictionaries) + " dictionaries");
    const bool needs_one = (header.required_features & V2Header::kDictionary) != 0;
    // A file with too few records to train a dictionary has none, and its footer says so.
    if (IsDamaged(V2Section::kDictionary) || (needs_one && dictionaries == 0 && !has_footer_))
      losses.push_back("a dictionary, and the records that need it");
    for (const std::uint32_t type : damaged_types_)
      if (type > V2Section::kFacts)
        losses.push_back("a section of type " + std::to_string(type) +
                         ", which a newer library may know");
  }

  bool IsDamaged(std::uint32_t type) const {
    return std::find(damaged_types_.begin(), damaged_types_.end(), type) != damaged_types_.end();
  }

  // Only the sections tell which columns were copied.
  void ConcludeColumnCopies() {
    if ((scan_.header.append_features & V2Header::kColumnCopies) == 0) return;
    const auto& columns = scan_.schema.columns();
    std::vector<bool> wanted(columns.size(), false);
    for (const std::vector<std::byte>* section : column_copies_) {
      const std::uint64_t head_bytes =
          std::min<std::uint64_t>(ColumnCopySizeBytes(0), section->size());
      const auto copy = DecodeColumnCopy(*section, (section->size() - head_bytes) / 16);
      if (copy && copy.value().column < columns.size()) wanted[copy.value().column] = true;
    }
    const bool unknown = IsDamaged(V2Section::kColumnCopy) || column_copies_.empty();
    std::uint64_t total_bytes = 0;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::uint64_t width = scan_.schema.width_bytes(i);
      if ((!wanted[i] && !unknown) || width == 0 || width > kCopiedColumnBytesMax ||
          width > ColumnCopyWriter::kCopiedBytesMax - total_bytes)
        continue;
      total_bytes += width;
      scan_.copied_columns.push_back(columns[i].name);
    }
    if (scan_.copied_columns.empty())
      scan_.losses.push_back("the column copies: columns are read out of the records now");
    else if (unknown)
      scan_.losses.push_back(
          "which columns were copied: of all that are small enough there are copies now");
  }

  void ConcludeDictionary(std::vector<std::byte>& bytes) {
    auto dictionary = ZstdDictionary::Make(bytes);
    if (!dictionary) return damaged_types_.push_back(V2Section::kDictionary);
    const auto same = [&](const ZstdDictionary& other) {
      return other.id() == dictionary.value().id();
    };
    if (std::any_of(scan_.dictionaries.begin(), scan_.dictionaries.end(), same)) return;
    scan_.dictionaries.push_back(std::move(dictionary).value());
    scan_.dictionary_sections.push_back(std::move(bytes));
  }

  const RangeReader& source_;
  FileWindow& window_;
  const std::uint64_t size_bytes_;
  SalvageScan scan_;
  bool header_is_whole_ = false;
  bool has_schema_ = false;
  bool has_footer_ = false;  // At least one commit has one.
  bool has_key_directory_ = false;
  // The types of listed sections that are damaged, or whose contents are.
  std::vector<std::uint32_t> damaged_types_;
  std::map<std::uint64_t, std::pair<std::uint32_t, std::vector<std::byte>>> sections_;  // By place.
  std::vector<const std::vector<std::byte>*> column_copies_;  // Among them.
};

}  // namespace

Result<std::optional<SalvageScan>> ScanForSalvage(const RangeReader& source, FileWindow& window) {
  return SalvageScanner(source, window).Run();
}

}  // namespace ffrecord
