#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <thread>

#include "memory_files.h"

namespace ffrecord::test {

// Files in memory, each of whose calls waits for the test.
class HeldFiles final : public MemoryFiles {
 public:
  using MemoryFiles::MemoryFiles;

  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    ++begun;
    while (!is_open) {
      if (patience.IsOver()) return GivenUp();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return MemoryFiles::ReadEach(ranges, arrived, patience);
  }

  std::atomic<bool> is_open = false;
  mutable std::atomic<std::uint64_t> begun = 0;
};

}  // namespace ffrecord::test
