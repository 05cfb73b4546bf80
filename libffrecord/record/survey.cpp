#include "libffrecord/record/survey.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "libffrecord/format/user_metadata.h"
#include "libffrecord/format/v2_footer.h"
#include "libffrecord/record/coalesce.h"
#include "libffrecord/record/magic_scan.h"
#include "libffrecord/record/v2_commit.h"

namespace ffrecord {
namespace {

constexpr Magic kSectionMagic{0xe5, 'S', 'E', 'C'};
constexpr Magic kTailMagic{0xe5, 'F', 'F', 'R'};
constexpr std::size_t kTailIdOffset = 32;

class Surveyor {
 public:
  Surveyor(const RangeReader& source, FileWindow& window)
      : source_(source), window_(window), size_bytes_(source.file_size_bytes(0)) {}

  Result<std::optional<Survey>> Run() {
    if (!FFR_TRY(FindHeader())) return std::optional<Survey>();
    const V2Source source{source_, 0, survey_.header.file_id};
    if (auto commit = FFR_TRY(FindNewestCommit(source))) {
      survey_.record_count = commit->footer.record_count;
      for (const V2Section& section : commit->footer.sections) Take(section);
    } else {
      survey_.losses.push_back("footer and tail");
    }
    // A commit's list is complete; without one, or with a hole in it, the whole file is searched.
    if (!survey_.record_count || is_incomplete_) FindSections();
    Conclude();
    return std::optional<Survey>(std::move(survey_));
  }

 private:
  // The header, or from a tail at least the id.
  Result<bool> FindHeader() {
    const auto head = window_.View(0, std::min<std::uint64_t>(size_bytes_, 128));
    if (head) {
      auto header = DecodeV2Header(head.value());
      if (header) {
        survey_.header = header.value();
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
      survey_.header.file_id = id;
      survey_.losses.push_back("the header: alignment is 1 now");
      return true;
    }
    return false;
  }

  Result<std::optional<V2Commit>> FindNewestCommit(const V2Source& source) {
    auto commit = ReadCommit(source, size_bytes_);
    if (commit) return std::optional<V2Commit>(std::move(commit).value());
    if (commit.error().code != ErrorCode::kCorruption) return std::move(commit).error();
    return FindCommitBelow(source, size_bytes_);
  }

  // Notes the section if it is whole.
  bool Take(const V2Section& section) {
    const bool wanted = section.type == V2Section::kSchema ||
                        section.type == V2Section::kDictionary ||
                        section.type == V2Section::kMetadata;
    if (!wanted) return true;
    if (section.size_bytes > V2Section::kMetadataSizeBytesMax) return false;
    const auto bytes = window_.View(section.offset_bytes, section.size_bytes);
    const bool whole = bytes && SectionCheck(bytes.value(), survey_.header.file_id,
                                             section.offset_bytes) == section.check;
    if (whole)
      sections_.insert_or_assign(
          section.offset_bytes,
          std::pair(section.type, std::vector(bytes.value().begin(), bytes.value().end())));
    is_incomplete_ = is_incomplete_ || !whole;
    return whole;
  }

  void FindSections() {
    for (std::uint64_t at = FindMagic(window_, size_bytes_, kSectionMagic, 0); at < size_bytes_;
         at = FindMagic(window_, size_bytes_, kSectionMagic, at + 1)) {
      const auto bytes = window_.View(at, V2SectionHeader::kEncodedSizeBytes);
      if (!bytes) continue;
      const auto header = DecodeV2SectionHeader(bytes.value(), survey_.header.file_id, at);
      if (!header) continue;
      const std::uint64_t offset = at + V2SectionHeader::kEncodedSizeBytes;
      if (header.value().size_bytes > size_bytes_ - offset) continue;
      Take({header.value().type, offset, header.value().size_bytes, header.value().check});
    }
  }

  // Of several schemas and metadata the last counts: it is of the newest commit.
  void Conclude() {
    bool has_schema = false;
    for (auto& [offset, section] : sections_) {
      auto& [type, bytes] = section;
      if (type == V2Section::kSchema) {
        auto schema = Schema::Decode(bytes);
        if (schema) survey_.schema = std::move(schema).value();
        has_schema = bool(schema);
      } else if (type == V2Section::kMetadata) {
        auto metadata = DecodeMetadata(bytes);
        if (metadata) survey_.metadata = std::move(metadata).value();
      } else {
        ConcludeDictionary(bytes);
      }
    }
    V2Header& header = survey_.header;
    if ((header.append_features & V2Header::kKeys) != 0)
      survey_.losses.push_back("the keys: records are found by index only");
    if ((header.append_features & V2Header::kColumnCopies) != 0)
      survey_.losses.push_back("the column copies: columns are read out of the records now");
    if (!header_is_whole_) header.required_features = V2Header::kZstd;
    if (!has_schema && (header.required_features & V2Header::kSchema) != 0)
      survey_.losses.push_back("the schema: records are plain bytes now");
    if (survey_.dictionaries.empty() && (header.required_features & V2Header::kDictionary) != 0)
      survey_.losses.push_back("the dictionary, and the records that need it");
    else if (is_incomplete_)
      survey_.losses.push_back("a section that the footer lists");
  }

  void ConcludeDictionary(std::vector<std::byte>& bytes) {
    auto dictionary = ZstdDictionary::Make(bytes);
    if (!dictionary) return;
    const auto same = [&](const ZstdDictionary& other) {
      return other.id() == dictionary.value().id();
    };
    if (std::any_of(survey_.dictionaries.begin(), survey_.dictionaries.end(), same)) return;
    survey_.dictionaries.push_back(std::move(dictionary).value());
    survey_.dictionary_sections.push_back(std::move(bytes));
  }

  const RangeReader& source_;
  FileWindow& window_;
  const std::uint64_t size_bytes_;
  Survey survey_;
  bool header_is_whole_ = false;
  bool is_incomplete_ = false;  // The newest footer lists a section that is damaged.
  std::map<std::uint64_t, std::pair<std::uint32_t, std::vector<std::byte>>> sections_;  // By place.
};

}  // namespace

Result<std::optional<Survey>> SurveyDamagedFile(const RangeReader& source, FileWindow& window) {
  return Surveyor(source, window).Run();
}

}  // namespace ffrecord
