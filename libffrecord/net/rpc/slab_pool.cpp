#include "libffrecord/net/rpc/slab_pool.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/home_process.h"
#include "libffrecord/base/per_process.h"

namespace ffrecord::net {
namespace {

constexpr std::uint64_t kUnit = kSlabPageBytes;
// Below this a copy through the socket costs less than a block.
constexpr std::size_t kBlockBytesMin = std::size_t{64} << 10;
// Each slab is as large as all before it, within these bounds.
constexpr std::uint64_t kSlabBytesLow = std::uint64_t{16} << 20;
constexpr std::uint64_t kSlabBytesHigh = std::uint64_t{256} << 20;

std::atomic<std::uint64_t> fork_count{0};

// Counts forks of this process, before they happen.
std::uint64_t ForkCount() {
  static const bool registered =
      ::pthread_atfork([] { fork_count.fetch_add(1); }, nullptr, nullptr) == 0;
  FFR_ASSERT(registered);
  return fork_count.load(std::memory_order_relaxed);
}

std::uint64_t RoundUp(std::uint64_t size) { return (size + kUnit - 1) / kUnit * kUnit; }

std::uint64_t NextNumber() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

// Gives the process its own copy of the page, if it shares the page with a file. The byte that is
// written is the one that is there; with a plain read and write, that of another thread could be
// lost in between.
void CopyOnWrite(std::byte& first) {
  std::atomic_ref<std::byte> byte(first);
  std::byte value = byte.load(std::memory_order_relaxed);
  while (!byte.compare_exchange_weak(value, value, std::memory_order_relaxed)) {
  }
}

// Replaces the pages of a slab, from `offset_bytes` of its file on, by private copies at the same
// addresses. Other threads may read and write them meanwhile: the kernel copies each page with what
// it holds at that moment. False: there is no memory.
bool MakePrivate(std::span<std::byte> pages, int fd, std::uint64_t offset_bytes) {
  // Mapped apart first: a mapping that cannot be made leaves the old one in place.
  void* const copy = ::mmap(nullptr, pages.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE, fd,
                            static_cast<off_t>(offset_bytes));
  if (copy == MAP_FAILED) return false;
  if (::mremap(copy, pages.size(), pages.size(), MREMAP_MAYMOVE | MREMAP_FIXED, pages.data()) ==
      MAP_FAILED) {
    ::munmap(copy, pages.size());
    return false;
  }
  if (::madvise(pages.data(), pages.size(), MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  // A kernel before 5.14.
  for (std::size_t at = 0; at < pages.size(); at += kUnit) CopyOnWrite(pages[at]);
  return true;
}

// One slab and what of it is taken. Guarded by the pool's mutex, but for what never changes.
struct Region {
  explicit Region(Slab memory) : slab{NextNumber(), std::move(memory)} {
    free[0] = slab.memory.bytes().size();
  }

  std::byte* begin() const { return slab.memory.bytes().data(); }
  std::uint64_t size_bytes() const { return slab.memory.bytes().size(); }

  // First fit: blocks are few, and those of one loader are alike.
  std::optional<std::uint64_t> Take(std::uint64_t size) {
    for (auto range = free.begin(); range != free.end(); ++range) {
      if (range->second < size) continue;
      const std::uint64_t offset = range->first;
      const std::uint64_t rest = range->second - size;
      free.erase(range);
      if (rest > 0) free[offset + size] = rest;
      taken[offset] = {size, false};
      return offset;
    }
    return std::nullopt;
  }

  void GiveBack(std::uint64_t offset) {
    std::uint64_t size = taken.at(offset).size_bytes;
    taken.erase(offset);
    auto next = free.lower_bound(offset);
    if (next != free.end() && next->first == offset + size) {
      size += next->second;
      next = free.erase(next);
    }
    if (next != free.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += size;
        return;
      }
    }
    free[offset] = size;
  }

  struct Block {
    std::uint64_t size_bytes = 0;
    bool is_quarantined = false;  // Its pages are private ones.
  };

  const SharedSlab slab;
  const std::uint64_t fork_count = ForkCount();
  bool is_retired = false;                      // Nothing more is taken from it.
  std::map<std::uint64_t, std::uint64_t> free;  // Offset to size.
  std::map<std::uint64_t, Block> taken;         // By offset.
};

}  // namespace

struct SlabPool::Shared {
  // The region and the block that hold `bytes`, or null.
  std::pair<Region*, std::uint64_t> BlockOf(std::span<const std::byte> bytes) const {
    auto after = regions.upper_bound(bytes.data());
    if (after == regions.begin()) return {};
    Region& region = *std::prev(after)->second;
    const auto offset = static_cast<std::uint64_t>(bytes.data() - region.begin());
    auto block = region.taken.upper_bound(offset);
    if (offset >= region.size_bytes() || block == region.taken.begin()) return {};
    --block;
    if (bytes.size() > block->second.size_bytes ||
        offset - block->first > block->second.size_bytes - bytes.size())
      return {};
    return {&region, block->first};
  }

  void Retire(Region& region) {
    if (!std::exchange(region.is_retired, true)) live_bytes -= region.size_bytes();
  }

  void RetireForked() {
    const std::uint64_t count = ForkCount();
    for (auto& [begin, region] : regions)
      if (region->fork_count != count) Retire(*region);
    DropRetired();
  }

  void DropRetired() {
    std::erase_if(regions, [](const auto& entry) {
      return entry.second->is_retired && entry.second->taken.empty();
    });
  }

