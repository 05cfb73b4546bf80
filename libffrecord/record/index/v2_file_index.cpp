#include <cerrno>
#include <utility>

#include "libffrecord/format/record_form.h"
#include "libffrecord/format/user_metadata.h"
#include "libffrecord/format/v2_index.h"
#include "libffrecord/record/index/dictionary_set.h"
#include "libffrecord/record/index/file_index.h"
#include "libffrecord/record/index/index_pages.h"
#include "libffrecord/record/index/key_index.h"

namespace ffrecord {
namespace {

class V2Index final : public FileIndex {
 public:
  V2Index(const RangeReader& source, std::uint32_t file, V2Layout layout, Schema schema,
          std::vector<std::string> warnings)
      : source_(source),
        file_(file),
        layout_(std::move(layout)),
        schema_(std::move(schema)),
        warnings_(std::move(warnings)),
        formed_(source.form(file).records, schema_),
        record_seeds_(layout_.header.file_id),
        dictionaries_(source, file, layout_.header.file_id, layout_.footer),
        keys_(source, file, layout_),
        pages_({source, file, layout_.header.file_id,
                IndexGeometry{layout_.footer.record_count, layout_.header.pages_per_segment},
                layout_.directory.bytes, layout_.footer_offset_bytes,
                (layout_.header.required_features & V2Header::kZstd) != 0,
                formed_.form() != RecordForm::kPlain}) {}

  // False if there was no memory to keep track of the pages.
  explicit operator bool() const noexcept { return static_cast<bool>(pages_); }

  std::uint32_t format_version() const noexcept override { return 2; }
  std::uint64_t record_count() const noexcept override { return layout_.footer.record_count; }
  const Schema& schema() const noexcept override { return schema_; }
  const Digest128& fingerprint() const noexcept override { return layout_.footer.fingerprint; }
  std::span<const std::string> warnings() const noexcept override { return warnings_; }

  ErrorCode Locate(std::uint64_t index, RecordLocation& location) const override {
    const std::byte* entry = pages_.CheckedEntry(index);
    if (entry == nullptr) {
      auto found = pages_.Entry(index);
      if (!found) return found.error().code;
      entry = found.value();
    }
    location = DecodeIndexEntry(entry);
    if (!pages_.IsSane(location)) return ErrorCode::kCorruption;
    return location.compressed() ? dictionaries_.Load() : ErrorCode::kOk;
  }

  void AddLacking(std::uint64_t index, std::vector<IndexPart>& parts) const override {
    if (pages_.CheckedEntry(index) == nullptr)
      if (auto segment = pages_.Lacking(index)) parts.push_back(*std::move(segment));
    // Nearly all records of a file that has dictionaries are compressed with them.
    if (auto dictionaries = dictionaries_.Lacking()) parts.push_back(*std::move(dictionaries));
  }

  void Take(const IndexPart& part, const std::shared_ptr<const void>& owner,
            std::span<const std::span<const std::byte>> pieces) const override {
    if (part.number == IndexPart::kDictionaries)
      dictionaries_.Take(pieces);
    else
      pages_.Take(part, owner, pieces.front());
  }

  void Prefetch(std::uint64_t index) const noexcept override {
    if (const std::byte* entry = pages_.CheckedEntry(index); entry != nullptr)
      IndexPages::PrefetchEntry(entry);
    else
      pages_.PrefetchPage(index);
  }

  const IndexPages* pages() const noexcept override { return &pages_; }

  bool Matches(std::uint64_t index, std::uint64_t check,
               std::span<const std::byte> stored) const noexcept override {
    static_assert(static_cast<int>(PlaceTag::kRecord) == 0, "the tag changes no bit of an index");
    return Xxh3(stored, record_seeds_.Of(index)) == check;
  }

  Result<Metadata> ReadMetadata() const override {
    const V2Section* section = layout_.footer.Find(V2Section::kMetadata);
    if (section == nullptr) return Metadata{};
    const V2Source source{source_, file_, layout_.header.file_id};
    const auto fetched = FFR_TRY(source.FetchSection(*section));
    return DecodeMetadata(fetched.bytes);
  }

  Result<void> Decompress(std::span<const std::byte> stored,
                          std::span<std::byte> raw) const override {
    if (formed_.form() != RecordForm::kPlain) return formed_.FormInto(stored, raw);
    return DecompressZstd(stored, raw, dictionaries_.loaded());
  }

  Result<std::size_t> FormWithin(std::span<std::byte> stored,
                                 std::uint64_t record_size_bytes) const override {
    return formed_.FormWithin(stored, record_size_bytes);
  }

  bool has_keys() const noexcept override {
    return (layout_.header.append_features & V2Header::kKeys) != 0;
  }

  Result<std::optional<std::uint64_t>> FindKey(std::span<const std::byte> key,
                                               const RangeReader& bytes) const override {
    return keys_.Find(key, bytes);
  }

