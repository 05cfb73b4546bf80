#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/source/range_reader.h"

namespace ffrecord::client {

// A file at one of several readers.
struct FileCopy {
  std::size_t reader;
  std::uint32_t file;
};

// Files of which each has one copy or more, equal byte for byte: the next is asked if the first is
// out of reach. `copies` are those of each file, at least one.
std::unique_ptr<RangeReader> OpenFilesWithCopies(std::vector<std::unique_ptr<RangeReader>> readers,
                                                 std::vector<std::vector<FileCopy>> copies);

// Whether a read that ended with `status` is repeated from another copy. A copy that is damaged or
// absent is not: its reader reports that, and may turn to the step's replica.
inline bool IsOutOfReach(ErrorCode status) {
  return status != ErrorCode::kOk && status != ErrorCode::kCorruption &&
         status != ErrorCode::kNotFound;
}

}  // namespace ffrecord::client
