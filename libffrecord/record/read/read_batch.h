#pragma once

#include <cstdint>
#include <span>

#include <ffrecord/batch.h>
#include <ffrecord/result.h>

#include "libffrecord/base/patience.h"
#include "libffrecord/record/read/record_reader_impl.h"

namespace ffrecord {

// Fails with kOutOfRange if an index is not below the record count.
Result<void> CheckIndices(const RecordReader::Impl& reader, std::span<const std::uint64_t> indices);

// RecordReader::ReadBatch. `patience` is the innermost one of the thread.
Result<Batch> ReadRecords(const RecordReader::Impl& reader, std::span<const std::uint64_t> indices,
                          Patience& patience);

}  // namespace ffrecord
