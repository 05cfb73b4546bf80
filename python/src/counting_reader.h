#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <utility>
#include <vector>

#include <ffrecord/record_reader.h>

#include "python/src/bind.h"

namespace ffrecord::python {

// A reader and what it has done. Thread-safe, like the reader itself.
struct CountingReader {
  explicit CountingReader(RecordReader opened) : reader(std::move(opened)) {}

  RecordReader reader;
  std::atomic<std::uint64_t> batch_count{0};
  std::atomic<std::uint64_t> record_count{0};
  std::atomic<std::uint64_t> size_bytes{0};  // Size of the blocks that were read into.
};

inline double Seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

// Copied, for another thread may change the array while the GIL is away. Negative indices count
// from the end. Raises IndexError for one that is out of range.
std::vector<std::uint64_t> IndicesOf(const py::array_t<std::int64_t, py::array::c_style>& array,
                                     std::uint64_t count);

}  // namespace ffrecord::python
