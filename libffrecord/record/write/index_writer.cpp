#include <ffrecord/index_writer.h>

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "libffrecord/base/align.h"
#include "libffrecord/base/random.h"
#include "libffrecord/format/in_place_front.h"
#include "libffrecord/format/record_form.h"
#include "libffrecord/format/user_metadata.h"
#include "libffrecord/format/v2_facts.h"
#include "libffrecord/io/atomic_file.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/mapped_file.h"
#include "libffrecord/record/index/source_state.h"
#include "libffrecord/record/index/spliced_files.h"
#include "libffrecord/record/write/record_writer_impl.h"

namespace ffrecord {
namespace {

constexpr std::uint64_t kBlock = InPlaceFront::kSizeBytes;
constexpr std::string_view kMark = ":valid";

// The version 2 file that source and index make. Its offsets count the source, which is not
// written.
class SplicedOutput final : public V2Output {
 public:
  explicit SplicedOutput(AtomicFile file) : file_(std::move(file)) {}

  // Writes the front, which the reader takes off again. First of all.
  Result<void> WriteFront(const InPlaceFront& front) {
    std::array<std::byte, kBlock> encoded;
    EncodeInPlaceFront(front, encoded);
    return file_.Append(encoded);
  }
  // Leaves room for the source.
  void Skip(std::uint64_t size_bytes) noexcept { skipped_bytes_ = size_bytes; }

  Result<void> Append(std::span<const std::byte> bytes) override { return file_.Append(bytes); }
  Result<void> AppendZeros(std::uint64_t count_bytes) override {
    return file_.AppendZeros(count_bytes);
  }
  std::uint64_t size_bytes() const noexcept override {
    return file_.size_bytes() - kBlock + skipped_bytes_;
  }
  Result<void> Barrier() override { return {}; }
  Result<void> Commit() override { return file_.Publish(); }
  Result<void> CutTo(std::uint64_t size_bytes) override {
    return file_.CutTo(size_bytes + kBlock - skipped_bytes_);
  }

 private:
  AtomicFile file_;
  std::uint64_t skipped_bytes_ = 0;
};

// Whether the file that is open is the one of that name.
bool IsStillCalled(int fd, const std::filesystem::path& path) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

struct IndexWriter::Impl {
  Impl(std::filesystem::path path, ReadOnlyFile opened, MappedFile bytes, InPlaceFront of_source,
       std::unique_ptr<RecordWriter::Impl> to)
      : source(std::move(path)),
        file(std::move(opened)),
        mapped(std::move(bytes)),
        front(std::move(of_source)),
        writer(std::move(to)),
        formed(front.form, writer->schema),
        has_nulls(writer->schema.columns().size()) {
    const auto& columns = writer->schema.columns();
    for (std::size_t i = 0; i < columns.size(); ++i)
      if (columns[i].type == ColumnType::kBool && columns[i].name.ends_with(kMark))
        marks.push_back(i);
    if (writer->keys) key_column = writer->schema.Find(*writer->key_column);
  }

  Error Invalid(std::uint64_t offset_bytes, const std::string& found) const {
    return {ErrorCode::kInvalidArgument, source.string() + ": the sample at byte " +
                                             std::to_string(offset_bytes) + ": " + found +
                                             "; make a record file of it (ffrecord-pack)"};
  }
  Result<void> Add(std::uint64_t offset_bytes, std::uint64_t size_bytes);

