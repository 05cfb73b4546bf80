#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include <ffrecord/batch.h>

#include "libffrecord/base/patience.h"
#include "libffrecord/record/read/record_reader_impl.h"

namespace ffrecord {

// Returns the batch if all its records are in memory and whole: copies each from its mapped file to
// the place behind the previous one, and checks the copy. Returns none if a record is not in memory
// or not whole, if that is unlikely, if the source is not mapped, or once `patience` is over. The
// caller then reads the batch, and that read reports errors.
//
// The thread would wait for each page that is not in memory, one at a time. So it tries a few
// records first; its major faults tell whether the guess was right. If it was wrong, the next
// batches are read without a try. The time of a batch that is returned is `clock`'s stages'.
// Requires every index to be below the record count.
std::optional<Batch> CopyResident(const RecordReader::Impl& reader,
                                  std::span<const std::uint64_t> indices, StageClock& clock,
                                  Patience& patience);

}  // namespace ffrecord
