#include <string>
#include <utility>

#include "libffrecord/base/endian.h"
#include "libffrecord/format/user_metadata.h"
#include "libffrecord/io/append_file.h"
#include "libffrecord/record/index/dictionary_set.h"
#include "libffrecord/record/index/file_index.h"
#include "libffrecord/record/write/locked_file.h"
#include "libffrecord/record/write/record_writer_impl.h"
#include "libffrecord/record/write/uncommitted_end.h"

namespace ffrecord {
namespace {

// With more bytes between commits, readers might not find the last one (kCommitSearchBytesMax).
constexpr std::uint64_t kCommitIntervalBytesMax = std::uint64_t{64} << 20;
constexpr std::uint64_t kCommitIntervalBytesMin = std::uint64_t{1} << 20;

// Readers see a commit as soon as its tail is there; its body is durable by then.
class AppendOutput final : public V2Output {
 public:
  explicit AppendOutput(AppendFile file) : file_(std::move(file)) {}

  Result<void> Append(std::span<const std::byte> bytes) override { return file_.Append(bytes); }
  Result<void> AppendZeros(std::uint64_t count) override { return file_.AppendZeros(count); }
  std::uint64_t size_bytes() const noexcept override { return file_.size_bytes(); }
  Result<void> Barrier() override { return file_.Sync(); }
  Result<void> Commit() override { return file_.Commit(); }
  Result<void> CutTo(std::uint64_t size_bytes) override { return file_.CutTo(size_bytes); }
  // Bytes below the last commit.
  Result<void> Read(std::uint64_t offset_bytes, std::span<std::byte> destination) {
    return file_.Read(offset_bytes, destination);
  }

