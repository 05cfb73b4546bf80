#pragma once

#include <cstdint>

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

}  // namespace ffrecord
