#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ffrecord/batch_stream.h>

namespace ffrecord {

// Appends the columns `wanted` to `columns`, as BatchStream::Item has them. The first record is
// that of `position` in `epoch`. Requires that all records are good. False if a record does not fit
// the schema, if a value cannot be decoded, if there is no memory, or once `give_up` returns true.
bool DecodeColumns(const Batch& batch, std::span<const BatchStream::Options::Decoded> wanted,
                   std::uint64_t seed, std::uint64_t epoch, std::uint64_t position,
                   const ColumnDecoder::GiveUp& give_up, std::vector<ColumnValues>& columns);

}  // namespace ffrecord
