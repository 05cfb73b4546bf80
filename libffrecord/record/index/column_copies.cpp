#include "libffrecord/record/index/column_copies.h"

#include <algorithm>
#include <string>

#include "libffrecord/base/assert.h"
#include "libffrecord/format/v2_header.h"
#include "libffrecord/format/v2_index.h"
#include "libffrecord/record/index/file_index.h"
#include "libffrecord/record/index/v2_commit.h"

namespace ffrecord {

ColumnPlace PlaceOf(const Schema& schema, std::size_t column) noexcept {
  FFR_ASSERT(schema.width_bytes(column) > 0);
  ColumnPlace place{0, schema.width_bytes(column)};
  // Fixed-width columns stand first, in schema order; variable ones have width 0.
  for (std::size_t before = 0; before < column; ++before)
    place.offset_bytes += schema.width_bytes(before);
  return place;
}

Result<std::vector<ColumnCopy>> ReadColumnCopies(const RangeReader& source, std::uint32_t file,
                                                 const V2Layout& layout, const Schema& schema) {
  const IndexGeometry geometry{layout.footer.record_count, layout.header.pages_per_segment};
  const V2Source bytes{source, file, layout.header.file_id};
  std::vector<ColumnCopy> copies;
  for (const V2Section& section : layout.footer.sections) {
    if (section.type != V2Section::kColumnCopy) continue;
    // Checked before any read or allocation depends on it.
    if (section.size_bytes != ColumnCopySizeBytes(geometry.segment_count()))
      return Error{ErrorCode::kCorruption, "column copy: it does not fit the records"};
    const auto fetched = FFR_TRY(bytes.FetchSection(section));
    ColumnCopy copy = FFR_TRY(DecodeColumnCopy(fetched.bytes, geometry.segment_count()));
    const bool twice = std::any_of(copies.begin(), copies.end(),
                                   [&](const auto& other) { return other.column == copy.column; });
    if (twice || copy.column >= schema.columns().size() || schema.width_bytes(copy.column) == 0 ||
        schema.width_bytes(copy.column) > kCopiedColumnBytesMax)
      return Error{ErrorCode::kCorruption, "column copy: column " + std::to_string(copy.column) +
                                               " cannot be copied, or is copied twice"};
    copies.push_back(std::move(copy));
  }
  return copies;
}

Result<void> ReadColumnChunk(const RangeReader& source, std::uint32_t file, const V2Layout& layout,
                             const ColumnChunk& chunk, std::span<std::byte> values) {
  const auto corrupt = [&](const char* found) {
    return Error{ErrorCode::kCorruption,
                 "column chunk at " + std::to_string(chunk.offset_bytes) + ": " + found};
  };
  if (chunk.offset_bytes < V2Header::kEncodedSizeBytes ||
      chunk.offset_bytes > layout.footer_offset_bytes ||
      values.size() > layout.footer_offset_bytes - chunk.offset_bytes)
    return corrupt("it does not lie between header and footer");
  const FileId& id = layout.header.file_id;
  const auto check = [&](std::span<const std::byte> fetched) -> Result<void> {
    // Copied before they are checked: mapped bytes may change.
    std::copy(fetched.begin(), fetched.end(), values.begin());
    if (ColumnChunkCheck(values, id, chunk.offset_bytes) == chunk.check) return {};
    return corrupt("checksum does not match");
  };
  const V2Source bytes{source, file, id};
  FFR_TRY(bytes.Fetch(chunk.offset_bytes, values.size(), check));
  return {};
}

}  // namespace ffrecord
