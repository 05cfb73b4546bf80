#include "libffrecord/record/write/column_copy_writer.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/record/index/file_index.h"

namespace ffrecord {

Result<ColumnCopyWriter> ColumnCopyWriter::Make(const Schema& schema,
                                                std::span<const std::string> names) {
  const auto invalid = [](const std::string& name, const char* found) {
    return Error{ErrorCode::kInvalidArgument, "copy of column '" + name + "': " + found};
  };
  ColumnCopyWriter writer;
  std::uint64_t total_bytes = 0;
  for (const std::string& name : names) {
    const int found = schema.Find(name);
    if (found < 0) return invalid(name, "the schema has no such column");
    const auto column = static_cast<std::size_t>(found);
    const std::uint64_t width = schema.width_bytes(column);
    if (width == 0 || width > kCopiedColumnBytesMax)
      return invalid(name, "only values of a fixed width of at most 64 bytes are copied");
    total_bytes += width;
    if (total_bytes > kCopiedBytesMax)
      return invalid(name, "copied columns take at most 512 bytes of each record together");
    const bool twice = std::any_of(writer.columns_.begin(), writer.columns_.end(),
                                   [&](const auto& one) { return one.copy.column == column; });
    if (twice) return invalid(name, "it is listed twice");
    writer.columns_.push_back({PlaceOf(schema, column), {static_cast<std::uint32_t>(column), {}}});
  }
  return writer;
}

Result<ColumnCopyWriter> ColumnCopyWriter::Resume(const RangeReader& source, const V2Layout& layout,
                                                  const Schema& schema) {
  ColumnCopyWriter writer;
  const IndexGeometry geometry{layout.footer.record_count, layout.header.pages_per_segment};
  const std::uint64_t per_segment = kIndexEntriesPerPage * geometry.pages_per_segment;
  std::uint64_t room_bytes = layout.footer_offset_bytes;
  for (ColumnCopy& copy : FFR_TRY(ReadColumnCopies(source, 0, layout, schema))) {
    Copied copied{PlaceOf(schema, copy.column), std::move(copy)};
    if (geometry.record_count % per_segment != 0) {
      const std::uint64_t size_bytes =
          geometry.record_count % per_segment * copied.place.width_bytes;
      // Each chunk has its own bytes; only forged ones overlap.
      if (size_bytes > room_bytes)
        return Error{ErrorCode::kCorruption, "column copies: they do not fit the file together"};
      room_bytes -= size_bytes;
      copied.values.resize(size_bytes);
      FFR_TRY(ReadColumnChunk(source, 0, layout, copied.copy.chunks.back(), copied.values));
    }
    writer.columns_.push_back(std::move(copied));
  }
  return writer;
}

void ColumnCopyWriter::Add(std::span<const std::byte> record) {
  for (Copied& column : columns_) {
    const auto value = record.subspan(column.place.offset_bytes, column.place.width_bytes);
    column.values.insert(column.values.end(), value.begin(), value.end());
  }
}

Result<void> ColumnCopyWriter::EndSegment(V2Stream& stream) {
  const std::uint64_t per_segment = kIndexEntriesPerPage * stream.header().pages_per_segment;
  const bool is_full = stream.totals().record_count % per_segment == 0;
  for (Copied& column : columns_) {
    const std::uint64_t offset = FFR_TRY(stream.AppendStructure(column.values, 1));
    column.copy.chunks.resize(stream.segment_number());  // One that was not full is replaced.
    column.copy.chunks.push_back(
        {offset, ColumnChunkCheck(column.values, stream.header().file_id, offset)});
    if (!is_full) continue;
    if (column.mark && !column.mark->values) {
      column.mark->values.emplace(std::move(column.values));
      column.mark->values->resize(column.mark->values_size_bytes);
    }
    column.values.clear();
  }
  return {};
}

void ColumnCopyWriter::SetMark() {
  for (Copied& column : columns_) {
    const auto& chunks = column.copy.chunks;
    column.mark =
        Mark{chunks.size(), chunks.empty() ? ColumnChunk{} : chunks.back(), column.values.size()};
  }
}

void ColumnCopyWriter::ReturnToMark() {
  for (Copied& column : columns_) {
    FFR_ASSERT(column.mark.has_value());
    Mark mark = *std::exchange(column.mark, std::nullopt);
    column.copy.chunks.resize(mark.chunk_count);
    if (mark.chunk_count > 0) column.copy.chunks.back() = mark.last_chunk;
    if (mark.values)
      column.values = *std::move(mark.values);
    else
      column.values.resize(mark.values_size_bytes);
  }
}

void ColumnCopyWriter::ForgetMark() noexcept {
  for (Copied& column : columns_) column.mark.reset();
}

Result<void> ColumnCopyWriter::Finish(V2Stream& stream) const {
  stream.ForgetSections(V2Section::kColumnCopy);
  for (const Copied& column : columns_)
    FFR_TRY(stream.AddSection(V2Section::kColumnCopy, EncodeColumnCopy(column.copy)));
  return {};
}

}  // namespace ffrecord
