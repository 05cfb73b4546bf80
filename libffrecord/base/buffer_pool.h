#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ffrecord/result.h>

namespace ffrecord {

// A block of page-aligned memory from the pool; shared by all who use a part of it. Its last owner
// returns it to the pool. The bytes are whatever was there before.
using PooledBuffer = std::shared_ptr<std::span<std::byte>>;

// Keeps blocks that are no longer used, for reuse: a fresh block costs a page fault for each 4 KiB,
// several times the price of reading warm data into it.
//
// One for the process; thread-safe. A forked child starts with its copy of the parent's blocks.
// Used and idle blocks are together no more than was lately in use at once, and than the cap
// (ffrecord/memory.h), idle ones no more than kIdleMax; those that were idle for longest go first.
class BufferPool {
 public:
  static constexpr std::size_t kAlignment = 4096;
  static constexpr std::size_t kIdleMax = std::size_t{1} << 30;

  static BufferPool& Process();

  // A block of at least `size_bytes`, spanning exactly that. Fails with kIo (ENOMEM) if there is no
  // memory, or if what is used would pass the cap and is not this block alone.
  Result<PooledBuffer> Take(std::size_t size_bytes);

  std::size_t idle_bytes() const;
  std::size_t used_bytes() const;
  std::size_t cap_bytes() const;
  void SetCap(std::size_t cap_bytes);

 private:
  BufferPool() = default;
  struct Shared;
  Shared& shared() const;
};

}  // namespace ffrecord
