#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "libffrecord/io/mapped_file.h"
#include "libffrecord/source/block_cache.h"
#include "libffrecord/source/resident_files.h"

namespace ffrecord {

// Shows one file of a BlockCache as one range of memory, into which it maps the cache's entries. So
// blocks in the page cache are copied without a system call, as from a local file.
//
// Only the table of an entry tells which blocks it holds: the checksum of the record finds bytes
// that are damaged or that another process evicted. Thread-safe, but not for a forked child.
class CachedView final : public ResidentFiles::Presence {
 public:
  using Entry = std::shared_ptr<BlockCache::Entry>;

  CachedView(std::shared_ptr<const BlockCache> cache, const BlockCache::File& file);
  ~CachedView() override;
  CachedView(const CachedView&) = delete;
  CachedView& operator=(const CachedView&) = delete;

  // The whole file; empty if the address space is too small. Use only parts that Has() finds.
  std::span<const std::byte> bytes() const noexcept { return bytes_; }
  bool Has(std::uint64_t offset_bytes, std::uint64_t size_bytes) const override;

  // Notes that the entry holds the blocks of this range.
  void Add(const Entry& entry, std::uint64_t offset_bytes, std::uint64_t size_bytes) const;
  // Notes that the cache lacks the range, or that it is damaged there.
  void Remove(std::uint64_t offset_bytes, std::uint64_t size_bytes) const noexcept;

  // Marks the entries that were used since the last call as used, and unmaps those that were
  // removed. Does nothing most of the time.
  void Refresh() const;

 private:
  static constexpr std::uint64_t kBitsPerWord = 64;

  struct Slot {
    enum State : std::uint8_t { kUnknown, kAbsent, kMapped };
    std::atomic<std::uint8_t> state{kUnknown};
    std::atomic<bool> was_used{false};
    std::atomic<std::uint64_t> inode{0};  // The mapped entry's.
  };

  bool Find(std::uint64_t number) const;
  bool Map(Slot& slot, const BlockCache::Entry& entry) const;
  void Unmap(std::uint64_t number, Slot& slot) const;
  void SetBits(std::uint64_t first_block, std::uint64_t count) const noexcept;
  void ClearBits(std::uint64_t first_block, std::uint64_t count) const noexcept;
  std::uint64_t BlocksOf(std::uint64_t number) const noexcept;

  const std::shared_ptr<const BlockCache> cache_;
  const BlockCache::File file_;
  const std::uint64_t block_count_;
  void* address_ = nullptr;
  SigbusGuard guard_;
  std::span<const std::byte> bytes_;
  mutable std::vector<Slot> slots_;
  mutable std::vector<std::atomic<std::uint64_t>> bits_;  // One bit per block.
  mutable std::mutex mutex_;                              // Guards what is mapped where.
  mutable std::atomic<std::int64_t> refresh_at_ms_{0};
};

}  // namespace ffrecord
