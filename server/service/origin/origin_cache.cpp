#include "server/service/origin/origin_cache.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "libffrecord/base/hex.h"

namespace ffrecord::server {
namespace {

// For folders and for stores, each: a folder that hangs holds up no store. Each thread holds a few
// pieces of an extent.
constexpr std::size_t kThreadCount = 4;
// Fetches that wait for a thread: what is asked for beyond is asked for again.
constexpr std::uint32_t kFetchingMax = 256;
// The order of use need not be finer.
constexpr auto kUseTick = std::chrono::milliseconds(1);

std::int64_t Now() { return OriginCache::Clock::now().time_since_epoch() / kUseTick; }

// What a client is told at once: to ask again is of no use before somebody has changed something.
// None: it may pass.
ErrorCode FinalOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kConflict:
      return ErrorCode::kCorruption;
    case ErrorCode::kNotFound:
      return ErrorCode::kNotFound;
    case ErrorCode::kDenied:
    case ErrorCode::kInvalidArgument:
      return ErrorCode::kDenied;
    default:
      return ErrorCode::kOk;
  }
}

// What fails on this node's side says nothing of the origin, and may pass.
template <class T>
Result<T> AtHome(Result<T> result) {
  if (result) return result;
  return Error{ErrorCode::kUnavailable, "cannot cache it: " + result.error().message,
               result.error().system_errno};
}

}  // namespace

Result<std::unique_ptr<OriginCache>> OriginCache::Open(const Options& options, IsMine is_mine) {
  ExtentStore::Disks disks;
  for (const auto& folder : options.folders) {
    auto disk = FFR_TRY(Disk::Open(folder));
    disk->set_is_cache();
    disk->set_kept_bytes(std::min(options.free_bytes_min, disk->space().size_bytes / 20));
    disks.present.push_back(std::move(disk));
  }
  auto store = FFR_TRY(ExtentStore::Open(std::move(disks)));
  spdlog::info("event=origin_cache extents={} bytes={}", store->totals().extent_count,
               store->totals().size_bytes);
  return std::unique_ptr<OriginCache>(
      new OriginCache(options, std::move(is_mine), std::move(store)));
}

OriginCache::OriginCache(const Options& options, IsMine is_mine, std::unique_ptr<ExtentStore> store)
    : options_(options),
      is_mine_(std::move(is_mine)),
      reader_(options.reader),
      store_(std::move(store)),
      folder_threads_(kThreadCount),
      store_threads_(kThreadCount) {}

void OriginCache::Stop() {
  folder_threads_.Stop();
  store_threads_.Stop();
}

// --- Names ---------------------------------------------------------------------------------------

void OriginCache::Change(const DatasetManifest* before, const DatasetManifest* after) {
  const std::lock_guard lock(mutex_);
  if (after != nullptr && after->has_origins()) {
    for (const ManifestFile& file : after->files) {
      const auto origin =
          std::make_shared<const OriginFile>(OriginFile{file.origin, file.size_bytes});
      for (std::size_t i = 0; i < file.extents.size(); ++i) {
        Entry& entry = entries_[file.extents[i].id];
        if (entry.name_count == 0) {
          entry.extent = file.extents[i];
          entry.file = origin;
          entry.offset_bytes = i * kExtentSizeMax;
        }
        ++entry.name_count;
      }
    }
  }
  if (before == nullptr || !before->has_origins()) return;
  for (const ManifestFile& file : before->files)
    for (const ManifestExtent& extent : file.extents) {
      const auto entry = entries_.find(extent.id);
      if (entry != entries_.end() && --entry->second.name_count == 0)
        entry->second.removed = Clock::now();
    }
}

bool OriginCache::Knows(const ExtentId& id) const {
  const std::lock_guard lock(mutex_);
  return entries_.contains(id);
}

// --- Reads ---------------------------------------------------------------------------------------

ExtentPtr OriginCache::FindCached(const ManifestExtent& extent) const {
  ExtentPtr found = store_->Find(extent.id);
  if (!found || found->is_bad.load(std::memory_order_relaxed) ||
      found->size_bytes != extent.size_bytes || found->xxh3 != extent.xxh3)
    return nullptr;
  return found;
}

ExtentPtr OriginCache::Find(const ExtentId& id) { return Look(id, /*is_read=*/false); }

ExtentPtr OriginCache::Use(const ExtentPtr& extent) {
  if (extent->disk == nullptr || extent->is_deleted.load(std::memory_order_acquire) ||
      extent->is_bad.load(std::memory_order_relaxed))
    return Look(extent->id, /*is_read=*/true);
  extent->used_at.store(Now(), std::memory_order_relaxed);
  return extent;
}

