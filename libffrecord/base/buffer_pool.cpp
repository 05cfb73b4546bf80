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

#include "libffrecord/base/assert.h"

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

}  // namespace

struct BufferPool::Shared {
  mutable std::mutex mutex;
  std::array<std::vector<void*>, kClassCount> idle;
  std::size_t idle_bytes = 0;
  std::size_t used_bytes = 0;

  void* TakeIdle(const SizeClass& size_class) {
    const std::lock_guard lock(mutex);
    used_bytes += size_class.size_bytes;
    auto& blocks = idle[size_class.index];
    if (blocks.empty()) return nullptr;
    void* block = blocks.back();
    blocks.pop_back();
    idle_bytes -= size_class.size_bytes;
    return block;
  }

  void Return(void* block, const SizeClass& size_class) {
    {
      const std::lock_guard lock(mutex);
      used_bytes -= size_class.size_bytes;
      if (idle_bytes + size_class.size_bytes <= kIdleMax) {
        idle[size_class.index].push_back(block);
        idle_bytes += size_class.size_bytes;
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
  const auto no_memory = [&] {
    return Error{ErrorCode::kIo,
                 "no memory for a buffer of " + std::to_string(size_bytes) +
                     " bytes; read smaller batches or raise the memory limit",
                 ENOMEM};
  };
  if (size_bytes > kLargest) return no_memory();
  const SizeClass size_class = ClassOf(size_bytes);
  Shared& pool = shared();
  void* block = pool.TakeIdle(size_class);
  if (block == nullptr) {
    block = ::mmap(nullptr, size_class.size_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) {
      const std::lock_guard lock(pool.mutex);
      pool.used_bytes -= size_class.size_bytes;
      return no_memory();
    }
    // Only a hint, and refused where huge pages are switched off.
    if (size_class.size_bytes >= kHugePage) ::madvise(block, size_class.size_bytes, MADV_HUGEPAGE);
  }
  auto* view = new std::span<std::byte>(static_cast<std::byte*>(block), size_bytes);
  return PooledBuffer(view, [&pool, block, size_class](std::span<std::byte>* dead) {
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

}  // namespace ffrecord
