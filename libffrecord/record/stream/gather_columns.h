#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/batch.h>

namespace ffrecord {

// Fills `columns` and `owner`, as BatchStream::Item has them, with the columns `wanted`, which are
// of fixed width; leaves both alone if a record is
// not good or does not fit the schema, or if there is no memory.
void GatherColumns(const Batch& batch, std::span<const std::uint32_t> wanted,
                   std::vector<std::span<const std::byte>>& columns, Batch::Owner& owner);

}  // namespace ffrecord