ExtentPtr OriginCache::Look(const ExtentId& id, bool is_read) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return nullptr;
  if (ExtentPtr cached = FindCached(found->second.extent)) {
    if (is_read) cached->used_at.store(Now(), std::memory_order_relaxed);
    return cached;
  }
  lock.unlock();  // Others are asked.
  if (!is_mine_(id)) return nullptr;
  lock.lock();
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return nullptr;
  if (is_read) Begin(entry->second);
  if (entry->second.absent == nullptr) {
    auto absent = std::make_shared<Extent>();
    absent->id = id;
    absent->size_bytes = entry->second.extent.size_bytes;
    absent->xxh3 = entry->second.extent.xxh3;
    absent->is_cached = true;
    entry->second.absent = std::move(absent);
  }
  return entry->second.absent;
}

// --- Fetching ------------------------------------------------------------------------------------

void OriginCache::Begin(Entry& entry) {
  if (entry.is_fetching || fetching_count_ >= kFetchingMax || Clock::now() < entry.retry_at) return;
  entry.is_fetching = true;
  ++fetching_count_;
  const bool is_file = entry.file->origin.address.starts_with('/');
  TaskThreads& threads = is_file ? folder_threads_ : store_threads_;
  threads.Post(
      [this, wanted = Wanted{entry.extent, entry.file, entry.offset_bytes}] { Fetch(wanted); });
}

void OriginCache::Fetch(const Wanted& wanted) {
  // It may have been fetched between the look for it and the begin of this.
  const auto outcome = FindCached(wanted.extent) ? Result<void>() : Bring(wanted);
  if (!outcome && !store_threads_.is_stopping()) {
    ++failed_count_;
    spdlog::error("event=origin_fails extent={} origin=\"{}\" error=\"{}\"", Hex(wanted.extent.id),
                  wanted.file->origin.address, outcome.error().message);
  }
  NoteOutcome(wanted, outcome);
}

void OriginCache::NoteOutcome(const Wanted& wanted, const Result<void>& outcome) {
  const std::lock_guard lock(mutex_);
  --fetching_count_;
  trouble_ = outcome ? "" : outcome.error().message;
  const auto entry = entries_.find(wanted.extent.id);
  if (entry == entries_.end()) return;
  entry->second.is_fetching = false;
  const ErrorCode final = outcome ? ErrorCode::kOk : FinalOf(outcome.error().code);
  // What somebody has to change is not fetched in vain each second.
  const auto pause = final == ErrorCode::kOk ? options_.retry : 10 * options_.retry;
  entry->second.retry_at = outcome ? Clock::time_point{} : Clock::now() + pause;
  if (entry->second.absent) entry->second.absent->refusal = final;
}

Result<void> OriginCache::Bring(const Wanted& wanted) {
  const std::uint64_t size_bytes = wanted.extent.size_bytes;
  RemoveOther(wanted.extent);
  FFR_TRY(AtHome(Reserve(size_bytes)));
  auto brought = [&]() -> Result<void> {
    auto place = FFR_TRY(AtHome(store_->Place(wanted.extent.id, size_bytes)));
    for (;;) {
      auto writer = FFR_TRY(AtHome(place.Open()));
      if (writer) return BringInto(*writer, wanted);  // Else it has a place on another disk.
    }
  }();
  const std::lock_guard lock(room_mutex_);
  reserved_bytes_ -= size_bytes;
  return brought;
}

// The extent can be found only after its checksum has been verified.
Result<void> OriginCache::BringInto(ExtentWriter& writer, const Wanted& wanted) {
  const auto take = [&](std::span<const std::byte> bytes) { return AtHome(writer.Append(bytes)); };
  FFR_TRY(reader_.Read(*wanted.file, wanted.offset_bytes, wanted.extent.size_bytes, take));
  const auto sealed = writer.Seal(wanted.extent.xxh3);
  if (!sealed && sealed.error().code == ErrorCode::kCorruption)
    return OriginChanged(*wanted.file, "the checksum of the " +
                                           std::to_string(wanted.extent.size_bytes) + " bytes at " +
                                           std::to_string(wanted.offset_bytes) + " is another one");
  if (!sealed) return AtHome(Result<void>(sealed.error()));
  sealed.value()->used_at.store(Now(), std::memory_order_relaxed);
  ++fetched_count_;
  fetched_bytes_ += wanted.extent.size_bytes;
  return {};
}

// --- Room ----------------------------------------------------------------------------------------

