#include "libffrecord/base/buffer_pool.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/memory.h>

#include "libffrecord/base/machine_memory.h"

namespace ffrecord {
namespace {

// Size classes: four to each power of two, so that at most a quarter of a block is wasted. The
// classes from 4 KiB (2^12) up to 2^47 bytes.
constexpr std::size_t kSmallestBits = 12;
constexpr std::size_t kClassCount = (47 - kSmallestBits) * 4;
constexpr std::size_t kLargest = std::size_t{1} << 46;

// An idle block serves requests of its class and of the next lower ones, if more than half of it is
// wanted.
constexpr std::size_t kClassesAbove = 4;
// "Lately" is this window and the one before; one ends when its peak was taken that often.
constexpr std::size_t kTurns = 4;

// From this size on a block is worth huge pages.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

struct SizeClass {
  std::size_t index;
  std::size_t size_bytes;
};

SizeClass ClassOf(std::size_t size_bytes) {
  const std::size_t size = std::max(size_bytes, std::size_t{1} << kSmallestBits);
  const auto bits = static_cast<std::size_t>(std::bit_width(size - 1));  // 2^bits >= size
  if (bits <= kSmallestBits) return {0, std::size_t{1} << kSmallestBits};
  const std::size_t quarter = std::size_t{1} << (bits - 3);     // A quarter of 2^(bits-1).
  const std::size_t quarters = (size + quarter - 1) / quarter;  // 5 to 8.
  const std::size_t size_rounded =
      (quarters * quarter + BufferPool::kAlignment - 1) & ~(BufferPool::kAlignment - 1);
  return {(bits - 1 - kSmallestBits) * 4 + quarters - 4, size_rounded};
}

// The inverse of ClassOf: the size of the blocks of a class.
std::size_t SizeOfClass(std::size_t index) {
  if (index == 0) return std::size_t{1} << kSmallestBits;
  const std::size_t bits = kSmallestBits + (index - 1) / 4;  // Exponent of the lower power.
  const std::size_t quarters = 5 + (index - 1) % 4;
  const std::size_t size = quarters << (bits - 2);
  return (size + BufferPool::kAlignment - 1) & ~(BufferPool::kAlignment - 1);
}

struct Block {
  void* address;
  std::size_t size_bytes;
};

void Unmap(std::span<const Block> blocks) {
  for (const Block& block : blocks) ::munmap(block.address, block.size_bytes);
}

// A fresh block; null if there is no memory. One that is worth huge pages begins at one.
void* Map(std::size_t size_bytes) {
  const std::size_t extra = size_bytes >= kHugePage ? kHugePage : 0;
  void* mapped = ::mmap(nullptr, size_bytes + extra, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  if (extra == 0) return mapped;
  const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
  const std::size_t before = -begin % kHugePage;
  if (before > 0) ::munmap(mapped, before);
  void* block = static_cast<std::byte*>(mapped) + before;
  if (before < extra) ::munmap(static_cast<std::byte*>(block) + size_bytes, extra - before);
  // Only a hint, and refused where huge pages are switched off.
  ::madvise(block, size_bytes, MADV_HUGEPAGE);
  return block;
}

}  // namespace

struct BufferPool::Shared {
  struct Idle {
    void* address;
    std::uint64_t returned;  // The higher, the later.
  };

  mutable std::mutex mutex;
  std::array<std::deque<Idle>, kClassCount> idle;  // By class; the last was used last.
  std::uint64_t returned_count = 0;
  std::size_t idle_bytes = 0;
  std::size_t used_bytes = 0;
  std::size_t cap_bytes = MachineMemoryBytes() / 2;
  // The most that was in use at once, in this window and the one before; what this one took.
  std::size_t peak_bytes = 0;
  std::size_t peak_before_bytes = 0;
  std::size_t taken_bytes = 0;

  // Counts a block as used, if the cap allows: one that is idle if there is one that fits, else one
  // of `size_class`, which the caller must map. `freed` are blocks that must go for it.
  struct Taken {
    bool allowed;
    SizeClass size_class;
    void* block = nullptr;
    std::vector<Block> freed = {};
  };
  Taken TakeIdle(const SizeClass& size_class) {
    const std::lock_guard lock(mutex);
    if (used_bytes > 0 && used_bytes + size_class.size_bytes > cap_bytes)
      return {false, size_class};
    Taken taken{true, size_class};
    for (std::size_t index = size_class.index;
         index < std::min(size_class.index + kClassesAbove, kClassCount); ++index) {
      if (idle[index].empty()) continue;
      taken.size_class = {index, SizeOfClass(index)};
      taken.block = idle[index].back().address;
      idle[index].pop_back();
      idle_bytes -= taken.size_class.size_bytes;
      break;
    }
    used_bytes += taken.size_class.size_bytes;
    CountTaken(taken.size_class.size_bytes);
    taken.freed = FreeIdle();
    return taken;
  }

