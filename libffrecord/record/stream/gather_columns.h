#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/batch.h>
#include <ffrecord/column_decoder.h>

namespace ffrecord {

// Appends the columns `wanted`, which are of fixed width, to `columns`, as BatchStream::Item has
// them. Requires that all records are good. False if a record does not fit the schema, or if there
// is no memory.
bool GatherColumns(const Batch& batch, std::span<const std::uint32_t> wanted,
                   std::vector<ColumnValues>& columns);

}  // namespace ffrecord
