#include "libffrecord/format/v2_column_copy.h"

#include "libffrecord/base/cursor.h"

namespace ffrecord {

Result<ColumnCopy> DecodeColumnCopy(std::span<const std::byte> bytes, std::uint64_t segment_count) {
  constexpr std::uint64_t kChunkSizeBytes = 16;
  ByteReader reader(bytes);
  ColumnCopy copy;
  copy.column = reader.Take<std::uint32_t>();
  const auto reserved = reader.Take<std::uint32_t>();
  if (!reader.ok() || reader.remaining() % kChunkSizeBytes != 0 ||
      reader.remaining() / kChunkSizeBytes != segment_count)
    return Error{ErrorCode::kCorruption, "column copy: it does not fit the records"};
  if (reserved != 0)
    return Error{ErrorCode::kCorruption, "column copy: reserved bytes are not zero"};
  copy.chunks.resize(segment_count);
  for (ColumnChunk& chunk : copy.chunks) {
    chunk.offset_bytes = reader.Take<std::uint64_t>();
    chunk.check = reader.Take<std::uint64_t>();
  }
  return copy;
}

std::vector<std::byte> EncodeColumnCopy(const ColumnCopy& copy) {
  ByteWriter writer;
  writer.Reserve(ColumnCopySizeBytes(copy.chunks.size()));
  writer.Put(copy.column);
  writer.Put(std::uint32_t{0});
  for (const ColumnChunk& chunk : copy.chunks) {
    writer.Put(chunk.offset_bytes);
    writer.Put(chunk.check);
  }
  return std::move(writer).Take();
}

std::uint64_t ColumnChunkCheck(std::span<const std::byte> values, const FileId& id,
                               std::uint64_t offset_bytes) {
  return Xxh3(values, SeedOf(id, PlaceTag::kColumnChunk, offset_bytes));
}

}  // namespace ffrecord