  void GiveBack(Region& region, std::uint64_t offset) {
    const std::lock_guard lock(mutex);
    const Region::Block block = region.taken.at(offset);
    if (block.is_quarantined) {
      // Private pages, which nobody needs now; the slab below them is never used again.
      ::madvise(region.begin() + offset, block.size_bytes, MADV_DONTNEED);
    }
    region.GiveBack(offset);
    if (region.is_retired) DropRetired();
  }

  mutable std::mutex mutex;
  std::map<const std::byte*, std::shared_ptr<Region>, std::less<>> regions;  // By address.
  std::uint64_t live_bytes = 0;  // Bytes of regions that are not retired.
  std::uint64_t quarantined_bytes = 0;
  std::atomic<std::uint64_t> quarantine_count = 0;  // Changed with the mutex, read without.
};

SlabPool& SlabPool::Process() {
  // Leaked: blocks outlive every static.
  static auto* const pools = new PerProcess<SlabPool>([] { return new SlabPool; });
  return pools->Get();
}

SlabPool::SlabPool() : shared_(std::make_shared<Shared>()) {}
SlabPool::~SlabPool() = default;

Result<PooledBuffer> SlabPool::Take(std::size_t size_bytes) {
  if (size_bytes < kBlockBytesMin || size_bytes > kTotalBytesMax / 2)
    return BufferPool::Process().Take(size_bytes);
  const std::uint64_t size = RoundUp(size_bytes);
  const std::lock_guard lock(shared_->mutex);
  shared_->RetireForked();
  std::shared_ptr<Region> region;
  std::optional<std::uint64_t> offset;
  for (auto& [begin, candidate] : shared_->regions) {
    if (candidate->is_retired) continue;
    offset = candidate->Take(size);
    if (!offset) continue;
    region = candidate;
    break;
  }
  if (!region) {
    const std::uint64_t slab_bytes =
        std::max(size, std::clamp(shared_->live_bytes, kSlabBytesLow, kSlabBytesHigh));
    if (shared_->live_bytes + slab_bytes > kTotalBytesMax)
      return BufferPool::Process().Take(size_bytes);
    region = std::make_shared<Region>(FFR_TRY(Slab::Make(slab_bytes)));
    shared_->regions.emplace(region->begin(), region);
    shared_->live_bytes += slab_bytes;
    offset = region->Take(size);
  }
  FFR_ASSERT(offset);
  auto* const view = new std::span<std::byte>(region->begin() + *offset, size_bytes);
  return PooledBuffer(view, [shared = shared_, region, at = *offset,
                             home = HomeProcess()](std::span<std::byte>* dead) {
    delete dead;
    // A child has only a copy of the books, whose mutex may be locked for ever.
    if (home.is_here()) shared->GiveBack(*region, at);
  });
}

std::optional<SlabPool::Place> SlabPool::Find(std::span<const std::byte> bytes) const {
  const std::lock_guard lock(shared_->mutex);
  const auto [region, block] = shared_->BlockOf(bytes);
  if (region == nullptr || region->taken.at(block).is_quarantined) return std::nullopt;
  return Place{&region->slab, static_cast<std::uint64_t>(bytes.data() - region->begin())};
}

Result<void> SlabPool::Quarantine(std::span<std::byte> bytes) {
  const std::lock_guard lock(shared_->mutex);
  const auto [region, offset] = shared_->BlockOf(bytes);
  if (region == nullptr || region->taken.at(offset).is_quarantined) return {};
  Region::Block& block = region->taken.at(offset);
  shared_->Retire(*region);
  ++shared_->quarantine_count;
  shared_->quarantined_bytes += block.size_bytes;
  const std::span<std::byte> whole(region->begin() + offset, block.size_bytes);
  block.is_quarantined = MakePrivate(whole, region->slab.memory.fd(), offset);
  if (block.is_quarantined) return {};
  return Error{ErrorCode::kIo,
               "no memory to move " + std::to_string(block.size_bytes) +
                   " bytes out of reach of a daemon that did not answer",
               ENOMEM};
}

Result<void> SlabPool::Recover(std::span<std::byte> bytes) const {
  const std::lock_guard lock(shared_->mutex);
  const auto [region, block] = shared_->BlockOf(bytes);
  if (region == nullptr || !region->taken.at(block).is_quarantined) return {};
  const auto begin = static_cast<std::uint64_t>(bytes.data() - region->begin());
  for (std::size_t done = 0; done < bytes.size();) {
    const auto rest = bytes.subspan(done);
    const ssize_t size = ::pread(region->slab.memory.fd(), rest.data(), rest.size(),
                                 static_cast<off_t>(begin + done));
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0)
      return Error{ErrorCode::kIo,
                   std::string("cannot read shared memory: ") + std::strerror(errno), errno};
    done += static_cast<std::size_t>(size);
  }
  return {};
}

std::uint64_t SlabPool::quarantine_count() const noexcept { return shared_->quarantine_count; }

bool SlabPool::IsRetired(std::uint64_t number) const {
  const std::lock_guard lock(shared_->mutex);
  return std::ranges::none_of(shared_->regions, [&](const auto& entry) {
    return entry.second->slab.number == number && !entry.second->is_retired;
  });
}

std::uint64_t SlabPool::quarantined_bytes() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->quarantined_bytes;
}

}  // namespace ffrecord::net
