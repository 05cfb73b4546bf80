#include "server/service/origin/cache_room.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/timed_waits.h"

namespace ffrecord::server {
namespace {

// How long a fetch waits for the room of what was removed for it.
constexpr std::chrono::seconds kRoomWait{2};

Error CannotCache(ErrorCode code, const std::string& why) {
  return {code, "cannot cache it: " + why, ENOSPC};
}

}  // namespace

CacheRoom::CacheRoom(ExtentStore& store, std::uint64_t size_bytes_max)
    : store_(store), size_bytes_max_(size_bytes_max) {
  for (const auto& disk : store_.disks()) parts_.push_back(std::make_unique<Part>(*disk));
}

CacheRoom::~CacheRoom() {
  BeginStop();
  for (const auto& part : parts_) part->thread.Stop();
}

void CacheRoom::BeginStop() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  worked_.notify_all();
  for (const auto& part : parts_) part->thread.BeginStop();
}

bool CacheRoom::AwaitEnd(Clock::time_point deadline) {
  return std::ranges::all_of(parts_,
                             [&](const auto& part) { return part->thread.AwaitEnd(deadline); });
}

CacheRoom::Part& CacheRoom::PartOf(const Disk& disk) {
  const auto part =
      std::ranges::find_if(parts_, [&](const auto& one) { return &one->disk == &disk; });
  FFR_ASSERT(part != parts_.end());
  return **part;
}

// --- Room ----------------------------------------------------------------------------------------

Result<CacheRoom::Reservation> CacheRoom::Reserve(std::uint64_t size_bytes) {
  std::unique_lock lock(mutex_);
  // Nothing is removed in vain.
  if (size_bytes > size_bytes_max_)
    return CannotCache(ErrorCode::kIo, "it has " + std::to_string(size_bytes) +
                                           " bytes, and the cache may take " +
                                           std::to_string(size_bytes_max_) +
                                           " in all; see the setting origin_cache_mib");
  if (reserved_bytes_ + size_bytes > size_bytes_max_)
    return CannotCache(ErrorCode::kUnavailable, "the cache is full of what is being fetched");
  const std::uint64_t used_bytes = store_.totals().size_bytes + reserved_bytes_ + size_bytes;
  if (used_bytes > size_bytes_max_) (void)Evict(used_bytes - size_bytes_max_, nullptr);
  if (!store_.CheckTakes(size_bytes)) {
    // Once: more would go before the first has left the disk.
    if (Evict(size_bytes, nullptr) > 0)
      WaitFor(worked_, lock, kRoomWait,
              [&] { return is_stopping_ || store_.CheckTakes(size_bytes); });
  }
  if (const auto takes = store_.CheckTakes(size_bytes); !takes) {
    // Other fetches fill the room, and can be evicted for this one later.
    const bool may_pass = reserved_bytes_ > 0 || is_stopping_;
    return CannotCache(may_pass ? ErrorCode::kUnavailable : ErrorCode::kIo,
                       takes.error().message + "; the cache leaves room free for other data");
  }
  reserved_bytes_ += size_bytes;
  return Reservation(*this, size_bytes);
}

void CacheRoom::GiveBack(std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  reserved_bytes_ -= size_bytes;
}

// Removes those that were used least recently, of that disk or of any, until so many bytes are
// gone. How many are. Requires mutex_.
std::uint64_t CacheRoom::Evict(std::uint64_t size_bytes, const Disk* disk) {
  auto extents = store_.FindAll([&](const Extent& one) {
    return one.disk != nullptr && (disk == nullptr || one.disk == disk);
  });
  std::vector<std::pair<std::int64_t, ExtentPtr>> by_use;
  for (ExtentPtr& extent : extents) {
    const std::int64_t used_at = extent->used_at.load(std::memory_order_relaxed);
    by_use.emplace_back(used_at, std::move(extent));
  }
  std::ranges::sort(by_use);
  std::uint64_t gone_bytes = 0;
  for (const auto& [used_at, extent] : by_use) {
    if (gone_bytes >= size_bytes) break;
    RemoveLocked(extent->id);
    gone_bytes += extent->size_bytes;
    ++evicted_count_;
  }
  return gone_bytes;
}

// --- Removal -------------------------------------------------------------------------------------

void CacheRoom::Remove(const ExtentId& id) {
  const std::lock_guard lock(mutex_);
  if (store_.Find(id)) RemoveLocked(id);
}

void CacheRoom::Discard(const Extent& extent) {
  const std::lock_guard lock(mutex_);
  if (store_.Find(extent.id).get() == &extent) RemoveLocked(extent.id);
}

// Requires mutex_.
void CacheRoom::RemoveLocked(const ExtentId& id) {
  ExtentPtr gone = store_.MarkDeleted(id);
  if (!gone || gone->disk == nullptr) return store_.Release({&id, 1});
  Part& part = PartOf(*gone->disk);
  part.unlinking.push_back(std::move(gone));
  PostLocked(part);
}

// Requires mutex_.
void CacheRoom::PostLocked(Part& part) {
  if (std::exchange(part.is_posted, true)) return;
  part.thread.Post([this, &part] { Work(part); });
}

void CacheRoom::Tend() {
  const std::lock_guard lock(mutex_);
  for (const auto& part : parts_) {
    part->is_due = true;
    PostLocked(*part);
  }
}

// In the thread of the disk.
void CacheRoom::Work(Part& part) {
  std::vector<ExtentPtr> unlinking;
  bool is_due = false;
  {
    const std::lock_guard lock(mutex_);
    part.is_posted = false;
    is_due = std::exchange(part.is_due, false);
    unlinking.swap(part.unlinking);
  }
  std::erase_if(unlinking, [this](const ExtentPtr& extent) { return Unlink(*extent); });
  if (is_due) part.disk.RefreshSpace();
  {
    const std::lock_guard lock(mutex_);
    std::ranges::move(unlinking, std::back_inserter(part.unlinking));
    if (is_due && part.disk.space().free_bytes == 0) (void)Evict(kExtentSizeMax, &part.disk);
  }
  worked_.notify_all();
}

// False: it stays marked, and is not fetched meanwhile. A power cut may bring the file back, which
// is no harm: it counts only if its bytes are those of the manifest. The file on a disk that has
// failed stays there, and the extent may be fetched to another one.
bool CacheRoom::Unlink(const Extent& extent) {
  if (!extent.disk->writes().CheckWritable()) {
    store_.Release({&extent.id, 1});
    return true;
  }
  const auto unlinked = store_.Unlink(extent);
  if (!unlinked || !unlinked.value()) return false;
  store_.Release({&extent.id, 1});
  return true;
}

}  // namespace ffrecord::server
