#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/patience.h"
#include "libffrecord/record/read/record_reader_impl.h"

namespace ffrecord {

// Finds, for each key, the first record of the list that has it, or nothing. The key indexes of all
// files are read together, in a few steps, however many files and keys there are. A file that
// cannot be searched is an error for each key that no file before it has; the call returns the
// error of the first such key. Messages name the file. Fails with kDeadlineExceeded once `patience`
// is over.
Result<std::vector<std::optional<std::uint64_t>>> FindKeys(
    const RecordReader::Impl& reader, std::span<const std::span<const std::byte>> keys,
    Patience& patience);

}  // namespace ffrecord
