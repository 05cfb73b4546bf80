#include <ffrecord/record_writer.h>

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/format/fingerprint.h"
#include "libffrecord/format/v2_footer.h"
#include "libffrecord/format/v2_header.h"
#include "libffrecord/format/v2_index.h"
#include "libffrecord/format/v2_record.h"
#include "libffrecord/format/zstd_codec.h"
#include "libffrecord/io/atomic_file.h"
#include "libffrecord/record/coalesce.h"
#include "libffrecord/record/record_writer_impl.h"

namespace ffrecord {
namespace {

Result<FileId> RandomFileId() {
  FileId id;
  ssize_t got = 0;
  do {
    got = ::getrandom(id.data(), id.size(), 0);  // Up to 256 bytes come whole or not at all.
  } while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(id.size()))
    return Error{ErrorCode::kIo, "the kernel gives no random bytes for a file id", errno};
  return id;
}

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
  return {};
}

}  // namespace

// Memory: the pages of one segment (1 MiB), 8 bytes for each segment written (43,520 records), the
// largest record if it is compressed or made of fields, and AtomicFile's buffers.
struct RecordWriter::Impl {
  std::string path;
  Schema schema;
  std::vector<std::byte> schema_section;
  V2Header header;
  AtomicFile file;
  std::optional<ZstdCompressor> compressor;
  FingerprintChain fingerprint;
  V2Footer totals;
  std::vector<std::byte> pages;  // Of the segment to come, zero behind the last entry.
  std::vector<std::uint64_t> segment_offsets;
  std::vector<std::span<const std::byte>> fields;  // Only to check records against the schema.
  std::vector<std::byte> joined;
  std::optional<Error> broken;  // The first failure of the disk; all that follows fails alike.
  bool closed = false;

  Impl(std::string name, Schema columns, const V2Header& header_, AtomicFile file_)
      : path(std::move(name)),
        schema(std::move(columns)),
        schema_section(schema.Encode()),
        header(header_),
        file(std::move(file_)),
        fingerprint(schema_section),
        pages(header.pages_per_segment * kIndexPageSizeBytes),
        fields(schema.columns().size()) {}

  Error Invalid(const std::string& found) const {
    return {ErrorCode::kInvalidArgument,
            path + ": record " + std::to_string(totals.record_count) + ": " + found};
  }

  // Passes a failure of the file on, and keeps it.
  Result<void> Kept(Result<void> result) {
    if (!result && !broken) broken = result.error();
    return result;
  }

  Result<void> WriteHeader();
  Result<void> CheckRecord(std::span<const std::byte> record);
  Result<void> Write(std::span<const std::byte> record);
  Result<void> AppendRecord(std::span<const std::byte> raw, std::span<const std::byte> stored);
  Result<void> AppendSegment();
  Result<void> AppendSection(std::uint32_t type, std::span<const std::byte> bytes);
  Result<void> AppendFooterAndTail();
  Result<void> Finish();
};

Result<void> RecordWriter::Impl::WriteHeader() {
  std::array<std::byte, V2Header::kEncodedSizeBytes> encoded;
  EncodeV2Header(header, encoded);
  return Kept(file.Append(encoded));
}

Result<void> RecordWriter::Impl::CheckRecord(std::span<const std::byte> record) {
  if (closed) return Error{ErrorCode::kInvalidArgument, path + ": the writer is closed"};
  if (broken) return *broken;
  if (record.size() >= kRecordSizeBytesEnd) return Invalid("it has 2^40 bytes or more");
  if (totals.record_count == kRecordCountMax) return Invalid("a file holds at most 2^48 records");
  if (PayloadOffsetAfter(file.size_bytes(), header.alignment_bytes) >= kPayloadOffsetBytesEnd)
    return Invalid("the file has reached 2^48 bytes; begin another");
  if (schema.empty()) return {};
  auto split = schema.Split(record, fields);
  if (!split) return Invalid(split.error().message);
  return {};
}

