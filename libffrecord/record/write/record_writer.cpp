#include <ffrecord/record_writer.h>

#include <string>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/random.h"
#include "libffrecord/format/user_metadata.h"
#include "libffrecord/format/v2_facts.h"
#include "libffrecord/format/v2_record.h"
#include "libffrecord/io/atomic_file.h"
#include "libffrecord/record/write/record_writer_impl.h"

namespace ffrecord {
namespace {

// Larger records could put more bytes between two commits than readers search.
constexpr std::uint64_t kAppendedRecordSizeBytesMax = std::uint64_t{512} << 20;

Result<void> CheckOptions(const RecordWriter::Options& options) {
  const auto invalid = [](const std::string& found) {
    return Error{ErrorCode::kInvalidArgument, "create record file: " + found};
  };
  if (options.alignment_bytes != 1 && options.alignment_bytes != 512 &&
      options.alignment_bytes != 4096)
    return invalid("alignment_bytes is " + std::to_string(options.alignment_bytes) +
                   ", must be 1, 512 or 4096");
  if (options.compress &&
      (options.compression_level < kZstdLevelMin || options.compression_level > kZstdLevelMax))
    return invalid("compression_level is " + std::to_string(options.compression_level) +
                   ", must be 1 to 19");
  if ((!options.dictionary.empty() || options.train_dictionary_bytes != 0) && !options.compress)
    return invalid("a dictionary is for compressed records; set compress too");
  if (!options.dictionary.empty() && options.train_dictionary_bytes != 0)
    return invalid("it has a dictionary and is to train one; choose");
  if (options.dictionary.size() > V2Section::kDictionarySizeBytesMax)
    return invalid("dictionary has more than 16 MiB");
  if (!options.dictionary.empty())
    if (const auto usable = ZstdDictionary::Make(options.dictionary); !usable)
      return invalid(usable.error().message + "; make one with `zstd --train`");
  if (options.train_dictionary_bytes != 0 &&
      (options.train_dictionary_bytes < RecordWriter::kTrainedDictionaryBytesMin ||
       options.train_dictionary_bytes > V2Section::kDictionarySizeBytesMax))
    return invalid("train_dictionary_bytes is " + std::to_string(options.train_dictionary_bytes) +
                   ", must be 0 or 1,024 to 16 MiB");
  return {};
}

Result<void> CheckKeyColumn(const RecordWriter::Options& options, const Schema& schema) {
  if (options.key_column.empty()) return {};
  const int column = schema.Find(options.key_column);
  if (options.keys && column >= 0 && schema.width_bytes(static_cast<std::size_t>(column)) == 0)
    return {};
  return Error{ErrorCode::kInvalidArgument,
               "create record file: key_column is '" + options.key_column +
                   "', must be a column of utf8 or bytes, of a file with keys"};
}

}  // namespace

Error RecordWriter::Impl::Invalid(const std::string& found) const {
  return {ErrorCode::kInvalidArgument,
          path + ": record " + std::to_string(record_count()) + ": " + found};
}

Result<void> RecordWriter::Impl::Kept(Result<void> result) {
  if (!result && !broken) broken = result.error();
  return result;
}

Result<void> RecordWriter::Impl::Usable() const {
  if (closed) return Error{ErrorCode::kInvalidArgument, path + ": the writer is closed"};
  if (broken) return *broken;
  return {};
}

Result<void> RecordWriter::Impl::NoGroup() const {
  if (!stream.has_mark()) return {};
  return Error{ErrorCode::kInvalidArgument,
               path + ": a group of writes is open, which is committed as a whole; end it first"};
}

std::uint64_t RecordWriter::Impl::record_count() const noexcept {
  return stream.totals().record_count + (held ? held->count() : 0);
}

Result<void> RecordWriter::Impl::CheckRecord(std::span<const std::byte> record) {
  FFR_TRY(Usable());
  if (record.size() >= kRecordSizeBytesEnd) return Invalid("it has 2^40 bytes or more");
  if (record_count() == kRecordCountMax) return Invalid("a file holds at most 2^48 records");
  if (is_append() && record.size() > kAppendedRecordSizeBytesMax)
    return Invalid("it has more than 512 MiB, too much to append; write a new file");
  if (stream.next_payload_offset_bytes() >= kPayloadOffsetBytesEnd)
    return Invalid("the file has reached 2^48 bytes; begin another");
  if (schema.empty()) return {};
  auto split = schema.Split(record, fields);
  if (!split) return Invalid(split.error().message);
  return {};
}

Result<void> RecordWriter::Impl::CheckKey(std::span<const std::byte> key) const {
  if (key.empty()) return {};
  if (!keys) return Invalid("it has a key, and the file was begun without keys");
  if (key.size() > kKeySizeBytesMax) return Invalid("its key has more than 65,535 bytes");
  return {};
}

Result<void> RecordWriter::Impl::Write(std::span<const std::byte> record,
                                       std::span<const std::byte> key) {
  FFR_TRY(CheckRecord(record));
  FFR_TRY(CheckKey(key));
  if (held && held->HasRoomFor(record, key)) {
    held->Add(record, key);
    return {};
  }
  if (held) FFR_TRY(Kept(EndTraining()));
  return Kept(Store(record, key));
}

Result<void> RecordWriter::Impl::UseDictionary(std::span<const std::byte> dictionary) {
  compressor.emplace(FFR_TRY(ZstdCompressor::Make(compression_level, dictionary)));
  FFR_TRY(stream.AddSection(V2Section::kDictionary, dictionary));
  dictionary_size_bytes = dictionary.size();
  return {};
}

Result<void> RecordWriter::Impl::EndTraining() {
  const HeldRecords records = *std::exchange(held, std::nullopt);
  if (stream.has_mark()) {
    held_before_group = records;
    held_before_group->CutTo(held_count_of_group);
  }
  const std::vector<std::byte> dictionary = records.Train();
  if (!dictionary.empty()) FFR_TRY(UseDictionary(dictionary));
  return records.ForEach([this](auto record, auto key) { return Store(record, key); });
}

Result<void> RecordWriter::Impl::Store(std::span<const std::byte> record,
                                       std::span<const std::byte> key) {
  FFR_TRY(CommitIfDue(record.size()));
  std::span<const std::byte> stored = record;
  if (compressor)
    if (const auto frame = compressor->Compress(record); !frame.empty()) stored = frame;
  return AddRecord(record, stored, key);
}

Result<void> RecordWriter::Impl::WriteStored(std::span<const std::byte> raw,
                                             std::span<const std::byte> stored) {
  FFR_TRY(Usable());
  return Kept(AddRecord(raw, stored, {}));
}

Result<void> RecordWriter::Impl::WriteKey(std::uint64_t record_index,
                                          std::span<const std::byte> key) {
  FFR_ASSERT(keys.has_value());
  FFR_TRY(Usable());
  return Kept(keys->Add(record_index, key, stream));
}

Result<void> RecordWriter::Impl::AddRecord(std::span<const std::byte> raw,
                                           std::span<const std::byte> stored,
                                           std::span<const std::byte> key) {
  FFR_TRY(stream.AddRecord(raw, stored));
  if (copies) copies->Add(raw);
  if (!key.empty()) FFR_TRY(keys->Add(stream.totals().record_count - 1, key, stream));
  if (stream.segment_is_full()) return EndSegment();
  return {};
}

Result<void> RecordWriter::Impl::AddAt(std::uint64_t offset_bytes, std::span<const std::byte> raw,
                                       std::span<const std::byte> stored,
                                       std::span<const std::byte> key) {
  FFR_TRY(Usable());
  FFR_TRY(CheckKey(key));
  if (record_count() == kRecordCountMax) return Invalid("a file holds at most 2^48 records");
  stream.AddRecordAt(offset_bytes, raw, stored);
  if (!key.empty()) FFR_TRY(Kept(keys->Add(stream.totals().record_count - 1, key, stream)));
  return stream.segment_is_full() ? Kept(EndSegment()) : Result<void>();
}

Result<void> RecordWriter::Impl::EndSegment() {
  FFR_TRY(stream.EndSegment());
  return copies ? copies->EndSegment(stream) : Result<void>();
}

std::uint64_t RecordWriter::Impl::uncommitted_bytes() const noexcept {
  return output->size_bytes() - stream.totals().previous_commit_bytes;
}

Result<void> RecordWriter::Impl::CommitIfDue(std::uint64_t next_size_bytes) {
  const std::uint64_t written = uncommitted_bytes();
  if (!is_append() || written == 0 || written + next_size_bytes <= commit_interval_bytes) return {};
  return stream.has_mark() ? stream.CommitAgain() : EndCommit();
}

Result<void> RecordWriter::Impl::BeginGroup() {
  FFR_TRY(Usable());
  if (stream.has_mark())
    return Error{ErrorCode::kInvalidArgument, path + ": a group of writes is open already"};
  stream.SetMark();
  if (keys) keys->SetMark();
  if (copies) copies->SetMark();
  held_count_of_group = held ? held->count() : 0;
  return {};
}

Result<void> RecordWriter::Impl::EndGroup() {
  FFR_TRY(Usable());
  if (!stream.has_mark()) return Error{ErrorCode::kInvalidArgument, path + ": no group is open"};
  stream.ForgetMark();
  if (keys) keys->ForgetMark();
  if (copies) copies->ForgetMark();
  held_before_group.reset();
  return {};
}

Result<void> RecordWriter::Impl::UndoGroup() {
  FFR_TRY(Usable());
  if (!stream.has_mark()) return Error{ErrorCode::kInvalidArgument, path + ": no group is open"};
  return Kept(ReturnToGroup());
}

Result<void> RecordWriter::Impl::ReturnToGroup() {
  FFR_TRY(stream.ReturnToMark());
  if (keys) keys->ReturnToMark();
  if (copies) copies->ReturnToMark();
  if (held_before_group) {  // No dictionary was trained yet.
    held = std::exchange(held_before_group, std::nullopt);
    compressor.emplace(compression_level);
    dictionary_size_bytes = 0;
  } else if (held) {
    held->CutTo(held_count_of_group);
  }
  return {};
}

Result<void> RecordWriter::Impl::Commit() {
  const bool is_new = !is_append() || uncommitted_bytes() > 0 || held || !metadata_section.empty();
  return is_new ? Kept(EndCommit()) : Result<void>();
}

Result<void> RecordWriter::Impl::EndCommit() {
  if (held) FFR_TRY(EndTraining());
  if (stream.pending_count() > 0) FFR_TRY(EndSegment());
  if (keys) FFR_TRY(keys->Finish(stream));
  if (copies) FFR_TRY(copies->Finish(stream));
  if (!metadata_section.empty()) {
    stream.ForgetSections(V2Section::kMetadata);
    FFR_TRY(stream.AddSection(V2Section::kMetadata, metadata_section));
    metadata_section.clear();
  }
  if (!facts_section.empty()) {
    stream.ForgetSections(V2Section::kFacts);
    FFR_TRY(stream.AddSection(V2Section::kFacts, facts_section));
    facts_section.clear();
  }
  return stream.Commit();
}

Result<WriteSummary> RecordWriter::Impl::Close() {
  if (closed) return Error{ErrorCode::kInvalidArgument, path + ": the writer is closed already"};
  if (broken) return *broken;
  FFR_TRY(NoGroup());
  closed = true;
  FFR_TRY(Commit());
  const V2Footer& totals = stream.totals();
  const WriteSummary summary{totals.record_count, totals.raw_size_bytes, output->size_bytes(),
                             totals.fingerprint, dictionary_size_bytes};
  output.reset();  // Others may append now.
  return summary;
}

namespace {

// A new file, visible once it is whole.
class AtomicOutput final : public V2Output {
 public:
  explicit AtomicOutput(AtomicFile file) : file_(std::move(file)) {}

