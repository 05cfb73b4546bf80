#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "libffrecord/base/clock.h"

namespace ffrecord::server {

// The chunks of one mapped file that lie in memory. To ask the kernel costs as much as to send a
// record of some KiB: where many runs of one chunk are wanted, it is asked for all of the chunk,
// and its answer believed for a while.
//
// Offsets and sizes are bytes. Thread-bound. Chunks that lay in memory may be gone, at once or
// later: touching them then waits for the disk.
class ResidentChunks {
 public:
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20;
  static constexpr std::chrono::milliseconds kBelievedFor{500};
  // Runs of a chunk that are asked for one by one, in as long a time, before it is asked for.
  static constexpr std::int16_t kSingleRuns = 3;

  // Whether these bytes of `mapped`, which is the same each time, lie in memory. Requires that they
  // are within it, and that `now` does not go back.
  bool Contains(std::span<const std::byte> mapped, std::size_t offset, std::size_t size,
                Clock::time_point now);

 private:
  struct Chunk {
    std::uint32_t believed_until_ms = 0;  // Times count from made_.
    std::uint32_t asked_since_ms = 0;
    std::int16_t asked_count = 0;  // Since then; negative: its last answer was no.
  };
  static bool Ask(Chunk& chunk, std::span<const std::byte> whole, std::span<const std::byte> part,
                  std::uint32_t now_ms);

  const Clock::time_point made_ = Clock::now();
  std::vector<Chunk> chunks_;  // None before the first question.
};

}  // namespace ffrecord::server
