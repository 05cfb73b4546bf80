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

// Whether another copy is to be read in place of one whose status this is. What is wrong with a
// copy itself is for its reader to know, who may turn to the step's twin.
inline bool IsOutOfReach(ErrorCode status) {
  return status != ErrorCode::kOk && status != ErrorCode::kCorruption &&
         status != ErrorCode::kNotFound;
}

}  // namespace ffrecord::client