 private:
  AppendFile file_;
};

Error Refused(const std::string& path, const std::string& found) {
  return {ErrorCode::kInvalidArgument, "append to " + path + ": " + found};
}

Result<void> CheckOptions(const std::string& path, const RecordWriter::AppendOptions& options) {
  if (options.compression_level < kZstdLevelMin || options.compression_level > kZstdLevelMax)
    return Refused(path, "compression_level is " + std::to_string(options.compression_level) +
                             ", must be 1 to 19");
  if (options.commit_interval_bytes < kCommitIntervalBytesMin ||
      options.commit_interval_bytes > kCommitIntervalBytesMax)
    return Refused(path, "commit_interval_bytes is " +
                             std::to_string(options.commit_interval_bytes) +
                             ", must be 1 MiB to 64 MiB");
  return {};
}

Result<void> CheckFeatures(const std::string& path, const V2Layout& layout,
                           const RecordWriter::AppendOptions& options) {
  const V2Header& header = layout.header;
  if (!layout.damaged_front.empty())
    return Error{ErrorCode::kCorruption,
                 "append to " + path + ": " + layout.damaged_front +
                     " is damaged; run 'ffrecord repair' to make a whole file, and append to that"};
  const std::uint64_t unknown = header.append_features & ~V2Header::kKnownAppend;
  if (unknown != 0)
    return Refused(path, "it has features that this library cannot extend (bits " +
                             std::to_string(unknown) + "); use a newer library");
  if (options.compress.value_or(false) && (header.required_features & V2Header::kZstd) == 0)
    return Refused(path,
                   "it was begun without compression, so none of its records may be compressed; "
                   "append without, or write a new file");
  return {};
}

// The bytes behind the newest whole commit will be cut off, so they must be only what a killed
// append leaves.
Result<void> CheckEnd(const LockedFile& source, const FileIndex& index) {
  const V2Layout& layout = *index.v2_layout();
  const std::uint64_t size_bytes = source.file_size_bytes(0);
  if (layout.commit_size_bytes == size_bytes) return {};
  FileWindow window(source, 0);
  const auto end = FFR_TRY(ExamineEnd(source, window, index));
  if (end.sign_of_commit.empty()) return {};
  return Error{ErrorCode::kCorruption,
               "append to " + source.file_name(0) + ": the last " +
                   std::to_string(size_bytes - layout.commit_size_bytes) +
                   " bytes look like a damaged commit (" + end.sign_of_commit +
                   "), and appending would cut them off; keep this file, run 'ffrecord repair' to "
                   "make a new one of all intact records, and append to that"};
}

bool StateTheSame(const V2Footer& a, const V2Footer& b) {
  const auto sections_of = [](const V2Footer& footer) {
    std::vector<V2Section> sections = footer.sections;
    std::erase_if(sections,
                  [](const auto& one) { return one.type == V2Section::kSegmentDirectory; });
    return sections;
  };
  return a.record_count == b.record_count && a.fingerprint == b.fingerprint &&
         sections_of(a) == sections_of(b);
}

// A group of writes that was killed leaves records between commits that state the same, and do not
// list these records: they are cut off, too.
Result<std::uint64_t> SizeOfFirstEqualCommit(const RangeReader& source, const V2Layout& layout) {
  const V2Source file{source, 0, layout.header.file_id};
  std::uint64_t size_bytes = layout.commit_size_bytes;
  for (std::uint64_t older_bytes = layout.footer.previous_commit_bytes; older_bytes != 0;) {
    const auto older = ReadCommit(file, older_bytes);
    if (!older && older.error().code != ErrorCode::kCorruption) return older.error();
    if (!older || !StateTheSame(older.value().footer, layout.footer)) break;
    size_bytes = older_bytes;
    older_bytes = older.value().footer.previous_commit_bytes;
  }
  return size_bytes;
}

Result<V2Resume> ResumeFrom(const RangeReader& source, const V2Layout& layout) {
  V2Resume resume;
  resume.footer = layout.footer;
  const IndexGeometry geometry{layout.footer.record_count, layout.header.pages_per_segment};
  for (std::uint64_t i = 0; i < geometry.segment_count(); ++i)
    resume.segment_offsets.push_back(
        LoadLittleEndian<std::uint64_t>(layout.directory.bytes, 8 * i));
  const std::uint64_t entries_per_segment = kIndexEntriesPerPage * geometry.pages_per_segment;
  if (layout.footer.record_count % entries_per_segment == 0) return resume;

  const std::uint64_t last = geometry.segment_count() - 1;
  const auto pages =
      FFR_TRY(source.MapIndex(0, resume.segment_offsets.back(), geometry.segment_size_bytes(last)));
  for (std::uint64_t i = 0; i < pages.bytes.size() / kIndexPageSizeBytes; ++i) {
    const std::uint64_t page = last * geometry.pages_per_segment + i;
    FFR_TRY(CheckIndexPage(pages.bytes.subspan(i * kIndexPageSizeBytes, kIndexPageSizeBytes),
                           layout.header.file_id, page, geometry.entries_in_page(page)));
  }
  resume.last_pages.assign(pages.bytes.begin(), pages.bytes.end());
  return resume;
}

// Empty if there is none.
Result<std::vector<std::byte>> NewestDictionary(const RangeReader& source, const V2Layout& layout) {
  const V2Section* newest = nullptr;
  for (const V2Section& section : layout.footer.sections)
    if (section.type == V2Section::kDictionary) newest = &section;
  if (newest == nullptr) return std::vector<std::byte>();
  return FetchDictionary(source, 0, layout.header.file_id, *newest);
}

Result<std::vector<KeyRun>> KeyRunsOf(const RangeReader& source, const V2Layout& layout) {
  const V2Section* section = layout.footer.Find(V2Section::kKeyDirectory);
  if (section == nullptr) return std::vector<KeyRun>();
  const V2Source file{source, 0, layout.header.file_id};
  const auto directory = FFR_TRY(file.FetchSection(*section));
  return DecodeKeyDirectory(directory.bytes, layout.footer_offset_bytes);
}

}  // namespace

Result<RecordWriter> AppendToRecords(const std::filesystem::path& path,
                                     const RecordWriter::AppendOptions& options,
                                     std::unique_ptr<IoEngine> engine) {
  const std::string name = path.string();
  FFR_TRY(CheckOptions(name, options));
  std::vector<std::byte> metadata;
  if (options.metadata) metadata = FFR_TRY(EncodeMetadata(*options.metadata));
  AppendFile file = FFR_TRY(AppendFile::Open(path, std::move(engine)));
  V2Header header;
  Schema schema;
  V2Resume resume;
  std::vector<std::byte> dictionary;
  std::vector<KeyRun> key_runs;
  std::optional<ColumnCopyWriter> copies;
  std::optional<std::string> key_column;
  std::vector<std::byte> facts_section;
  std::uint64_t size_bytes = 0;
  {
    const LockedFile source(file);
    const auto indexes = FFR_TRY(OpenIndexes(source, {}));
    const V2Layout* layout = indexes.front()->v2_layout();
    if (layout == nullptr)
      return Refused(name, "it has format version 1, which cannot be extended; pack it again");
    FFR_TRY(CheckFeatures(name, *layout, options));
    FFR_TRY(CheckEnd(source, *indexes.front()));
    header = layout->header;
    schema = indexes.front()->schema();
    resume = FFR_TRY(ResumeFrom(source, *layout));
    dictionary = FFR_TRY(NewestDictionary(source, *layout));
    key_runs = FFR_TRY(KeyRunsOf(source, *layout));
    if ((header.append_features & V2Header::kColumnCopies) != 0)
      copies = FFR_TRY(ColumnCopyWriter::Resume(source, *layout, schema));
    size_bytes = FFR_TRY(SizeOfFirstEqualCommit(source, *layout));
    const V2Source file_source{source, 0, header.file_id};
    if (auto facts = FFR_TRY(ReadFacts(file_source, layout->footer))) {
      // Those of a file without records lie beside the header, of which they are the copy.
      if (layout->footer.Find(V2Section::kFacts)->offset_bytes < V2Footer::kAlignmentBytes)
        facts_section = EncodeV2Facts(*facts);
      key_column = std::move(facts->key_column);
    }
  }
  FFR_TRY(file.BeginAt(size_bytes));
  auto output = std::make_unique<AppendOutput>(std::move(file));
  AppendOutput* const written = output.get();  // Lives as long as the writer's keys.
  V2Stream stream(*output, header, std::move(resume));
  auto impl = std::make_unique<RecordWriter::Impl>(name, std::move(schema), std::move(output),
                                                   std::move(stream));
  const bool may_compress = (header.required_features & V2Header::kZstd) != 0;
  if (options.compress.value_or(may_compress) && dictionary.empty())
    impl->compressor.emplace(options.compression_level);
  else if (options.compress.value_or(may_compress))
    impl->compressor.emplace(FFR_TRY(ZstdCompressor::Make(options.compression_level, dictionary)));
  impl->copies = std::move(copies);
  if ((header.append_features & V2Header::kKeys) != 0)
    impl->keys.emplace(KeyWriter::Options{
        .path = path,
        .runs = std::move(key_runs),
        .read_at = [written](std::uint64_t offset_bytes, std::span<std::byte> destination) {
          return written->Read(offset_bytes, destination);
        }});
  impl->key_column = std::move(key_column);
  impl->facts_section = std::move(facts_section);
  impl->metadata_section = std::move(metadata);
  impl->commit_interval_bytes = options.commit_interval_bytes;
  return RecordWriter(std::move(impl));
}

}  // namespace ffrecord
