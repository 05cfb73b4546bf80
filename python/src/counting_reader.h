#pragma once

#include <time.h>

#include <atomic>
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
  std::atomic<std::uint64_t> size_bytes{0};  // Of the blocks that were read into.
  std::atomic<std::int64_t> wait_ns{0};      // Inside ReadBatch, over all threads.
  std::atomic<std::int64_t> cpu_ns{0};       // Of that, what the threads computed.
};

// What the calling thread has computed so far.
inline std::int64_t ThreadCpuNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Copied, for another thread may change the array while the GIL is away. Negative indices count
// from the end. Raises IndexError for one that is out of range.
std::vector<std::uint64_t> IndicesOf(const py::array_t<std::int64_t, py::array::c_style>& array,
                                     std::uint64_t count);

}  // namespace ffrecord::python