  Result<RecordReader::Keys> ReadKeys() const override { return keys_.ReadAll(); }

  Result<RecordReader::KeyOrigin> ReadKeyOrigin() const override {
    if (!has_keys()) return RecordReader::KeyOrigin{};
    RecordReader::KeyOrigin origin{.has_keys = true};
    const V2Source source{source_, file_, layout_.header.file_id};
    if (auto facts = FFR_TRY(ReadFacts(source, layout_.footer)))
      origin.column = std::move(facts->key_column);
    return origin;
  }

  const V2Layout* v2_layout() const noexcept override { return &layout_; }

  std::string Explain(std::uint64_t index) const override {
    const auto entry = pages_.Entry(index);
    if (!entry) return entry.error().message;
    RecordLocation location;
    if (Locate(index, location) == ErrorCode::kOk) return {};
    return "its index entry, " + std::to_string(location.stored_size_bytes) + " bytes at " +
           std::to_string(location.offset_bytes) + " for " +
           std::to_string(location.raw_size_bytes) + ", is impossible";
  }

 private:
  const RangeReader& source_;
  const std::uint32_t file_;
  const V2Layout layout_;
  const Schema schema_;
  const std::vector<std::string> warnings_;
  const FormedRecords formed_;
  const PlaceSeeds record_seeds_;
  DictionarySet dictionaries_;
  KeyIndex keys_;
  IndexPages pages_;
};

}  // namespace

namespace {

// The schema, or its copy among the facts if it is damaged.
Result<Schema> ReadSchema(const V2Source& source, const V2Section& section, V2Layout& layout) {
  const auto fetched = source.FetchSection(section);
  auto schema = fetched ? Schema::Decode(fetched.value().bytes) : fetched.error();
  if (schema || schema.error().code != ErrorCode::kCorruption) return schema;
  const auto facts = ReadFacts(source, layout.footer);
  if (!facts || !facts.value()) return schema;
  layout.damaged_front = "the schema";
  return Schema::Decode(facts.value()->schema);
}

}  // namespace

Result<std::unique_ptr<FileIndex>> OpenV2Index(const V2Source& source, const V2Header& header,
                                               V2Commit commit, std::vector<std::string> warnings,
                                               bool header_is_copy) {
  V2Layout layout;
  if (header_is_copy) layout.damaged_front = "the header";
  layout.header = header;
  layout.footer_offset_bytes = commit.footer_offset_bytes;
  layout.commit_size_bytes = commit.size_bytes;
  layout.footer = std::move(commit.footer);

  // Compares the record count with the room in the file, by division, before any allocation depends
  // on it.
  const IndexGeometry geometry{layout.footer.record_count, header.pages_per_segment};
  const V2Section* directory = layout.footer.Find(V2Section::kSegmentDirectory);
  if (directory == nullptr || directory->size_bytes / 8 != geometry.segment_count() ||
      directory->size_bytes % 8 != 0 ||
      geometry.page_count() > layout.footer_offset_bytes / kIndexPageSizeBytes)
    return Error{ErrorCode::kCorruption, "footer: the index does not fit " +
                                             std::to_string(layout.footer.record_count) +
                                             " records"};
  layout.directory = FFR_TRY(source.FetchSection(*directory));
  if (layout.directory.owner == nullptr) {  // A part of what was read, which does not stay.
    auto copy = std::make_shared<std::vector<std::byte>>(layout.directory.bytes.begin(),
                                                         layout.directory.bytes.end());
    layout.directory.bytes = *copy;
    layout.directory.owner = std::move(copy);
  }

  const V2Section* schema = layout.footer.Find(V2Section::kSchema);
  if ((schema != nullptr) != ((header.required_features & V2Header::kSchema) != 0))
    return Error{ErrorCode::kCorruption, "footer: schema section and feature bit do not agree"};
  if (layout.footer.Find(V2Section::kDictionary) != nullptr &&
      (header.required_features & V2Header::kDictionary) == 0)
    return Error{ErrorCode::kCorruption, "footer: a dictionary without its feature bit"};
  Schema columns;
  if (schema != nullptr) columns = FFR_TRY(ReadSchema(source, *schema, layout));
  if (!layout.damaged_front.empty())
    warnings.push_back(layout.damaged_front +
                       " at the front of the file is damaged, and its copy at the end is used; run "
                       "'ffrecord repair' to make a whole file");
  auto index = std::make_unique<V2Index>(source.reader.origin(), source.file, std::move(layout),
                                         std::move(columns), std::move(warnings));
  if (!*index)
    return Error{
        ErrorCode::kIo,
        "no memory to keep track of " + std::to_string(geometry.page_count()) + " index pages",
        ENOMEM};
  return std::unique_ptr<FileIndex>(std::move(index));
}

}  // namespace ffrecord
