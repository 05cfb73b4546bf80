#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/result.h>
#include <ffrecord/schema.h>

#include "libffrecord/format/v2_column_copy.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

struct V2Layout;

// Where the values of a fixed-width column lie in each record.
struct ColumnPlace {
  std::uint64_t offset_bytes = 0;
  std::uint64_t width_bytes = 0;
};
// Requires schema.width_bytes(column) > 0.
ColumnPlace PlaceOf(const Schema& schema, std::size_t column) noexcept;

// The column copies of one file, checked against its schema; empty if there are none. Fails with
// kCorruption, or as the RangeReader.
Result<std::vector<ColumnCopy>> ReadColumnCopies(const RangeReader& source, std::uint32_t file,
                                                 const V2Layout& layout, const Schema& schema);

// Reads a chunk of values.size() bytes and checks it. Fails as above.
Result<void> ReadColumnChunk(const RangeReader& source, std::uint32_t file, const V2Layout& layout,
                             const ColumnChunk& chunk, std::span<std::byte> values);

}  // namespace ffrecord