  const std::filesystem::path source;
  const ReadOnlyFile file;
  const MappedFile mapped;
  const InPlaceFront front;
  const std::unique_ptr<RecordWriter::Impl> writer;
  const FormedRecords formed;
  std::vector<std::size_t> marks;  // Columns that say whether another has a value.
  std::vector<bool> has_nulls;     // For each of them.
  int key_column = -1;
  std::uint64_t end_bytes = 0;  // End of the last sample.
  std::vector<std::byte> record;
};

Result<void> IndexWriter::Impl::Add(std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  if (offset_bytes < end_bytes || offset_bytes > mapped.bytes().size() ||
      size_bytes > mapped.bytes().size() - offset_bytes || size_bytes >= kRecordSizeBytesEnd)
    return Invalid(offset_bytes, "its " + std::to_string(size_bytes) +
                                     " bytes do not lie in the file, behind those before");
  end_bytes = offset_bytes + size_bytes;
  const auto stored = mapped.bytes().subspan(offset_bytes, size_bytes);
  std::span<const std::byte> raw = stored;
  if (formed.form() != RecordForm::kPlain) {
    if (auto made = formed.Form(stored, record); !made)
      return Invalid(offset_bytes, made.error().message);
    raw = record;
    const bool is_same = std::ranges::equal(stored, raw);
    if (!is_same && (stored.size() == raw.size() || !FormedSizesAreSane(stored.size(), raw.size())))
      return Invalid(offset_bytes, "it cannot be read in place");
  }
  if (!writer->schema.empty())
    if (auto split = writer->schema.Split(raw, writer->fields); !split)
      return Invalid(offset_bytes, split.error().message);
  for (const std::size_t mark : marks)
    if (writer->fields[mark].front() == std::byte{0}) has_nulls[mark] = true;
  const auto key = key_column < 0 ? std::span<const std::byte>()
                                  : writer->fields[static_cast<std::size_t>(key_column)];
  return writer->AddAt(front.head_size_bytes + offset_bytes, raw, stored, key);
}

Result<IndexWriter> IndexWriter::Create(const std::filesystem::path& source,
                                        const std::filesystem::path& index, Schema schema,
                                        const Options& options) {
  const auto invalid = [&](const std::string& found) {
    return Error{ErrorCode::kInvalidArgument, source.string() + ": " + found};
  };
  const int key = options.key_column.empty() ? -1 : schema.Find(options.key_column);
  if (!options.key_column.empty() &&
      (key < 0 || schema.width_bytes(static_cast<std::size_t>(key)) != 0))
    return invalid("the key column '" + options.key_column + "' is no column of text or bytes");
  if (options.form != RecordForm::kPlain && schema.empty())
    return invalid("samples of this form need columns");
  ReadOnlyFile file = FFR_TRY(OpenReadOnly(source, false));
  const std::vector<std::byte> schema_section =
      schema.empty() ? std::vector<std::byte>() : schema.Encode();
  InPlaceFront front{
      .form = options.form,
      .head_size_bytes = AlignUp(
          V2Header::kEncodedSizeBytes + V2SectionHeader::kEncodedSizeBytes + schema_section.size(),
          kBlock),
      .source_size_bytes = file.size_bytes,
      .source_path = std::filesystem::absolute(source).string(),
      .description = options.description};
  front.source_time_ns = FFR_TRY(StateOf(file.fd.get(), source)).time_ns;
  if (front.source_size_bytes >= kPayloadOffsetBytesEnd - front.head_size_bytes)
    return invalid("it has 2^48 bytes or more");
  if (front.source_path.size() > InPlaceFront::kPathSizeBytesMax)
    return invalid("its path has more than 4,000 bytes");
  MappedFile mapped = FFR_TRY(MappedFile::Map(file.fd.get(), 0, file.size_bytes));

  V2Header header;
  header.required_features = schema.empty() ? 0 : V2Header::kSchema;
  header.append_features = options.key_column.empty() ? 0 : V2Header::kKeys;
  header.file_id = Random<FileId>();
  AtomicFile::Options file_options;
  file_options.replace = options.replace;
  auto output = std::make_unique<SplicedOutput>(FFR_TRY(AtomicFile::Create(index, file_options)));
  FFR_TRY(output->WriteFront(front));
  V2Stream stream(*output, header, schema_section);
  FFR_TRY(stream.WriteFront(schema_section));
  FFR_TRY(output->AppendZeros(front.head_size_bytes - output->size_bytes()));
  output->Skip(AlignUp(front.source_size_bytes, kBlock));
  auto writer = std::make_unique<RecordWriter::Impl>(index.string(), std::move(schema),
                                                     std::move(output), std::move(stream));
  writer->key_column = options.key_column;
  writer->facts_section = EncodeV2Facts({header, options.key_column, schema_section});
  if (key >= 0) writer->keys.emplace(KeyWriter::Options{.path = index});
  return IndexWriter(std::make_unique<Impl>(source, std::move(file), std::move(mapped),
                                            std::move(front), std::move(writer)));
}

IndexWriter::IndexWriter(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
IndexWriter::IndexWriter(IndexWriter&&) noexcept = default;
IndexWriter& IndexWriter::operator=(IndexWriter&&) noexcept = default;
IndexWriter::~IndexWriter() = default;

Result<void> IndexWriter::Add(std::uint64_t offset_bytes, std::uint64_t size_bytes) {
  return impl_->Add(offset_bytes, size_bytes);
}

std::vector<std::string> IndexWriter::ColumnsWithNulls() const {
  std::vector<std::string> names;
  for (const std::size_t mark : impl_->marks) {
    const std::string& name = impl_->writer->schema.columns()[mark].name;
    if (impl_->has_nulls[mark]) names.push_back(name.substr(0, name.size() - kMark.size()));
  }
  return names;
}

Result<void> IndexWriter::SetMetadata(const Metadata& metadata) {
  impl_->writer->metadata_section = FFR_TRY(EncodeMetadata(metadata));
  return {};
}

Result<WriteSummary> IndexWriter::Close() {
  const FileState state = FFR_TRY(StateOf(impl_->file.fd.get(), impl_->source));
  const FileState before{impl_->front.source_size_bytes, impl_->front.source_time_ns};
  // The offsets may be of a file that took its name.
  if (state != before || impl_->mapped.has_lost() ||
      !IsStillCalled(impl_->file.fd.get(), impl_->source))
    return Error{ErrorCode::kConflict, impl_->source.string() +
                                           ": it changed while it was indexed; make the index "
                                           "when nothing writes to the file any more"};
  FFR_TRY(CheckDescription(impl_->source, impl_->front.description));
  WriteSummary summary = FFR_TRY(impl_->writer->Close());
  summary.file_size_bytes -= AlignUp(impl_->front.source_size_bytes, kBlock) - kBlock;
  return summary;
}

Result<IndexWriter::Source> IndexWriter::ReadSource(const std::filesystem::path& index) {
  const InPlaceFront front = FFR_TRY(ReadInPlaceFront(index));
  return Source{SourceOf(index, front), front.description};
}

Result<void> IndexWriter::WriteDescription(const std::filesystem::path& index,
                                           const SourceDescription& description) {
  InPlaceFront front = FFR_TRY(ReadInPlaceFront(index));
  front.description = description;
  const ReadOnlyFile file = FFR_TRY(OpenReadOnly(index, false));
  AtomicFile::Options options;
  options.replace = true;
  AtomicFile copy = FFR_TRY(AtomicFile::Create(index, options));
  std::array<std::byte, kBlock> encoded;
  EncodeInPlaceFront(front, encoded);
  FFR_TRY(copy.Append(encoded));
  std::vector<std::byte> piece(std::size_t{1} << 20);
  for (std::uint64_t at = kBlock; at < file.size_bytes; at += piece.size()) {
    piece.resize(std::min<std::uint64_t>(piece.size(), file.size_bytes - at));
    FFR_TRY(ReadExactly(file.fd.get(), index, at, piece));
    FFR_TRY(copy.Append(piece));
  }
  return copy.Publish();
}

}  // namespace ffrecord
