#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// Reads one file from front to back, several MiB at a time, and shows any piece of it. Borrows the
// RangeReader, whose alignment must be 1. Thread-bound.
class FileWindow {
 public:
  FileWindow(const RangeReader& source, std::uint32_t file) : source_(source), file_(file) {
    FFR_ASSERT(source.alignment_bytes(file) == 1);
  }

  // Bytes [offset, offset + size), valid until the next call. Fails with kCorruption if they pass
  // the end of the file, with kIo if they cannot be read.
  Result<std::span<const std::byte>> View(std::uint64_t offset_bytes, std::uint64_t size_bytes);

 private:
  Result<void> Fill(std::uint64_t offset_bytes, std::uint64_t size_bytes);

  const RangeReader& source_;
  const std::uint32_t file_;
  PooledBuffer memory_;
  std::uint64_t begin_bytes_ = 0;
  std::uint64_t size_bytes_ = 0;  // Bytes in memory.
};

}  // namespace ffrecord
