#pragma once

#include <cstdint>
#include <span>

#include <ffrecord/batch.h>
#include <ffrecord/result.h>

#include "libffrecord/base/patience.h"
#include "libffrecord/record/read/record_reader_impl.h"

namespace ffrecord {

// RecordReader::ReadBatch.
Result<Batch> ReadRecords(const RecordReader::Impl& reader, std::span<const std::uint64_t> indices,
                          Patience& patience);

}  // namespace ffrecord
