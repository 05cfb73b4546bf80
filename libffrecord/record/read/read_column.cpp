#include "libffrecord/record/read/read_column.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/format/v2_index.h"
#include "libffrecord/record/index/column_copies.h"
#include "libffrecord/record/read/index_fetches.h"
#include "libffrecord/record/read/read_batch.h"
#include "libffrecord/record/read/record_reader_impl.h"
#include "libffrecord/source/gathered_reads.h"

namespace ffrecord {
namespace {

// Records that are read at once if there is no column copy.
constexpr std::uint64_t kBatchRecordsMax = 4096;
constexpr std::uint64_t kBatchBytesMax = std::uint64_t{64} << 20;

// Values that are read together: what is fetched for them is held beside them.
constexpr std::uint64_t kWindowBytes = std::uint64_t{64} << 20;

// Consecutive records, of one file or several, and where their values go.
struct Values {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::span<std::byte> bytes;
};

// Reads the values of one column of consecutive records, from the column copies if there are some.
// Values at a daemon or in a store are read from all files at once.
class ColumnRead {
 public:
  ColumnRead(const RecordReader& records, const RecordReader::Impl& reader, std::size_t column,
             Patience& patience)
      : records_(records),
        reader_(reader),
        patience_(patience),
        column_(column),
        place_(PlaceOf(*reader.schema, column)) {
    if (reader.source->reads_indexes()) gathered_.emplace(*reader.source);
  }

  Result<void> Run(Values values) {
    const std::uint64_t count_max = std::max<std::uint64_t>(kWindowBytes / place_.width_bytes, 1);
    while (values.count > 0) FFR_TRY(ReadWindow(TakeFirst(values, count_max)));
    return {};
  }

 private:
  // Splits off the first `count` of them, or all.
  Values TakeFirst(Values& values, std::uint64_t count) const {
    count = std::min(count, values.count);
    const Values taken{values.first, count, values.bytes.first(count * place_.width_bytes)};
    values.first += count;
    values.count -= count;
    values.bytes = values.bytes.subspan(taken.bytes.size());
    return taken;
  }

  Result<void> ReadWindow(const Values& values) {
    FFR_TRY(ReadCopies(values));
    while (gathered_ && gathered_->has_noted()) {
      FFR_TRY(gathered_->ReadNoted(patience_));
      without_copy_.clear();
      FFR_TRY(ReadCopies(values));
    }
    if (gathered_) gathered_->Clear();
    return ReadRecordsOf(std::exchange(without_copy_, {}));
  }

  const RangeReader& bytes() const noexcept {
    if (gathered_) return *gathered_;
    return *reader_.source;
  }

  // Values without a copy, or with a damaged one, are added to without_copy_. Values whose bytes
  // are not gathered yet are skipped: the next round reads them.
  Result<void> ReadCopies(Values values) {
    while (values.count > 0) {
      if (patience_.IsOver()) return GivenUp();
      const std::uint32_t file = reader_.FileOf(values.first);
      FFR_TRY(ReadFile(file, TakeFirst(values, reader_.first_indexes[file + 1] - values.first)));
    }
    return {};
  }

  Result<void> ReadFile(std::uint32_t file, const Values& values) {
    const V2Layout* layout = reader_.indexes[file]->v2_layout();
    if (layout == nullptr) return Without(values);
    if (gathered_) NoteCopies(file, *layout);
    const auto copies = ReadColumnCopies(bytes(), file, *layout, *reader_.schema);
    if (!copies) return Failed(copies.error(), values);
    for (const ColumnCopy& copy : copies.value())
      if (copy.column == column_) return ReadCopy(file, *layout, copy, values);
    return Without(values);
  }

  // All are looked at to find that of the column, one after the other.
  void NoteCopies(std::uint32_t file, const V2Layout& layout) const {
    const IndexGeometry geometry{layout.footer.record_count, layout.header.pages_per_segment};
    for (const V2Section& section : layout.footer.sections)
      if (section.type == V2Section::kColumnCopy &&
          section.size_bytes == ColumnCopySizeBytes(geometry.segment_count()))
        (void)gathered_->MapIndex(file, section.offset_bytes, section.size_bytes);
  }

  Result<void> Without(const Values& values) {
    without_copy_.push_back(values);
    return {};
  }

  // If the copy is damaged, the values come from the records.
  Result<void> Failed(const Error& error, const Values& values) {
    if (error.code == ErrorCode::kCorruption) return Without(values);
    const bool is_done_again = gathered_ && gathered_->has_noted();
    return is_done_again ? Result<void>() : error;
  }

  Result<void> ReadCopy(std::uint32_t file, const V2Layout& layout, const ColumnCopy& copy,
                        Values values) {
    const IndexGeometry geometry{layout.footer.record_count, layout.header.pages_per_segment};
    const std::uint64_t per_segment = kIndexEntriesPerPage * geometry.pages_per_segment;
    while (values.count > 0) {
      if (patience_.IsOver()) return GivenUp();
      const std::uint64_t first = values.first - reader_.first_indexes[file];
      const std::uint64_t segment = first / per_segment;
      const std::uint64_t segment_begin = segment * per_segment;
      const std::uint64_t segment_count =
          std::min(per_segment, geometry.record_count - segment_begin);
      const Values part = TakeFirst(values, segment_begin + segment_count - first);
      const auto read =
          ReadChunk(file, layout, copy.chunks[segment], segment_count * place_.width_bytes,
                    (first - segment_begin) * place_.width_bytes, part.bytes);
      if (!read) FFR_TRY(Failed(read.error(), part));
    }
    return {};
  }