Result<void> RecordWriter::Impl::Write(std::span<const std::byte> record) {
  auto checked = CheckRecord(record);
  if (!checked) return checked;
  std::span<const std::byte> stored = record;
  if (compressor)
    if (const auto frame = compressor->Compress(record); !frame.empty()) stored = frame;
  return Kept(AppendRecord(record, stored));
}

Result<void> RecordWriter::Impl::AppendRecord(std::span<const std::byte> raw,
                                              std::span<const std::byte> stored) {
  const std::uint64_t index = totals.record_count;
  const std::uint64_t payload_offset =
      PayloadOffsetAfter(file.size_bytes(), header.alignment_bytes);
  const std::uint64_t header_offset = payload_offset - V2RecordHeader::kEncodedSizeBytes;
  const RecordLocation location{Xxh3(stored, SeedOf(header.file_id, PlaceTag::kRecord, index)),
                                payload_offset, stored.size(), raw.size()};
  std::array<std::byte, V2RecordHeader::kEncodedSizeBytes> encoded;
  EncodeV2RecordHeader({location.check, index, stored.size(), raw.size()}, header.file_id,
                       header_offset, encoded);
  FFR_TRY(file.AppendZeros(header_offset - file.size_bytes()));
  FFR_TRY(file.Append(encoded));
  FFR_TRY(file.Append(stored));

  const std::uint64_t entries_per_segment = kIndexEntriesPerPage * header.pages_per_segment;
  const std::uint64_t slot = index % entries_per_segment;
  const auto page = std::span(pages).subspan(slot / kIndexEntriesPerPage * kIndexPageSizeBytes,
                                             kIndexPageSizeBytes);
  StoreIndexEntry(location, slot % kIndexEntriesPerPage, page);
  fingerprint.Add(raw);
  totals.raw_size_bytes += raw.size();
  totals.stored_size_bytes += stored.size();
  ++totals.record_count;
  if (slot + 1 == entries_per_segment) return AppendSegment();
  return {};
}

// Writes the pages of the records since the last segment, of which there is at least one.
Result<void> RecordWriter::Impl::AppendSegment() {
  const std::uint64_t entries_per_segment = kIndexEntriesPerPage * header.pages_per_segment;
  const std::uint64_t first_page = segment_offsets.size() * header.pages_per_segment;
  std::uint64_t entries_left = totals.record_count - segment_offsets.size() * entries_per_segment;
  std::uint64_t page_count = 0;
  while (entries_left > 0) {
    const std::uint64_t entry_count = std::min(entries_left, kIndexEntriesPerPage);
    SealIndexPage(header.file_id, first_page + page_count, entry_count,
                  std::span(pages).subspan(page_count * kIndexPageSizeBytes, kIndexPageSizeBytes));
    entries_left -= entry_count;
    ++page_count;
  }
  const std::uint64_t end = file.size_bytes();
  FFR_TRY(file.AppendZeros(AlignUp(end, kIndexPageSizeBytes) - end));
  segment_offsets.push_back(file.size_bytes());
  FFR_TRY(file.Append(std::span(pages).first(page_count * kIndexPageSizeBytes)));
  std::memset(pages.data(), 0, page_count * kIndexPageSizeBytes);
  return {};
}

Result<void> RecordWriter::Impl::AppendSection(std::uint32_t type,
                                               std::span<const std::byte> bytes) {
  const std::uint64_t offset = file.size_bytes();
  totals.sections.push_back(
      {type, offset, bytes.size(), SectionCheck(bytes, header.file_id, offset)});
  return file.Append(bytes);
}

Result<void> RecordWriter::Impl::AppendFooterAndTail() {
  const std::uint64_t end = file.size_bytes();
  FFR_TRY(file.AppendZeros(AlignUp(end, V2Footer::kAlignmentBytes) - end));
  totals.fingerprint = fingerprint.digest();
  const std::vector<std::byte> footer = EncodeV2Footer(totals);
  const V2Tail tail{file.size_bytes(), footer.size(),
                    FooterCheck(footer, header.file_id, file.size_bytes())};
  FFR_TRY(file.Append(footer));
  const std::uint64_t file_size =
      AlignUp(file.size_bytes() + V2Tail::kEncodedSizeBytes, V2Footer::kAlignmentBytes);
  FFR_TRY(file.AppendZeros(file_size - V2Tail::kEncodedSizeBytes - file.size_bytes()));
  std::array<std::byte, V2Tail::kEncodedSizeBytes> encoded;
  EncodeV2Tail(tail, header.file_id, file_size, encoded);
  return file.Append(encoded);
}

