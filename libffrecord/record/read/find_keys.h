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

// The first record of the list with each of the keys, if there is one. What has to be read of key
// indexes is read of all files at once, in a few steps, however many files and keys there are. The
// first error of a file, in list order, counts for keys that are in no file before it; of several
// keys, that of the first one. Messages name the file. Fails
// with kDeadlineExceeded once `patience` is over.
Result<std::vector<std::optional<std::uint64_t>>> FindKeys(
    const RecordReader::Impl& reader, std::span<const std::span<const std::byte>> keys,
    Patience& patience);

}  // namespace ffrecord