  // A part of a chunk can be checked only with the rest of it.
  Result<void> ReadChunk(std::uint32_t file, const V2Layout& layout, const ColumnChunk& chunk,
                         std::uint64_t chunk_size_bytes, std::uint64_t begin_bytes,
                         std::span<std::byte> part) {
    if (part.size() == chunk_size_bytes) return ReadColumnChunk(bytes(), file, layout, chunk, part);
    // A forged segment may claim more than the file holds.
    if (chunk_size_bytes > layout.footer_offset_bytes)
      return Error{ErrorCode::kCorruption, "column chunk: it does not fit the file"};
    whole_chunk_.resize(chunk_size_bytes);
    FFR_TRY(ReadColumnChunk(bytes(), file, layout, chunk, whole_chunk_));
    std::memcpy(part.data(), whole_chunk_.data() + begin_bytes, part.size());
    return {};
  }

  Result<void> ReadRecordsOf(const std::vector<Values>& runs) {
    std::vector<std::uint64_t> indices;
    std::vector<std::byte*> places;
    for (const Values& run : runs) {
      for (std::uint64_t i = 0; i < run.count; ++i) {
        indices.push_back(run.first + i);
        places.push_back(run.bytes.data() + i * place_.width_bytes);
        if (indices.size() < kBatchRecordsMax) continue;
        FFR_TRY(ReadRecordsAt(indices, places));
        indices.clear();
        places.clear();
      }
    }
    return indices.empty() ? Result<void>() : ReadRecordsAt(indices, places);
  }

  // In as few batches as their sizes allow.
  Result<void> ReadRecordsAt(std::span<const std::uint64_t> indices,
                             std::span<std::byte* const> places) {
    const IndexFailures failures = FetchLacking(reader_, indices, patience_);
    for (std::size_t begin = 0; begin < indices.size();) {
      if (patience_.IsOver()) return GivenUp();
      std::uint64_t size_bytes = 0;
      std::size_t end = begin;
      for (; end < indices.size() && (end == begin || size_bytes < kBatchBytesMax); ++end)
        size_bytes += FFR_TRY(SizeOf(indices[end], failures));
      FFR_TRY(ReadBatchAt(indices.subspan(begin, end - begin), places.subspan(begin, end - begin)));
      begin = end;
    }
    return {};
  }

  // 0 if its entry is damaged.
  Result<std::uint64_t> SizeOf(std::uint64_t index, const IndexFailures& failures) const {
    const std::uint32_t file = reader_.FileOf(index);
    const FileIndex& file_index = *reader_.indexes[file];
    const std::uint64_t index_in_file = index - reader_.first_indexes[file];
    if (!failures.empty()) {
      const ErrorCode status = failures.Of(file_index, index_in_file);
      if (status != ErrorCode::kOk) return Error{status, records_.Describe(index, status)};
    }
    RecordLocation location;
    const bool is_known = file_index.Locate(index_in_file, location) == ErrorCode::kOk;
    return is_known ? location.raw_size_bytes : 0;
  }

  Result<void> ReadBatchAt(std::span<const std::uint64_t> indices,
                           std::span<std::byte* const> places) {
    const Batch batch = FFR_TRY(ReadRecords(reader_, indices, patience_));
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const ErrorCode status = batch.statuses()[i];
      if (status != ErrorCode::kOk) return Error{status, records_.Describe(indices[i], status)};
      if (batch.record(i).size() < reader_.schema->fixed_size_bytes())
        return Error{ErrorCode::kCorruption, records_.Describe(indices[i], ErrorCode::kOk) +
                                                 ", but shorter than its columns"};
      std::memcpy(places[i], batch.record(i).data() + place_.offset_bytes, place_.width_bytes);
    }
    return {};
  }

  const RecordReader& records_;
  const RecordReader::Impl& reader_;
  Patience& patience_;
  const std::size_t column_;
  const ColumnPlace place_;
  std::optional<GatheredReads> gathered_;  // For a source that would wait for each.
  std::vector<std::byte> whole_chunk_;
  std::vector<Values> without_copy_;
};

}  // namespace

Result<void> ReadColumnOf(const RecordReader& records, const RecordReader::Impl& reader,
                          std::size_t column, std::uint64_t first, std::uint64_t count,
                          std::span<std::byte> destination, Patience& patience) {
  const auto invalid = [](const std::string& found) {
    return Error{ErrorCode::kInvalidArgument, "read column: " + found};
  };
  const Schema& columns = *reader.schema;
  if (column >= columns.columns().size())
    return invalid("there is no column " + std::to_string(column));
  if (columns.width_bytes(column) == 0)
    return invalid("the values of '" + columns.columns()[column].name +
                   "' have no fixed width; read the records");
  const std::uint64_t record_count = reader.record_count();
  if (first > record_count || count > record_count - first)
    return Error{ErrorCode::kOutOfRange, "read column: " + std::to_string(count) +
                                             " values from record " + std::to_string(first) +
                                             " on: there are " + std::to_string(record_count)};
  if (count != destination.size() / columns.width_bytes(column) ||
      destination.size() % columns.width_bytes(column) != 0)
    return invalid("the destination is not as large as the values");
  return ColumnRead(records, reader, column, patience).Run({first, count, destination});
}

}  // namespace ffrecord
