#pragma once

#include <cstdint>

#include <ffrecord/export.h>

namespace ffrecord {

// The memory that batches lie in and other transfers land in: one pool of blocks for the process.
// A block is used until the last Batch that lies in it dies; then it is idle, kept for the next.
//
// Sizes are in bytes. The functions are thread-safe. A forked child begins with its parent's cap.
struct MemoryUse {
  std::uint64_t cap_bytes = 0;  // Of used and idle together.
  std::uint64_t used_bytes = 0;
  std::uint64_t idle_bytes = 0;
};

FFR_EXPORT MemoryUse GetMemoryUse() noexcept;

// Sets the cap; at first it is half of the memory of the machine, or of the container if that has
// less. What is idle and too much is freed at once; what is used stays. A batch that does not fit
// below the cap fails with kIo (ENOMEM), except that a block always fits while no other is used.
FFR_EXPORT void SetMemoryCap(std::uint64_t cap_bytes) noexcept;

}  // namespace ffrecord
