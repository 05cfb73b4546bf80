#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/format/v2_index.h"
#include "libffrecord/record/index/column_copies.h"
#include "libffrecord/record/read/read_batch.h"
#include "libffrecord/record/read/record_reader_impl.h"

namespace ffrecord {
namespace {

// Records that are read at once if there is no column copy.
constexpr std::uint64_t kBatchRecordsMax = 4096;
constexpr std::uint64_t kBatchBytesMax = std::uint64_t{64} << 20;

// Reads the values of one column of consecutive records, from the column copy if there is one.
class ColumnRead {
 public:
  ColumnRead(const RecordReader& records, const RecordReader::Impl& reader, std::size_t column,
             Patience& patience)
      : records_(records),
        reader_(reader),
        patience_(patience),
        column_(column),
        place_(PlaceOf(*reader.schema, column)) {}

  Result<void> Run(std::uint64_t first, std::uint64_t count, std::span<std::byte> values) {
    while (count > 0) {
      const std::uint32_t file = reader_.FileOf(first);
      const std::uint64_t in_file = std::min(count, reader_.first_indexes[file + 1] - first);
      const auto part = values.first(in_file * place_.width_bytes);
      FFR_TRY(ReadFile(file, first - reader_.first_indexes[file], in_file, part));
      values = values.subspan(part.size());
      first += in_file;
      count -= in_file;
    }
    return {};
  }

 private:
  Result<void> ReadFile(std::uint32_t file, std::uint64_t first, std::uint64_t count,
                        std::span<std::byte> values) {
    const V2Layout* layout = reader_.indexes[file]->v2_layout();
    if (layout != nullptr) {
      auto copies = ReadColumnCopies(*reader_.source, file, *layout, *reader_.schema);
      // If the copy is damaged, the values come from the records.
      if (!copies && copies.error().code != ErrorCode::kCorruption)
        return std::move(copies).error();
      if (copies)
        for (const ColumnCopy& copy : copies.value())
          if (copy.column == column_) return ReadCopy(file, *layout, copy, first, count, values);
    }
    return ReadRecordsOf(file, first, count, values);
  }

  Result<void> ReadCopy(std::uint32_t file, const V2Layout& layout, const ColumnCopy& copy,
                        std::uint64_t first, std::uint64_t count, std::span<std::byte> values) {
    const IndexGeometry geometry{layout.footer.record_count, layout.header.pages_per_segment};
    const std::uint64_t per_segment = kIndexEntriesPerPage * geometry.pages_per_segment;
    while (count > 0) {
      if (patience_.IsOver()) return GivenUp();
      const std::uint64_t segment = first / per_segment;
      const std::uint64_t segment_begin = segment * per_segment;
      const std::uint64_t segment_count =
          std::min(per_segment, geometry.record_count - segment_begin);
      const std::uint64_t wanted = std::min(count, segment_begin + segment_count - first);
      const auto part = values.first(wanted * place_.width_bytes);
      const auto read =
          ReadChunk(file, layout, copy.chunks[segment], segment_count * place_.width_bytes,
                    (first - segment_begin) * place_.width_bytes, part);
      if (!read && read.error().code != ErrorCode::kCorruption) return read.error();
      if (!read) FFR_TRY(ReadRecordsOf(file, first, wanted, part));
      values = values.subspan(part.size());
      first += wanted;
      count -= wanted;
    }
    return {};
  }

  // A part of a chunk can be checked only with the rest of it.
  Result<void> ReadChunk(std::uint32_t file, const V2Layout& layout, const ColumnChunk& chunk,
                         std::uint64_t chunk_size_bytes, std::uint64_t begin_bytes,
                         std::span<std::byte> part) {
    if (part.size() == chunk_size_bytes)
      return ReadColumnChunk(*reader_.source, file, layout, chunk, part);
    // A forged segment may claim more than the file holds.
    if (chunk_size_bytes > layout.footer_offset_bytes)
      return Error{ErrorCode::kCorruption, "column chunk: it does not fit the file"};
    whole_chunk_.resize(chunk_size_bytes);
    FFR_TRY(ReadColumnChunk(*reader_.source, file, layout, chunk, whole_chunk_));
    std::memcpy(part.data(), whole_chunk_.data() + begin_bytes, part.size());
    return {};
  }

  Result<void> ReadRecordsOf(std::uint32_t file, std::uint64_t first, std::uint64_t count,
                             std::span<std::byte> values) {
    std::vector<std::uint64_t> indices;
    for (std::uint64_t done = 0; done < count; done += indices.size()) {
      if (patience_.IsOver()) return GivenUp();
      indices.clear();
      std::uint64_t size_bytes = 0;
      for (std::uint64_t i = done; i < count && indices.size() < kBatchRecordsMax &&
                                   (indices.empty() || size_bytes < kBatchBytesMax);
           ++i) {
        RecordLocation location;
        if (reader_.indexes[file]->Locate(first + i, location) == ErrorCode::kOk)
          size_bytes += location.raw_size_bytes;
        indices.push_back(reader_.first_indexes[file] + first + i);
      }
      const Batch batch = FFR_TRY(ReadRecords(reader_, indices, patience_));
      for (std::size_t i = 0; i < indices.size(); ++i) {
        const ErrorCode status = batch.statuses()[i];
        if (status != ErrorCode::kOk) return Error{status, records_.Describe(indices[i], status)};
        if (batch.record(i).size() < reader_.schema->fixed_size_bytes())
          return Error{ErrorCode::kCorruption, records_.Describe(indices[i], ErrorCode::kOk) +
                                                   ", but shorter than its columns"};
        std::memcpy(values.data() + (done + i) * place_.width_bytes,
                    batch.record(i).data() + place_.offset_bytes, place_.width_bytes);
      }
    }
    return {};
  }

  const RecordReader& records_;
  const RecordReader::Impl& reader_;
  Patience& patience_;
  const std::size_t column_;
  const ColumnPlace place_;
  std::vector<std::byte> whole_chunk_;
};

}  // namespace

Result<void> RecordReader::ReadColumn(std::size_t column, std::uint64_t first, std::uint64_t count,
                                      std::span<std::byte> destination,
                                      const GiveUp& give_up) const {
  const auto invalid = [](const std::string& found) {
    return Error{ErrorCode::kInvalidArgument, "read column: " + found};
  };
  const Schema& columns = *impl_->schema;
  if (column >= columns.columns().size())
    return invalid("there is no column " + std::to_string(column));
  if (columns.width_bytes(column) == 0)
    return invalid("the values of '" + columns.columns()[column].name +
                   "' have no fixed width; read the records");
  if (first > record_count() || count > record_count() - first)
    return Error{ErrorCode::kOutOfRange, "read column: " + std::to_string(count) +
                                             " values from record " + std::to_string(first) +
                                             " on: there are " + std::to_string(record_count())};
  if (count != destination.size() / columns.width_bytes(column) ||
      destination.size() % columns.width_bytes(column) != 0)
    return invalid("the destination is not as large as the values");
  Patience patience(give_up);
  return ColumnRead(*this, *impl_, column, patience).Run(first, count, destination);
}

}  // namespace ffrecord
