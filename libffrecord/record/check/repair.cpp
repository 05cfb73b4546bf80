#include <ffrecord/repair.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "libffrecord/format/v2_record.h"
#include "libffrecord/record/check/key_recovery.h"
#include "libffrecord/record/check/repair_source.h"
#include "libffrecord/record/check/salvage_scan.h"
#include "libffrecord/record/index/file_index.h"
#include "libffrecord/record/write/magic_scan.h"
#include "libffrecord/record/write/record_writer_impl.h"
#include "libffrecord/source/file_window.h"
#include "libffrecord/source/local_files.h"

namespace ffrecord {
namespace {

constexpr std::array<Magic, 2> kMagics{{{0xe5, 'R', 'E', 'C'}, {0xe5, 'K', 'E', 'Y'}}};

// The common part of both versions: counts the records that are lost.
class Repair {
 public:
  Repair(const RangeReader& source, const RepairOptions& options)
      : source_(source),
        options_(options),
        window_(source, 0),
        size_bytes_(source.file_size_bytes(0)) {}

  Result<RepairReport> Run(const std::filesystem::path& destination) {
    auto scan = FFR_TRY(ScanForSalvage(source_, window_));
    FFR_TRY(scan ? Rebuild(std::move(*scan), destination) : Salvage(destination));
    FFR_TRY(Advance(size_bytes_));
    return std::move(report_);
  }

 private:
  Result<void> Advance(std::uint64_t done_bytes) {
    if (!options_.progress || options_.progress(done_bytes, size_bytes_)) return {};
    return Error{ErrorCode::kDeadlineExceeded,
                 source_.file_name(0) + ": the repair was cancelled; no file was written"};
  }

  // Records [next_index_, index) are lost; the kept bytes end at kept_end_.
  void Lose(std::uint64_t index, std::uint64_t next_begin_bytes) {
    if (index <= next_index_) return;
    report_.lost_count += index - next_index_;
    report_.skipped_bytes += next_begin_bytes - std::min(next_begin_bytes, kept_end_);
    auto& lost = report_.lost;
    if (!lost.empty() && lost.back().end == next_index_)
      lost.back().end = index;
    else if (lost.size() < RepairReport::kListedMax)
      lost.push_back({next_index_, index});
    next_index_ = index;
  }

  void Keep(std::uint64_t end_bytes) {
    ++report_.kept_count;
    ++next_index_;
    kept_end_ = end_bytes;
  }

  void Finish(const WriteSummary& summary) {
    report_.file_size_bytes = summary.file_size_bytes;
    report_.fingerprint = summary.fingerprint;
  }

  Result<void> Rebuild(SalvageScan scan, const std::filesystem::path& destination);
  Result<std::unique_ptr<RecordWriter::Impl>> BeginFile(const SalvageScan& scan,
                                                        const std::filesystem::path& destination);
  Result<void> KeepRecordByIndex(const SalvageScan& scan, std::uint64_t index,
                                 RecordWriter::Impl& writer);
  Result<void> KeepByHeaders(const SalvageScan& scan, std::uint64_t end_bytes,
                             std::uint64_t end_index, RecordWriter::Impl& writer);
  Result<bool> KeepRecordAt(const SalvageScan& scan, std::uint64_t header_offset,
                            std::uint64_t end_index, RecordWriter::Impl& writer);
  Result<bool> KeepRecord(const SalvageScan& scan, const V2RecordHeader& record,
                          std::uint64_t offset, std::span<const std::byte> stored,
                          RecordWriter::Impl& writer);
  Result<void> EndKeys(const SalvageScan& scan, RecordWriter::Impl& writer);
  Result<void> Salvage(const std::filesystem::path& destination);
  bool ViewWhole(const FileIndex& index, std::uint64_t record, RecordLocation& location,
                 std::span<const std::byte>& bytes);

