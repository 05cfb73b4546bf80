#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/net/transport/slab.h"

namespace ffrecord::net {

// A slab of this process, as those need it who make it known to a daemon.
struct SharedSlab {
  std::uint64_t number;  // Unique in this process, never used again.
  Slab memory;
};

// Memory that daemons of this machine read straight into, in blocks for one read each. Blocks look
// like those of BufferPool, and may outlive the pool.
//
// One for the process; thread-safe. A forked child starts with none, and what parent or child hold
// at that moment is not given to anybody again: it stays as it is for both.
//
// A block in which a daemon may still write late (slab.h) is put in quarantine: Quarantine() moves
// it to private memory at the same address, and its slab is retired whole.
class SlabPool {
 public:
  static constexpr std::uint64_t kTotalBytesMax = std::uint64_t{1} << 30;  // Without retired ones.

  static SlabPool& Process();
  SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;
  ~SlabPool();

  // A block of at least `size_bytes`, spanning exactly that. From BufferPool::Process() if it is
  // too small to be worth it, or if the slabs are all in use. Fails with kIo (ENOMEM).
  Result<PooledBuffer> Take(std::size_t size_bytes);

  // Where `bytes` lie, if they are part of a block of a slab and not in quarantine. The slab stays
  // as long as the block does.
  struct Place {
    const SharedSlab* slab;
    std::uint64_t offset_bytes;
  };
  std::optional<Place> Find(std::span<const std::byte> bytes) const;

  // A daemon that was asked to write into `bytes` has not said that it is done. Afterwards nothing
  // it writes is seen in the block that holds them, which keeps its contents. Other threads may use
  // the block meanwhile, such as those that decompress records into it. Nothing happens if `bytes`
  // are in no slab. Fails with kIo (ENOMEM): then `bytes` must not be used.
  //
  // Other daemons may be writing into the block too. When such a one has said that it is done, its
  // bytes may lie in the slab alone: Recover() brings them.
  Result<void> Quarantine(std::span<std::byte> bytes);
  // If the block of `bytes` is in quarantine, copies to them what the slab holds in their place.
  // Fails with kIo.
  Result<void> Recover(std::span<std::byte> bytes) const;
  // Grows with each block that is put in quarantine: while it stays the same, there is nothing to
  // recover.
  std::uint64_t quarantine_count() const noexcept;

  std::uint64_t quarantined_bytes() const;  // In all.

  // Nothing is taken any more from the slab of that number. Its memory is free once its blocks and
  // the connections over which daemons know it are gone.
  bool IsRetired(std::uint64_t number) const;

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;  // With the blocks.
};

}  // namespace ffrecord::net