  // Requires the lock.
  void CountTaken(std::size_t size_bytes) {
    peak_bytes = std::max(peak_bytes, used_bytes);
    taken_bytes += size_bytes;
    if (taken_bytes / kTurns < std::max(peak_bytes, peak_before_bytes)) return;
    peak_before_bytes = std::exchange(peak_bytes, used_bytes);
    taken_bytes = 0;
  }

  // Takes idle blocks out, those first that were not used for the longest, until the rest is no
  // more than may be kept. Requires the lock.
  std::vector<Block> FreeIdle() {
    const std::size_t limit = std::min(cap_bytes, std::max(peak_bytes, peak_before_bytes));
    std::vector<Block> freed;
    while (idle_bytes > 0 && (used_bytes + idle_bytes > limit || idle_bytes > kIdleMax)) {
      std::size_t oldest = kClassCount;
      for (std::size_t index = 0; index < kClassCount; ++index)
        if (!idle[index].empty() &&
            (oldest == kClassCount || idle[index].front().returned < idle[oldest].front().returned))
          oldest = index;
      freed.push_back({idle[oldest].front().address, SizeOfClass(oldest)});
      idle[oldest].pop_front();
      idle_bytes -= freed.back().size_bytes;
    }
    return freed;
  }

  void Return(void* block, const SizeClass& size_class) {
    std::vector<Block> freed;
    {
      const std::lock_guard lock(mutex);
      used_bytes -= size_class.size_bytes;
      idle[size_class.index].push_back({block, returned_count++});
      idle_bytes += size_class.size_bytes;
      freed = FreeIdle();
    }
    Unmap(freed);
  }
};

BufferPool& BufferPool::Process() {
  // Never destroyed: batches may outlive every static.
  static auto* pool = new BufferPool;
  return *pool;
}

BufferPool::Shared& BufferPool::shared() const {
  static Shared* const shared = [] {
    static auto* made = new Shared;
    // A mutex that another thread holds while this one forks would stay locked in the child.
    ::pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                     [] { made->mutex.unlock(); });
    return made;
  }();
  return *shared;
}

Result<PooledBuffer> BufferPool::Take(std::size_t size_bytes) {
  const auto no_memory = [&](const std::string& why) {
    return Error{ErrorCode::kIo,
                 "no memory for a buffer of " + std::to_string(size_bytes) + " bytes: " + why,
                 ENOMEM};
  };
  if (size_bytes > kLargest) return no_memory("no machine has so much; read smaller batches");
  Shared& pool = shared();
  auto [allowed, size_class, block, freed] = pool.TakeIdle(ClassOf(size_bytes));
  Unmap(freed);
  if (!allowed)
    return no_memory(std::to_string(used_bytes()) + " bytes are in use and the cap is " +
                     std::to_string(cap_bytes()) +
                     "; release batches, read smaller ones, or raise the cap");
  if (block == nullptr) block = Map(size_class.size_bytes);
  if (block == nullptr) {
    const std::lock_guard lock(pool.mutex);
    pool.used_bytes -= size_class.size_bytes;
    return no_memory("the kernel refuses it; read smaller batches or raise the memory limit");
  }
  auto* view = new std::span<std::byte>(static_cast<std::byte*>(block), size_bytes);
  return PooledBuffer(view,
                      [&pool, block = block, size_class = size_class](std::span<std::byte>* dead) {
                        delete dead;
                        pool.Return(block, size_class);
                      });
}

std::size_t BufferPool::idle_bytes() const {
  const std::lock_guard lock(shared().mutex);
  return shared().idle_bytes;
}

std::size_t BufferPool::used_bytes() const {
  const std::lock_guard lock(shared().mutex);
  return shared().used_bytes;
}

std::size_t BufferPool::cap_bytes() const {
  const std::lock_guard lock(shared().mutex);
  return shared().cap_bytes;
}

void BufferPool::SetCap(std::size_t cap_bytes) {
  std::vector<Block> freed;
  {
    const std::lock_guard lock(shared().mutex);
    shared().cap_bytes = cap_bytes;
    freed = shared().FreeIdle();
  }
  Unmap(freed);
}

MemoryUse GetMemoryUse() noexcept {
  const BufferPool& pool = BufferPool::Process();
  return {pool.cap_bytes(), pool.used_bytes(), pool.idle_bytes()};
}

void SetMemoryCap(std::uint64_t cap_bytes) noexcept { BufferPool::Process().SetCap(cap_bytes); }

}  // namespace ffrecord