  const RangeReader& source_;
  const RepairOptions& options_;
  FileWindow window_;
  const std::uint64_t size_bytes_;
  RepairReport report_;
  std::uint64_t next_index_ = 0;
  std::uint64_t claimed_count_ = 0;  // The number of records that the file had, by all evidence.
  std::uint64_t kept_end_ = 0;
  std::uint64_t scanned_end_ = V2Header::kEncodedSizeBytes;  // Scanned up to here.
  std::uint64_t displaced_count_ = 0;
  std::optional<KeyRecovery> keys_;
};

Result<void> Repair::Rebuild(SalvageScan scan, const std::filesystem::path& destination) {
  report_.format_version = 2;
  report_.record_count_is_known = scan.record_count_is_known;
  claimed_count_ = scan.record_count_min;
  report_.kept_parts = std::move(scan.kept);
  report_.other_losses = std::move(scan.losses);
  const auto writer = FFR_TRY(BeginFile(scan, destination));
  if (scan.has_keys) keys_.emplace(window_, size_bytes_, scan.header.file_id);
  for (std::uint64_t i = 0; scan.index && i < scan.index->record_count(); ++i)
    FFR_TRY(KeepRecordByIndex(scan, i, *writer));
  FFR_TRY(KeepByHeaders(scan, size_bytes_, kRecordCountMax, *writer));
  Lose(claimed_count_, size_bytes_);
  if (displaced_count_ > 0)
    report_.other_losses.push_back(std::to_string(displaced_count_) +
                                   " records that came again or out of order");
  if (keys_) FFR_TRY(EndKeys(scan, *writer));
  for (const std::string& column : scan.copied_columns)
    report_.rebuilt_parts.push_back("the copy of column " + column);
  Finish(FFR_TRY(writer->Close()));
  return {};
}

Result<std::unique_ptr<RecordWriter::Impl>> Repair::BeginFile(
    const SalvageScan& scan, const std::filesystem::path& destination) {
  RecordWriter::Options options;
  options.compress = (scan.header.required_features & V2Header::kZstd) != 0;
  options.alignment_bytes = scan.header.alignment_bytes;
  options.replace = options_.replace;
  options.metadata = scan.metadata;
  options.keys = scan.has_keys;
  if (scan.has_keys && scan.schema.Find(scan.key_column) >= 0) options.key_column = scan.key_column;
  options.copied_columns = scan.copied_columns;
  const bool has_dictionary = options.compress && !scan.dictionary_sections.empty();
  if (has_dictionary) options.dictionary = scan.dictionary_sections.front();
  WriterInternals internals;
  internals.pages_per_segment = scan.header.pages_per_segment;
  auto writer = FFR_TRY(MakeRecordWriter(destination, scan.schema, options, std::move(internals)));
  for (std::size_t i = 1; has_dictionary && i < scan.dictionary_sections.size(); ++i)
    FFR_TRY(writer->UseDictionary(scan.dictionary_sections[i]));
  return writer;
}

// Keeps a record that a reader would read, whatever became of its header. Before it, keeps what has
// headers between it and the last one: records that the index has lost, and keys.
Result<void> Repair::KeepRecordByIndex(const SalvageScan& scan, std::uint64_t index,
                                       RecordWriter::Impl& writer) {
  RecordLocation location;
  std::span<const std::byte> stored;
  if (!ViewWhole(*scan.index, index, location, stored)) return {};
  const std::uint64_t header_offset = location.offset_bytes - V2RecordHeader::kEncodedSizeBytes;
  if (scanned_end_ < header_offset) {
    FFR_TRY(KeepByHeaders(scan, header_offset, index, writer));
    if (!ViewWhole(*scan.index, index, location, stored)) return {};
  }
  const V2RecordHeader record{location.check, index, location.stored_size_bytes,
                              location.raw_size_bytes};
  if (FFR_TRY(KeepRecord(scan, record, location.offset_bytes, stored, writer)))
    scanned_end_ = std::max(scanned_end_, location.offset_bytes + location.stored_size_bytes);
  return Advance(scanned_end_);
}

// Keeps the whole records below `end_index`, and keys, whose headers lie between the bytes that
// were seen already and `end_bytes`. A header from another place or file is not valid there.
Result<void> Repair::KeepByHeaders(const SalvageScan& scan, std::uint64_t end_bytes,
                                   std::uint64_t end_index, RecordWriter::Impl& writer) {
  while ((scanned_end_ = FindMagic(window_, end_bytes, kMagics, scanned_end_)) < end_bytes) {
    std::optional<std::uint64_t> end;
    if (FFR_TRY(KeepRecordAt(scan, scanned_end_, end_index, writer)))
      end = kept_end_;
    else if (keys_)
      end = FFR_TRY(keys_->TakeBlock(scanned_end_, writer));
    scanned_end_ = end.value_or(scanned_end_ + 1);
    FFR_TRY(Advance(scanned_end_));
  }
  return {};
}

Result<void> Repair::EndKeys(const SalvageScan& scan, RecordWriter::Impl& writer) {
  // The key blocks are complete if they hold as many keys as the runs list.
  if (scan.key_count != keys_->found_count()) FFR_TRY(keys_->TakeFromRuns(writer));
  report_.kept_key_count = keys_->written_count();
  // Keys on damaged pages may also have belonged to kept records.
  const std::uint64_t listed_count = scan.key_count.value_or(0);
  report_.lost_key_count =
      keys_->damaged_count() + listed_count - std::min(listed_count, keys_->found_count());
  report_.rebuilt_parts.push_back("the keys: " + std::to_string(report_.kept_key_count));
  if (report_.lost_key_count > 0)
    report_.other_losses.push_back(std::to_string(report_.lost_key_count) +
                                   " of the keys: their records are found by index only");
  return {};
}

// Keeps the record that begins there, if it is whole and below `end_index`. True if it was.
Result<bool> Repair::KeepRecordAt(const SalvageScan& scan, std::uint64_t header_offset,
                                  std::uint64_t end_index, RecordWriter::Impl& writer) {
  const FileId& id = scan.header.file_id;
  const auto encoded = window_.View(
      header_offset,
      std::min<std::uint64_t>(V2RecordHeader::kEncodedSizeBytes, size_bytes_ - header_offset));
  if (!encoded) return false;
  const auto header = DecodeV2RecordHeader(encoded.value(), id, header_offset);
  if (!header) return false;
  const V2RecordHeader& record = header.value();
  const std::uint64_t offset = header_offset + V2RecordHeader::kEncodedSizeBytes;
  if (record.index >= kRecordCountMax) return false;
  claimed_count_ = std::max(claimed_count_, record.index + 1);
  if (record.stored_size_bytes > size_bytes_ - offset) return false;
  const auto stored = window_.View(offset, record.stored_size_bytes);
  if (!stored || Xxh3(stored.value(), SeedOf(id, PlaceTag::kRecord, record.index)) != record.check)
    return false;
  if (record.index < next_index_ || record.index >= end_index) {
    ++displaced_count_;
    return false;
  }
  return KeepRecord(scan, record, offset, stored.value(), writer);
}

// Keeps a record whose stored bytes are right. True if it was one.
Result<bool> Repair::KeepRecord(const SalvageScan& scan, const V2RecordHeader& record,
                                std::uint64_t offset, std::span<const std::byte> stored,
                                RecordWriter::Impl& writer) {
  std::span<const std::byte> raw = stored;
  PooledBuffer decompressed;
  if (record.stored_size_bytes < record.raw_size_bytes) {
    auto room = BufferPool::Process().Take(record.raw_size_bytes);
    if (!room) return std::move(room).error();
    decompressed = std::move(room).value();
    if (!DecompressZstd(stored, *decompressed, scan.dictionaries)) return false;
    raw = *decompressed;
  }
  // Only a forged record does not fit the schema; its columns could not be copied.
  if (writer.copies && !scan.schema.Split(raw, writer.fields)) return false;
  FFR_TRY(writer.WriteStored(raw, stored));
  if (keys_) keys_->NoteKept(record.index, report_.kept_count);
  Lose(record.index, offset - V2RecordHeader::kEncodedSizeBytes);
  Keep(offset + record.stored_size_bytes);
  return true;
}

// True if the record is whole; sets its location and its bytes.
bool Repair::ViewWhole(const FileIndex& index, std::uint64_t record, RecordLocation& location,
                       std::span<const std::byte>& bytes) {
  if (index.Locate(record, location) != ErrorCode::kOk) return false;
  const auto stored = window_.View(location.offset_bytes, location.stored_size_bytes);
  if (!stored || !index.Matches(record, location.check, stored.value())) return false;
  bytes = stored.value();
  return true;
}

Result<void> Repair::Salvage(const std::filesystem::path& destination) {
  RecordReader::Options salvage;
  salvage.salvage = true;
  auto indexes = OpenIndexes(source_, salvage);
  if (!indexes)
    return Error{indexes.error().code == ErrorCode::kInvalidArgument ? ErrorCode::kCorruption
                                                                     : indexes.error().code,
                 indexes.error().message +
                     "; no header or tail of version 2 is in it either, so "
                     "the file cannot be identified",
                 indexes.error().system_errno};
  const FileIndex& index = *indexes.value().front();
  report_.format_version = 1;
  report_.record_count_is_known = true;
  // The number of records stands in front of them.
  std::uint64_t whole_count = 0;
  RecordLocation location;
  std::span<const std::byte> bytes;
  for (std::uint64_t i = 0; i < index.record_count(); ++i)
    whole_count += ViewWhole(index, i, location, bytes) ? 1 : 0;
  auto writer = FFR_TRY(V1Writer::Create(destination, whole_count, options_.replace));
  for (std::uint64_t i = 0; i < index.record_count(); ++i) {
    if (!ViewWhole(index, i, location, bytes)) continue;
    FFR_TRY(writer.Write(bytes));
    Lose(i, location.offset_bytes);
    Keep(location.offset_bytes + location.stored_size_bytes);
    FFR_TRY(Advance(kept_end_));
  }
  Lose(index.record_count(), size_bytes_);
  Finish(FFR_TRY(writer.Close()));
  return {};
}

}  // namespace

Result<RepairReport> RepairSource(const RangeReader& source,
                                  const std::filesystem::path& destination,
                                  const RepairOptions& options) {
  return Repair(source, options).Run(destination);
}

Result<RepairReport> RepairFile(const std::filesystem::path& source,
                                const std::filesystem::path& destination,
                                const RepairOptions& options) {
  // Buffered, to read any bytes at any offset.
  const auto file = FFR_TRY(OpenLocalFiles({&source, 1}, {.io = IoPolicy::kBuffered}));
  return RepairSource(*file, destination, options);
}

}  // namespace ffrecord