Result<void> OriginCache::Reserve(std::uint64_t size_bytes) {
  const std::lock_guard lock(room_mutex_);
  const std::uint64_t used = store_->totals().size_bytes + reserved_bytes_ + size_bytes;
  if (used > options_.size_bytes_max) {
    const std::uint64_t excess = used - options_.size_bytes_max;
    if (Evict(excess, nullptr) < excess)
      return Error{ErrorCode::kUnavailable, "the cache is full of what is being fetched"};
  }
  // Once: the room is there when those who read what is evicted have let go.
  if (!store_->CheckTakes(size_bytes)) (void)Evict(size_bytes, nullptr);
  FFR_TRY(store_->CheckTakes(size_bytes));
  reserved_bytes_ += size_bytes;
  return {};
}

// Removes those that were used least recently, of that disk or of any, until so many bytes are
// gone. How many are. Requires room_mutex_.
std::uint64_t OriginCache::Evict(std::uint64_t size_bytes, const Disk* disk) {
  auto extents = store_->FindAll([&](const Extent& one) {
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
    Remove(extent->id);
    gone_bytes += extent->size_bytes;
    ++evicted_count_;
  }
  return gone_bytes;
}

// Readers that have the file open go on. The disk gets the room back when the last of them closes
// it. Requires room_mutex_.
void OriginCache::Remove(const ExtentId& id) {
  if (ExtentPtr gone = store_->MarkDeleted(id))
    unlinking_.push_back(std::move(gone));
  else
    store_->Release({&id, 1});
  Sweep();
}

// Those that cannot be unlinked now stay marked, and are not fetched meanwhile. Requires
// room_mutex_.
void OriginCache::Sweep() {
  std::erase_if(unlinking_, [&](const ExtentPtr& extent) {
    const auto unlinked = store_->Unlink(*extent);
    if (!unlinked || !unlinked.value()) return false;
    if (!store_->SyncNames({&extent->id, 1})) return false;
    store_->Release({&extent->id, 1});
    return true;
  });
}

// Removes a cached extent that has this id and is damaged or has other bytes: the right one could
// not be stored beside it.
void OriginCache::RemoveOther(const ManifestExtent& extent) {
  const std::lock_guard lock(room_mutex_);
  if (store_->Find(extent.id) && !FindCached(extent)) Remove(extent.id);
}

void OriginCache::Discard(const Extent& extent) {
  const std::lock_guard lock(room_mutex_);
  if (store_->Find(extent.id).get() == &extent) Remove(extent.id);
}

std::vector<ExtentId> OriginCache::ForgetRemoved() {
  const std::lock_guard lock(mutex_);
  std::vector<ExtentId> forgotten;
  const auto now = Clock::now();
  std::erase_if(entries_, [&](const auto& item) {
    const Entry& entry = item.second;
    if (entry.name_count > 0 || entry.is_fetching || now - entry.removed < options_.grace)
      return false;
    forgotten.push_back(item.first);
    return true;
  });
  return forgotten;
}

// From before this start, of names that went since. Names come in one by one then.
std::vector<ExtentId> OriginCache::Unexplained() const {
  constexpr auto kNamesPatience = std::chrono::minutes(10);
  if (Clock::now() - started_ < options_.grace + kNamesPatience) return {};
  std::vector<ExtentId> unexplained;
  // Nobody is asked while the store's locks are held.
  for (const ExtentPtr& extent : store_->FindAll([](const Extent&) { return true; }))
    if (!Knows(extent->id)) unexplained.push_back(extent->id);
  return unexplained;
}

void OriginCache::Tend() {
  auto gone = ForgetRemoved();
  const auto unexplained = Unexplained();
  gone.insert(gone.end(), unexplained.begin(), unexplained.end());
  const std::lock_guard lock(room_mutex_);
  Sweep();
  for (const ExtentId& id : gone)
    if (store_->Find(id)) Remove(id);
  for (const auto& disk : store_->disks()) {
    disk->RefreshSpace();
    if (disk->space().free_bytes == 0) (void)Evict(kExtentSizeMax, disk.get());
  }
}

OriginCache::Counts OriginCache::counts() const {
  Counts counts;
  counts.size_bytes = store_->totals().size_bytes;
  counts.fetched_count = fetched_count_;
  counts.fetched_bytes = fetched_bytes_;
  counts.failed_count = failed_count_;
  counts.evicted_count = evicted_count_;
  const std::lock_guard lock(mutex_);
  counts.trouble = trouble_;
  return counts;
}

}  // namespace ffrecord::server
