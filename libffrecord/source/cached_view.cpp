#include "libffrecord/source/cached_view.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <utility>

#include "libffrecord/base/align.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/io/page_cache.h"

namespace ffrecord {
namespace {

constexpr std::uint64_t kBlock = BlockCache::kBlockBytes;
constexpr std::uint64_t kBlocksPerEntry = BlockCache::kEntryBytes / kBlock;
// The number of mappings that one process makes. The kernel allows 65,530 by default, of everything
// in the process. Beside each of these may lie a part without an entry, and a page that is lost
// cuts one into three; where the kernel refuses that, SIGBUS ends the process.
constexpr std::uint32_t kMappingsMax = 16'000;
std::atomic<std::uint32_t> mapping_count{0};

// Refresh() takes at most one part in this many of the time.
constexpr std::int64_t kRefreshShare = 200;
constexpr std::int64_t kRefreshIntervalMs = 1000;

std::int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
      .count();
}

}  // namespace

CachedView::CachedView(std::shared_ptr<const BlockCache> cache, const BlockCache::File& file)
    : cache_(std::move(cache)),
      file_(file),
      block_count_((file.size_bytes + kBlock - 1) / kBlock),
      slots_((block_count_ + kBlocksPerEntry - 1) / kBlocksPerEntry),
      bits_((block_count_ + kBitsPerWord - 1) / kBitsPerWord) {
  if (file.size_bytes == 0) return;
  // Parts without an entry read as zeros.
  void* const address = ::mmap(nullptr, block_count_ * kBlock, PROT_READ,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return;
  address_ = address;
  guard_ = SigbusGuard(address, block_count_ * kBlock);
  bytes_ = {static_cast<const std::byte*>(address), file.size_bytes};
}

CachedView::~CachedView() {
  guard_ = SigbusGuard();
  if (address_ != nullptr) ::munmap(address_, block_count_ * kBlock);
  for (const Slot& slot : slots_)
    if (slot.state.load() == Slot::kMapped) mapping_count.fetch_sub(1);
}

std::uint64_t CachedView::BlocksOf(std::uint64_t number) const noexcept {
  return std::min(kBlocksPerEntry, block_count_ - number * kBlocksPerEntry);
}

bool CachedView::Has(std::uint64_t offset_bytes, std::uint64_t size_bytes) const {
  if (bytes_.empty()) return false;
  if (size_bytes == 0) return true;
  const std::uint64_t end = (offset_bytes + size_bytes + kBlock - 1) / kBlock;
  for (std::uint64_t block = offset_bytes / kBlock; block < end;) {
    Slot& slot = slots_[block / kBlocksPerEntry];
    const auto state = slot.state.load(std::memory_order_acquire);
    if (state == Slot::kAbsent) return false;
    if (state == Slot::kUnknown && !Find(block / kBlocksPerEntry)) return false;
    if (!slot.was_used.load(std::memory_order_relaxed))
      slot.was_used.store(true, std::memory_order_relaxed);
    const std::uint64_t entry_end =
        std::min(end, AlignDown(block, kBlocksPerEntry) + kBlocksPerEntry);
    while (block < entry_end) {
      const std::uint64_t bit = block % kBitsPerWord;
      const std::uint64_t count = std::min(entry_end - block, kBitsPerWord - bit);
      const std::uint64_t mask = (~std::uint64_t{0} >> (kBitsPerWord - count)) << bit;
      const auto word = bits_[block / kBitsPerWord].load(std::memory_order_relaxed);
      if ((word & mask) != mask) return false;
      block += count;
    }
  }
  return true;
}

// Looks for the entry once. Add() learns of entries that are made later.
bool CachedView::Find(std::uint64_t number) const {
  const std::scoped_lock lock(mutex_);
  Slot& slot = slots_[number];
  if (slot.state.load() != Slot::kUnknown) return slot.state.load() == Slot::kMapped;
  const auto entry = cache_->EntryAt(file_, number);
  if (entry != nullptr && Map(slot, *entry)) return true;
  slot.state.store(Slot::kAbsent);
  return false;
}

// Requires the mutex. Maps elsewhere first: a file that refuses to be mapped, as on some FUSE file
// systems, would leave a hole at its place, where the next mapping of anybody may lie.
bool CachedView::Map(Slot& slot, const BlockCache::Entry& entry) const {
  const std::uint64_t blocks = BlocksOf(entry.number);
  const std::uint64_t first_block = entry.number * kBlocksPerEntry;
  const bool is_new = slot.state.load() != Slot::kMapped;
  if (bytes_.empty() || (is_new && mapping_count.load() >= kMappingsMax)) return false;
  auto* const place = static_cast<std::byte*>(address_) + entry.number * BlockCache::kEntryBytes;
  void* const fresh = ::mmap(nullptr, blocks * kBlock, PROT_READ, MAP_SHARED, entry.fd.get(),
                             static_cast<off_t>(BlockCache::kDataBegin));
  if (fresh == MAP_FAILED) return false;
  ClearBits(first_block, blocks);
  if (::mremap(fresh, blocks * kBlock, blocks * kBlock, MREMAP_MAYMOVE | MREMAP_FIXED, place) ==
      MAP_FAILED) {
    ::munmap(fresh, blocks * kBlock);
    return false;
  }
  if (is_new) mapping_count.fetch_add(1);
  ExpectRandomAccess({place, blocks * kBlock});
  std::vector<std::uint64_t> checks(blocks);
  if (BlockCache::ReadChecks(entry, 0, checks))
    for (std::uint64_t block = 0; block < blocks; ++block)
      if (checks[block] != 0) SetBits(first_block + block, 1);
  slot.inode.store(entry.inode);
  slot.state.store(Slot::kMapped, std::memory_order_release);
  return true;
}

// Requires the mutex. A thread that copies from the entry at this moment reads zeros.
void CachedView::Unmap(std::uint64_t number, Slot& slot) const {
  ClearBits(number * kBlocksPerEntry, BlocksOf(number));
  ::mmap(static_cast<std::byte*>(address_) + number * BlockCache::kEntryBytes,
         BlocksOf(number) * kBlock, PROT_READ,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  mapping_count.fetch_sub(1);
  slot.inode.store(0);
  slot.state.store(Slot::kUnknown);
}

void CachedView::Add(const Entry& entry, std::uint64_t offset_bytes,
                     std::uint64_t size_bytes) const {
  if (bytes_.empty()) return;
  Slot& slot = slots_[entry->number];
  const auto is_mapped = [&] {
    return slot.state.load() == Slot::kMapped && slot.inode.load() == entry->inode;
  };
  if (!is_mapped()) {
    const std::scoped_lock lock(mutex_);
    if (!is_mapped() && !Map(slot, *entry)) return;
  }
  const std::uint64_t first_block = offset_bytes / kBlock;
  SetBits(first_block, (offset_bytes + size_bytes + kBlock - 1) / kBlock - first_block);
}

void CachedView::Remove(std::uint64_t offset_bytes, std::uint64_t size_bytes) const noexcept {
  if (bytes_.empty()) return;
  const std::uint64_t first_block = offset_bytes / kBlock;
  ClearBits(first_block, (offset_bytes + size_bytes + kBlock - 1) / kBlock - first_block);
}

void CachedView::SetBits(std::uint64_t first_block, std::uint64_t count) const noexcept {
  for (std::uint64_t block = first_block; block < first_block + count; ++block)
    bits_[block / kBitsPerWord].fetch_or(std::uint64_t{1} << block % kBitsPerWord);
}

void CachedView::ClearBits(std::uint64_t first_block, std::uint64_t count) const noexcept {
  for (std::uint64_t block = first_block; block < first_block + count; ++block)
    bits_[block / kBitsPerWord].fetch_and(~(std::uint64_t{1} << block % kBitsPerWord));
}

void CachedView::Refresh() const {
  const std::int64_t now = NowMs();
  std::int64_t due = refresh_at_ms_.load(std::memory_order_relaxed);
  if (now < due || !refresh_at_ms_.compare_exchange_strong(due, now + kRefreshIntervalMs)) return;
  for (std::uint64_t number = 0; number < slots_.size(); ++number) {
    Slot& slot = slots_[number];
    if (!slot.was_used.load(std::memory_order_relaxed) || !slot.was_used.exchange(false)) continue;
    const std::uint64_t inode = slot.inode.load();
    if (slot.state.load() != Slot::kMapped || cache_->Touch(file_, number, inode)) continue;
    const std::scoped_lock lock(mutex_);
    if (slot.inode.load() == inode) Unmap(number, slot);
  }
  const std::int64_t took = NowMs() - now;
  refresh_at_ms_.store(now + std::max(kRefreshIntervalMs, took * kRefreshShare));
}

}  // namespace ffrecord
