#include <atomic>
#include <cerrno>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/format/user_metadata.h"
#include "libffrecord/format/v2_index.h"
#include "libffrecord/io/page_cache.h"
#include "libffrecord/record/dictionary_set.h"
#include "libffrecord/record/file_index.h"
#include "libffrecord/record/kept_mappings.h"
#include "libffrecord/record/key_index.h"

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
        geometry_{layout_.footer.record_count, layout_.header.pages_per_segment},
        dictionaries_(source, file, layout_.header.file_id, layout_.footer),
        keys_(source, file, layout_),
        segments_(geometry_.segment_count()),
        checked_pages_(geometry_.page_count() / 64 + 1) {}

  // Whether there was memory for what keeps track of the pages. Else good for nothing.
  explicit operator bool() const noexcept { return segments_ && checked_pages_; }

  std::uint32_t format_version() const noexcept override { return 2; }
  std::uint64_t record_count() const noexcept override { return layout_.footer.record_count; }
  const Schema& schema() const noexcept override { return schema_; }
  const Digest128& fingerprint() const noexcept override { return layout_.footer.fingerprint; }
  std::span<const std::string> warnings() const noexcept override { return warnings_; }

  ErrorCode Locate(std::uint64_t index, RecordLocation& location) const override {
    const std::uint64_t page_number = index / kIndexEntriesPerPage;
    const std::byte* page = CheckedPage(page_number);
    if (page == nullptr) {
      auto found = Page(page_number);
      if (!found) return found.error().code;
      page = found.value();
    }
    const auto bytes = std::span(page, kIndexPageSizeBytes);
    location = LoadIndexEntry(bytes, index % kIndexEntriesPerPage);
    if (!IsSane(location)) return ErrorCode::kCorruption;
    return location.compressed() ? dictionaries_.Load() : ErrorCode::kOk;
  }

  void Prefetch(std::uint64_t index) const noexcept override {
    const std::uint64_t page_number = index / kIndexEntriesPerPage;
    if (const std::byte* page = CheckedPage(page_number); page != nullptr) {
      PrefetchIndexEntry(page, index % kIndexEntriesPerPage);
      return;
    }
    const std::uint64_t segment_number = page_number / geometry_.pages_per_segment;
    const std::byte* segment = segments_[segment_number].load(std::memory_order_acquire);
    if (segment != nullptr)
      WillNeed({segment + page_number % geometry_.pages_per_segment * kIndexPageSizeBytes,
                kIndexPageSizeBytes});
  }

  bool Matches(std::uint64_t index, const RecordLocation& location,
               std::span<const std::byte> stored) const noexcept override {
    return Xxh3(stored, SeedOf(layout_.header.file_id, PlaceTag::kRecord, index)) == location.check;
  }

  Result<Metadata> ReadMetadata() const override {
    const V2Section* section = layout_.footer.Find(V2Section::kMetadata);
    if (section == nullptr) return Metadata{};
    if (section->size_bytes > V2Section::kMetadataSizeBytesMax)
      return Error{ErrorCode::kCorruption, "metadata: section is larger than 16 MiB"};
    const V2Source source{source_, file_, layout_.header.file_id};
    const auto fetched = FFR_TRY(source.FetchSection(*section));
    return DecodeMetadata(fetched.bytes);
  }

  Result<void> Expand(std::span<const std::byte> stored, std::span<std::byte> raw) const override {
    return ExpandZstd(stored, raw, dictionaries_.loaded());
  }

  Result<std::optional<std::uint64_t>> FindKey(std::span<const std::byte> key) const override {
    return keys_.Find(key);
  }

  const V2Layout* v2_layout() const noexcept override { return &layout_; }

  std::string Explain(std::uint64_t index) const override {
    const auto page = Page(index / kIndexEntriesPerPage);
    if (!page) return page.error().message;
    RecordLocation location;
    if (Locate(index, location) == ErrorCode::kOk) return {};
    return "its index entry, " + std::to_string(location.stored_size_bytes) + " bytes at " +
           std::to_string(location.offset_bytes) + " for " +
           std::to_string(location.raw_size_bytes) + ", is impossible";
  }

 private:
  bool IsSane(const RecordLocation& location) const noexcept {
    constexpr std::uint64_t kPayloadOffsetMin =
        V2Header::kEncodedSizeBytes + V2RecordHeader::kEncodedSizeBytes;
    return location.offset_bytes >= kPayloadOffsetMin &&
           location.offset_bytes <= layout_.footer_offset_bytes &&
           location.stored_size_bytes <= layout_.footer_offset_bytes - location.offset_bytes &&
           SizesAreSane(location.stored_size_bytes, location.raw_size_bytes,
                        (layout_.header.required_features & V2Header::kZstd) != 0);
  }

  // The page if it was checked before, else null: the way that nearly every look-up takes.
  const std::byte* CheckedPage(std::uint64_t page_number) const noexcept {
    const std::uint64_t word = checked_pages_[page_number / 64].load(std::memory_order_acquire);
    if ((word >> (page_number % 64) & 1) == 0) return nullptr;
    const std::uint64_t segment = page_number / geometry_.pages_per_segment;
    return segments_[segment].load(std::memory_order_acquire) +
           page_number % geometry_.pages_per_segment * kIndexPageSizeBytes;
  }

  // The page, fetched and checked now.
  Result<const std::byte*> Page(std::uint64_t page_number) const {
    const std::uint64_t segment_number = page_number / geometry_.pages_per_segment;
    const std::byte* segment = segments_[segment_number].load(std::memory_order_acquire);
    if (segment == nullptr) segment = FFR_TRY(FetchSegment(segment_number));
    const std::byte* page =
        segment + page_number % geometry_.pages_per_segment * kIndexPageSizeBytes;
    auto checked = CheckIndexPage(std::span(page, kIndexPageSizeBytes), layout_.header.file_id,
                                  page_number, geometry_.entries_in_page(page_number));
    if (!checked) return std::move(checked).error();
    checked_pages_[page_number / 64].fetch_or(std::uint64_t{1} << (page_number % 64),
                                              std::memory_order_release);
    return page;
  }

  Result<const std::byte*> FetchSegment(std::uint64_t segment_number) const {
    const auto offset_bytes =
        LoadLittleEndian<std::uint64_t>(layout_.directory.bytes, 8 * segment_number);
    const std::uint64_t size_bytes = geometry_.segment_size_bytes(segment_number);
    if (offset_bytes % kIndexPageSizeBytes != 0 || offset_bytes < V2Header::kEncodedSizeBytes ||
        offset_bytes > layout_.footer_offset_bytes ||
        size_bytes > layout_.footer_offset_bytes - offset_bytes)
      return Error{ErrorCode::kCorruption, "index segment " + std::to_string(segment_number) +
                                               " does not lie between header and footer"};
    auto mapped = FFR_TRY(source_.MapIndex(file_, offset_bytes, size_bytes));
    FFR_ASSERT(mapped.bytes.size() == size_bytes);
    // If two threads fetch one segment, both copies are kept, and either will do.
    owners_.Keep(std::move(mapped.owner));
    segments_[segment_number].store(mapped.bytes.data(), std::memory_order_release);
    return mapped.bytes.data();
  }

  const RangeReader& source_;
  const std::uint32_t file_;
  const V2Layout layout_;
  const Schema schema_;
  const std::vector<std::string> warnings_;
  const IndexGeometry geometry_;
  DictionarySet dictionaries_;
  KeyIndex keys_;
  ZeroedAtomics<const std::byte*> segments_;    // Null until fetched.
  ZeroedAtomics<std::uint64_t> checked_pages_;  // One bit for each page.
  mutable KeptOwners owners_;
};

}  // namespace

Result<std::unique_ptr<FileIndex>> OpenV2Index(const V2Source& source, const V2Header& header,
                                               V2Commit commit, std::vector<std::string> warnings) {
  V2Layout layout;
  layout.header = header;
  layout.footer_offset_bytes = commit.footer_offset_bytes;
  layout.commit_size_bytes = commit.size_bytes;
  layout.footer = std::move(commit.footer);

  // Divided, and compared with what the file has room for, before anything is allocated by it.
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
  if (schema != nullptr) {
    if (schema->size_bytes > V2Section::kSchemaSizeBytesMax)
      return Error{ErrorCode::kCorruption, "schema: section is larger than 1 MiB"};
    const auto section = FFR_TRY(source.FetchSection(*schema));
    columns = FFR_TRY(Schema::Decode(section.bytes));
  }
  auto index = std::make_unique<V2Index>(source.reader, source.file, std::move(layout),
                                         std::move(columns), std::move(warnings));
  if (!*index)
    return Error{
        ErrorCode::kIo,
        "no memory to keep track of " + std::to_string(geometry.page_count()) + " index pages",
        ENOMEM};
  return std::unique_ptr<FileIndex>(std::move(index));
}

}  // namespace ffrecord
