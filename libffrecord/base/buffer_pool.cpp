#include "libffrecord/base/buffer_pool.h"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <mutex>
#include <string>
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
  const std::size_t quarter = std::size_t{1} << (bits - 3);     // Of the lower power, 2^(bits-1).
  const std::size_t quarters = (size + quarter - 1) / quarter;  // 5 to 8.
  const std::size_t size_rounded =
      (quarters * quarter + BufferPool::kAlignment - 1) & ~(BufferPool::kAlignment - 1);
  return {(bits - 1 - kSmallestBits) * 4 + quarters - 4, size_rounded};
}

// The inverse of ClassOf: the size of the blocks of a class.
std::size_t SizeOfClass(std::size_t index) {
  if (index == 0) return std::size_t{1} << kSmallestBits;
  const std::size_t bits = kSmallestBits + (index - 1) / 4;  // Of the lower power.
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
  mutable std::mutex mutex;
  std::array<std::vector<void*>, kClassCount> idle;
  std::size_t idle_bytes = 0;
  std::size_t used_bytes = 0;
  std::size_t cap_bytes = MachineMemoryBytes() / 2;

  // Counts a block of this class as used, if the cap allows, and gives one that is idle if there
  // is one. `freed` are blocks that must go for it.
  struct Taken {
    bool allowed;
    void* block = nullptr;
    std::vector<Block> freed = {};
  };
  Taken TakeIdle(const SizeClass& size_class) {
    const std::lock_guard lock(mutex);
    if (used_bytes > 0 && used_bytes + size_class.size_bytes > cap_bytes) return {false};
    used_bytes += size_class.size_bytes;
    auto& blocks = idle[size_class.index];
    if (blocks.empty()) return {true, nullptr, FreeIdle()};
    void* block = blocks.back();
    blocks.pop_back();
    idle_bytes -= size_class.size_bytes;
    return {true, block};
  }

  // Takes idle blocks out, the largest first, until the rest fits below the cap. Requires the lock.
  std::vector<Block> FreeIdle() {
    std::vector<Block> freed;
    for (std::size_t index = kClassCount; index-- > 0 && used_bytes + idle_bytes > cap_bytes;) {
      auto& blocks = idle[index];
      while (!blocks.empty() && used_bytes + idle_bytes > cap_bytes) {
        freed.push_back({blocks.back(), SizeOfClass(index)});
        blocks.pop_back();
        idle_bytes -= freed.back().size_bytes;
      }
    }
    return freed;
  }

  void Return(void* block, const SizeClass& size_class) {
    {
      const std::lock_guard lock(mutex);
      used_bytes -= size_class.size_bytes;
      const std::size_t idle_after = idle_bytes + size_class.size_bytes;
      if (idle_after <= kIdleMax && used_bytes + idle_after <= cap_bytes) {
        idle[size_class.index].push_back(block);
        idle_bytes = idle_after;
        return;
      }
    }
    ::munmap(block, size_class.size_bytes);
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
  const SizeClass size_class = ClassOf(size_bytes);
  Shared& pool = shared();
  auto [allowed, block, freed] = pool.TakeIdle(size_class);
  Unmap(freed);
  if (!allowed)
    return no_memory(std::to_string(used_bytes()) + " bytes are in use and the cap is " +
                     std::to_string(cap_bytes()) +
                     "; let batches go, read smaller ones, or raise the cap");
  if (block == nullptr) block = Map(size_class.size_bytes);
  if (block == nullptr) {
    const std::lock_guard lock(pool.mutex);
    pool.used_bytes -= size_class.size_bytes;
    return no_memory("the kernel refuses it; read smaller batches or raise the memory limit");
  }
  auto* view = new std::span<std::byte>(static_cast<std::byte*>(block), size_bytes);
  return PooledBuffer(view, [&pool, block = block, size_class](std::span<std::byte>* dead) {
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