  Result<void> Append(std::span<const std::byte> bytes) override { return file_.Append(bytes); }
  Result<void> AppendZeros(std::uint64_t count_bytes) override {
    return file_.AppendZeros(count_bytes);
  }
  std::uint64_t size_bytes() const noexcept override { return file_.size_bytes(); }
  // Nobody sees the file before all of it is durable.
  Result<void> Barrier() override { return {}; }
  Result<void> Commit() override { return file_.Publish(); }
  Result<void> CutTo(std::uint64_t size_bytes) override { return file_.CutTo(size_bytes); }

 private:
  AtomicFile file_;
};

}  // namespace

Result<std::unique_ptr<RecordWriter::Impl>> MakeRecordWriter(const std::filesystem::path& path,
                                                             Schema schema,
                                                             const RecordWriter::Options& options,
                                                             WriterInternals internals) {
  FFR_TRY(CheckOptions(options));
  FFR_TRY(CheckKeyColumn(options, schema));
  FFR_ASSERT(internals.pages_per_segment >= 1);
  FFR_ASSERT(internals.pages_per_segment <= V2Header::kPagesPerSegmentMax);
  V2Header header;
  const bool dictionary = !options.dictionary.empty() || options.train_dictionary_bytes != 0;
  header.required_features = (options.compress ? V2Header::kZstd : 0) |
                             (schema.empty() ? 0 : V2Header::kSchema) |
                             (dictionary ? V2Header::kDictionary : 0);
  std::optional<ColumnCopyWriter> copies;
  if (!options.copied_columns.empty())
    copies = FFR_TRY(ColumnCopyWriter::Make(schema, options.copied_columns));
  header.append_features =
      (options.keys ? V2Header::kKeys : 0) | (copies ? V2Header::kColumnCopies : 0);
  header.alignment_bytes = options.alignment_bytes;
  header.pages_per_segment = internals.pages_per_segment;
  header.file_id = internals.file_id ? *internals.file_id : Random<FileId>();
  const std::vector<std::byte> metadata = options.metadata.empty()
                                              ? std::vector<std::byte>()
                                              : FFR_TRY(EncodeMetadata(options.metadata));
  AtomicFile::Options file_options;
  file_options.replace = options.replace;
  file_options.direct = true;
  file_options.buffer_size_bytes = kWriteSizeBytes;
  auto output = std::make_unique<AtomicOutput>(
      FFR_TRY(AtomicFile::Create(path, file_options, std::move(internals.engine))));
  const std::vector<std::byte> schema_section =
      schema.empty() ? std::vector<std::byte>() : schema.Encode();
  V2Stream stream(*output, header, schema_section);
  FFR_TRY(stream.WriteFront(schema_section));
  auto impl = std::make_unique<RecordWriter::Impl>(path.string(), std::move(schema),
                                                   std::move(output), std::move(stream));
  if (options.compress) impl->compressor.emplace(options.compression_level);
  impl->compression_level = options.compression_level;
  if (!options.dictionary.empty()) FFR_TRY(impl->UseDictionary(options.dictionary));
  if (options.train_dictionary_bytes != 0) impl->held.emplace(options.train_dictionary_bytes);
  impl->metadata_section = metadata;
  impl->key_column = options.key_column;
  if (internals.states_facts)
    impl->facts_section = EncodeV2Facts({header, options.key_column, schema_section});
  impl->copies = std::move(copies);
  if (options.keys) impl->keys.emplace(KeyWriter::Options{.path = path});
  return impl;
}

Result<RecordWriter> CreateRecordWriter(const std::filesystem::path& path, Schema schema,
                                        const RecordWriter::Options& options,
                                        WriterInternals internals) {
  return RecordWriter(
      FFR_TRY(MakeRecordWriter(path, std::move(schema), options, std::move(internals))));
}

Result<RecordWriter> RecordWriter::Create(const std::filesystem::path& path, Schema schema,
                                          const Options& options) {
  WriterInternals internals;
  internals.file_id = options.file_id;
  return CreateRecordWriter(path, std::move(schema), options, std::move(internals));
}

Result<RecordWriter> RecordWriter::Append(const std::filesystem::path& path,
                                          const AppendOptions& options) {
  return AppendToRecords(path, options, nullptr);
}

RecordWriter::RecordWriter(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
RecordWriter::RecordWriter(RecordWriter&&) noexcept = default;
RecordWriter& RecordWriter::operator=(RecordWriter&&) noexcept = default;
RecordWriter::~RecordWriter() = default;

std::uint64_t RecordWriter::record_count() const noexcept { return impl_->record_count(); }

bool RecordWriter::has_keys() const noexcept { return impl_->keys.has_value(); }

const std::optional<std::string>& RecordWriter::key_column() const noexcept {
  return impl_->key_column;
}

const Schema& RecordWriter::schema() const noexcept { return impl_->schema; }

Result<void> RecordWriter::Write(std::span<const std::byte> record,
                                 std::span<const std::byte> key) {
  return impl_->Write(record, key);
}

Result<void> RecordWriter::WriteFields(std::span<const std::span<const std::byte>> fields,
                                       std::span<const std::byte> key) {
  impl_->joined.clear();
  auto joined = impl_->schema.Join(fields, impl_->joined);
  if (!joined) return impl_->Invalid(joined.error().message);
  return impl_->Write(impl_->joined, key);
}

Result<void> RecordWriter::Commit() {
  FFR_TRY(impl_->Usable());
  if (!impl_->is_append())
    return Error{ErrorCode::kInvalidArgument,
                 impl_->path + ": a new file is committed when it is closed, and not before"};
  FFR_TRY(impl_->NoGroup());
  return impl_->Commit();
}

Result<void> RecordWriter::BeginGroup() { return impl_->BeginGroup(); }
Result<void> RecordWriter::EndGroup() { return impl_->EndGroup(); }
Result<void> RecordWriter::UndoGroup() { return impl_->UndoGroup(); }
Result<void> RecordWriter::SetMetadata(const Metadata& metadata) {
  FFR_TRY(impl_->Usable());
  if (metadata.empty())
    return Error{ErrorCode::kInvalidArgument, impl_->path + ": metadata cannot be taken back"};
  impl_->metadata_section = FFR_TRY(EncodeMetadata(metadata));
  return {};
}

Result<WriteSummary> RecordWriter::Close() { return impl_->Close(); }

}  // namespace ffrecord