Result<void> RecordWriter::Impl::Finish() {
  const std::uint64_t entries_per_segment = kIndexEntriesPerPage * header.pages_per_segment;
  if (totals.record_count > segment_offsets.size() * entries_per_segment) FFR_TRY(AppendSegment());
  std::vector<std::byte> directory(8 * segment_offsets.size());
  for (std::size_t i = 0; i < segment_offsets.size(); ++i)
    StoreLittleEndian(std::span<std::byte>(directory), 8 * i, segment_offsets[i]);
  FFR_TRY(AppendSection(V2Section::kSegmentDirectory, directory));
  if (!schema.empty()) FFR_TRY(AppendSection(V2Section::kSchema, schema_section));
  FFR_TRY(AppendFooterAndTail());
  return file.Publish();
}

Result<RecordWriter> CreateRecordWriter(const std::filesystem::path& path, Schema schema,
                                        const RecordWriter::Options& options,
                                        WriterInternals internals) {
  auto checked = CheckOptions(options);
  if (!checked) return std::move(checked).error();
  FFR_ASSERT(internals.pages_per_segment >= 1);
  FFR_ASSERT(internals.pages_per_segment <= V2Header::kPagesPerSegmentMax);
  V2Header header;
  header.required_features =
      (options.compress ? V2Header::kZstd : 0) | (schema.empty() ? 0 : V2Header::kSchema);
  header.alignment_bytes = options.alignment_bytes;
  header.pages_per_segment = internals.pages_per_segment;
  header.file_id = internals.file_id ? *internals.file_id : FFR_TRY(RandomFileId());
  AtomicFile::Options file_options;
  file_options.replace = options.replace;
  auto file = FFR_TRY(AtomicFile::Create(path, file_options, std::move(internals.engine)));
  auto impl = std::make_unique<RecordWriter::Impl>(path.string(), std::move(schema), header,
                                                   std::move(file));
  if (options.compress) impl->compressor.emplace(options.compression_level);
  FFR_TRY(impl->WriteHeader());
  return RecordWriter(std::move(impl));
}

Result<RecordWriter> RecordWriter::Create(const std::filesystem::path& path, Schema schema,
                                          const Options& options) {
  return CreateRecordWriter(path, std::move(schema), options, {});
}

RecordWriter::RecordWriter(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
RecordWriter::RecordWriter(RecordWriter&&) noexcept = default;
RecordWriter& RecordWriter::operator=(RecordWriter&&) noexcept = default;
RecordWriter::~RecordWriter() = default;

std::uint64_t RecordWriter::record_count() const noexcept { return impl_->totals.record_count; }

Result<void> RecordWriter::Write(std::span<const std::byte> record) { return impl_->Write(record); }

Result<void> RecordWriter::WriteFields(std::span<const std::span<const std::byte>> fields) {
  impl_->joined.clear();
  auto joined = impl_->schema.Join(fields, impl_->joined);
  if (!joined) return impl_->Invalid(joined.error().message);
  return impl_->Write(impl_->joined);
}

Result<WriteSummary> RecordWriter::Close() {
  if (impl_->closed)
    return Error{ErrorCode::kInvalidArgument, impl_->path + ": the writer is closed already"};
  if (impl_->broken) return *impl_->broken;
  impl_->closed = true;
  auto finished = impl_->Kept(impl_->Finish());
  if (!finished) return std::move(finished).error();
  return WriteSummary{impl_->totals.record_count, impl_->totals.raw_size_bytes,
                      impl_->file.size_bytes(), impl_->totals.fingerprint};
}

}  // namespace ffrecord
