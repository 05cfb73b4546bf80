#pragma once

#include <cstdint>
#include <optional>

#include <ffrecord/export.h>

namespace ffrecord {

// One pool of memory blocks per process, for batches and other transfers. A block is in use until
// the last Batch in it is destroyed; then it is idle, kept for the next batch.
//
// Sizes are in bytes. The functions are thread-safe. A forked child inherits its parent's cap.
struct MemoryUse {
  std::uint64_t cap_bytes = 0;  // Limit for used and idle together.
  std::uint64_t used_bytes = 0;
  std::uint64_t idle_bytes = 0;
};

FFR_EXPORT MemoryUse GetMemoryUse() noexcept;

// Sets the cap. The default is half of the memory of the machine, or of the container if that has
// less. Idle blocks above the cap are freed at once; blocks in use stay. A batch that does not fit
// below the cap fails with kIo (ENOMEM), but a block always fits while no other is in use.
FFR_EXPORT void SetMemoryCap(std::uint64_t cap_bytes) noexcept;

// Memory outside of that pool.
struct MemoryRoom {
  // That processes can still take: of the machine, or what the control groups of this process still
  // allow where that is less; 0 if the kernel does not say. Pages of files count as free, since the
  // kernel drops them when memory is short.
  std::uint64_t free_bytes = 0;
  std::optional<std::uint64_t> limit_bytes;  // Least limit of the control groups; none: no limit.
};

// Reads some files of /proc and /sys.
FFR_EXPORT MemoryRoom GetMemoryRoom();

}  // namespace ffrecord
