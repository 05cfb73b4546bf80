#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <ffrecord/batch.h>

#include "libffrecord/base/patience.h"
#include "libffrecord/record/read/record_reader_impl.h"

namespace ffrecord {

// Returns the batch if all its records are in memory and whole: each is copied out of its mapped
// file to the place behind the one before it, and the copy is checked. None if any is not, or if
// that is not likely, or if the source does not map: then it must be read, and whoever reads it
// finds out what is wrong. None too once `patience` is over.
//
// A page that is not in memory would be fetched alone while the thread waits. So a few records are
// looked for first, and the thread's major faults tell whether the guess was right. If it was not,
// the next batches are read at once. Requires every index to be below the record count.
std::optional<Batch> CopyResident(const RecordReader::Impl& reader,
                                  std::span<const std::uint64_t> indices, Patience& patience);

}  // namespace ffrecord
