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

// An interface of the reader of files that have several copies.
class SizedCopies {
 public:
  // The sizes that copies of `file` have, each once, the largest first.
  virtual std::vector<std::uint64_t> SizesOf(std::uint32_t file) const = 0;

  // Leaves out the copies of `file` whose size is not `size_bytes`, which are damaged, unless all
  // of them are. Call it before anything is read.
  virtual void LeaveOutOtherSizes(std::uint32_t file, std::uint64_t size_bytes) = 0;

 protected:
  ~SizedCopies() = default;
};

// Files of which each has one copy or more, equal byte for byte: the next is asked for what the
// first cannot give. Bytes that fail a check of the caller's are read again from all (FileCopies).
// `copies` are those of each file, at least one. The size of a file is that of its first copy.
std::unique_ptr<RangeReader> OpenFilesWithCopies(std::vector<std::unique_ptr<RangeReader>> readers,
                                                 std::vector<std::vector<FileCopy>> copies);

// Whether a read that ended with `status` says nothing of the copy, which may be whole: it cannot
// be reached.
inline bool IsOutOfReach(ErrorCode status) {
  return status != ErrorCode::kOk && status != ErrorCode::kCorruption &&
         status != ErrorCode::kNotFound;
}

}  // namespace ffrecord::client
