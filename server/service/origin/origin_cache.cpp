#include "server/service/origin/origin_cache.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/hex.h"
#include "server/storage/extent_damage.h"

namespace ffrecord::server {
namespace {

// For each place. Each of them holds a few pieces of an extent.
constexpr std::size_t kThreadCount = 4;
// Fetches of a place that have not ended: what is asked for beyond is asked for again.
constexpr std::uint32_t kFetchingMax = 256;
// A fetch that takes longer gets a line in the log.
constexpr std::chrono::seconds kHangTime{60};
// How often the log says that this node may not fetch what it is asked for.
constexpr std::chrono::seconds kTellInterval{60};
// The order of use need not be finer.
constexpr auto kUseTick = std::chrono::milliseconds(1);

std::int64_t Now() { return Clock::now().time_since_epoch() / kUseTick; }

// The error that a client gets at once: to ask again is of no use before somebody has changed
// something. None: it may pass.
ErrorCode FinalOf(const Error& error) {
  switch (error.code) {
    case ErrorCode::kIo:  // An origin's may pass. ENOSPC: CacheRoom has no room.
      return error.system_errno == ENOSPC ? ErrorCode::kIo : ErrorCode::kOk;
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

// A failure on this node's side says nothing of the origin, and may pass.
template <class T>
Result<T> AtHome(Result<T> result) {
  if (result) return result;
  return Error{ErrorCode::kUnavailable, "cannot cache it: " + result.error().message,
               result.error().system_errno};
}

}  // namespace

Result<std::unique_ptr<OriginCache>> OriginCache::Open(const Options& options) {
  ExtentStore::Disks disks;
  std::optional<Error> trouble;
  for (const Options::Folder& folder : options.folders) {
    auto opened = Disk::Open(folder.path);
    if (!opened) {
      spdlog::error("event=no_origin_cache error=\"{}\"", opened.error().message);
      trouble = std::move(opened).error();
      continue;
    }
    auto disk = std::move(opened).value();
    disk->set_is_cache(*folder.disk);
    disk->set_kept_bytes(std::min(options.free_bytes_min, disk->space().size_bytes / 20));
    disks.present.push_back(std::move(disk));
  }
  if (disks.present.empty() && trouble) return *std::move(trouble);
  auto store = FFR_TRY(ExtentStore::Open(std::move(disks)));
  spdlog::info("event=origin_cache extents={} bytes={}", store->totals().extent_count,
               store->totals().size_bytes);
  return std::unique_ptr<OriginCache>(new OriginCache(options, std::move(store)));
}

OriginCache::OriginCache(const Options& options, std::unique_ptr<ExtentStore> store)
    : options_(options),
      reader_(options.reader),
      store_(std::move(store)),
      room_(*store_, options.size_bytes_max) {
  for (std::size_t i = 0; i < options_.reader.allowed.size(); ++i)
    lanes_.push_back(std::make_unique<Lane>(kThreadCount));
}

OriginCache::~OriginCache() { BeginStop(); }

void OriginCache::BeginStop() {
  for (const auto& lane : lanes_) lane->threads.BeginStop();
  room_.BeginStop();
}

bool OriginCache::AwaitEnd(Clock::time_point deadline) {
  const auto has_ended = [&](const auto& lane) { return lane->threads.AwaitEnd(deadline); };
  return std::ranges::all_of(lanes_, has_ended) && room_.AwaitEnd(deadline);
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
          entry.absent = nullptr;
          entry.retry_at = entry.verify_at = {};
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

ExtentPtr OriginCache::Use(const ExtentPtr& extent, Trust trust) {
  ExtentPtr now = extent;
  if (extent->disk == nullptr || extent->is_deleted.load(std::memory_order_acquire) ||
      extent->is_bad.load(std::memory_order_relaxed))
    now = Look(extent->id, /*is_read=*/true);
  else
    extent->used_at.store(Now(), std::memory_order_relaxed);
  if (!now || now->disk == nullptr) return now;
  const bool is_doubted =
      trust == Trust::kDoubted || now->is_suspect.load(std::memory_order_relaxed);
  return is_doubted ? UseVerified(now) : now;
}

ExtentPtr OriginCache::Look(const ExtentId& id, bool is_read) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(id);
  if (entry == entries_.end()) return nullptr;
  if (ExtentPtr cached = FindCached(entry->second.extent)) {
    if (is_read) cached->used_at.store(Now(), std::memory_order_relaxed);
    return cached;
  }
  ExtentPtr absent = AbsentOf(entry->second);
  if (is_read) Begin(entry->second);
  return absent;
}

// Requires mutex_.
ExtentPtr OriginCache::AbsentOf(Entry& entry) {
  if (entry.absent == nullptr) {
    auto absent = std::make_shared<Extent>();
    absent->id = entry.extent.id;
    absent->size_bytes = entry.extent.size_bytes;
    absent->xxh3 = entry.extent.xxh3;
    absent->is_cached = true;
    entry.absent = std::move(absent);
  }
  return entry.absent;
}

// --- Doubts --------------------------------------------------------------------------------------

// Others go on reading it meanwhile: one reader's word does not stop them.
ExtentPtr OriginCache::UseVerified(const ExtentPtr& extent) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(extent->id);
  if (found == entries_.end()) return extent;
  Entry& entry = found->second;
  if (!entry.is_verifying) {
    if (Clock::now() < entry.verify_at) return extent;
    entry.is_verifying = true;
    room_.Post(*extent->disk, [this, extent] { Verify(extent); });
  }
  return AbsentOf(entry);
}

// In the thread of its disk.
void OriginCache::Verify(const ExtentPtr& extent) {
  const std::string why_bad = WhyDamaged(*extent);
  if (!why_bad.empty()) {
    spdlog::warn("event=cached_extent_bad error=\"{}\"", why_bad);
    ++damaged_count_;
    room_.Discard(*extent);
  }
  // Not before it is gone: nobody gets the file of an extent that is known to be damaged.
  extent->is_suspect.store(false, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(extent->id);
  if (entry == entries_.end()) return;
  entry->second.is_verifying = false;
  entry->second.verify_at = Clock::now() + options_.verify_interval;
}

// --- Fetching ------------------------------------------------------------------------------------

// Requires mutex_.
void OriginCache::Begin(Entry& entry) {
  if (entry.is_fetching || Clock::now() < entry.retry_at) return;
  const std::string& address = entry.file->origin.address;
  const auto place = reader_.PlaceOf(address);
  if (!place) {
    Settle(entry, reader_.Check(address));
    if (Clock::now() < tell_at_) return;
    tell_at_ = Clock::now() + kTellInterval;
    spdlog::error("event=origin_denied origin=\"{}\" error=\"{}\"", address, trouble_);
    return;
  }
  Lane& lane = *lanes_[*place];
  if (lane.waiting_count >= kFetchingMax) return;
  entry.is_fetching = true;
  ++lane.waiting_count;
  lane.threads.Post([this, &lane, wanted = Wanted{entry.extent, entry.file, entry.offset_bytes}] {
    Fetch(lane, wanted);
  });
}

void OriginCache::Fetch(Lane& lane, const Wanted& wanted) {
  std::multiset<Clock::time_point>::iterator begun;
  {
    const std::lock_guard lock(mutex_);
    begun = lane.running.insert(Clock::now());
  }
  // It may have been fetched between the look for it and the begin of this.
  const auto outcome = FindCached(wanted.extent) ? Result<void>() : Bring(wanted);
  const bool has_failed = !outcome && !lane.threads.is_stopping();
  if (has_failed)
    spdlog::error("event=origin_fails extent={} origin=\"{}\" error=\"{}\"", Hex(wanted.extent.id),
                  wanted.file->origin.address, outcome.error().message);
  const std::lock_guard lock(mutex_);
  lane.running.erase(begun);
  --lane.waiting_count;
  if (const auto entry = entries_.find(wanted.extent.id); entry != entries_.end()) {
    entry->second.is_fetching = false;
    Settle(entry->second, outcome);
  }
  if (has_failed) ++failed_count_;  // After Settle(): readers of the count see why.
}

// Requires mutex_.
void OriginCache::Settle(Entry& entry, const Result<void>& outcome) {
  const ErrorCode final = outcome ? ErrorCode::kOk : FinalOf(outcome.error());
  if (entry.absent) entry.absent->refusal = final;
  if (outcome) {
    trouble_.clear();
    entry.retry_at = entry.verify_at = {};
    return;
  }
  // A fault that somebody has to mend is not met in vain each second.
  const auto pause = final == ErrorCode::kOk ? options_.retry : 10 * options_.retry;
  entry.retry_at = Clock::now() + pause;
  trouble_ = outcome.error().message;
}

Result<void> OriginCache::Bring(const Wanted& wanted) {
  RemoveOther(wanted.extent);
  std::optional<CacheRoom::Reservation> room;
  std::optional<ExtentWriter> writer;
  const auto open = [&]() -> Result<void> {
    room.emplace(FFR_TRY(room_.Reserve(wanted.extent.size_bytes)));
    auto opened = OpenWriter(wanted.extent);
    // The scan may have refused a file of that name.
    if (!opened && opened.error().code == ErrorCode::kConflict) {
      FFR_TRY(AtHome(store_->RemoveUnknown(wanted.extent.id)));
      opened = OpenWriter(wanted.extent);
    }
    writer.emplace(FFR_TRY(AtHome(std::move(opened))));
    return {};
  };
  const auto take = [&](std::span<const std::byte> bytes) -> Result<void> {
    // Not before bytes have come: an origin that hangs keeps no room from others.
    if (!writer) FFR_TRY(open());
    return AtHome(writer->Append(bytes));
  };
  FFR_TRY(reader_.Read(*wanted.file, wanted.offset_bytes, wanted.extent.size_bytes, take));
  if (!writer) FFR_TRY(open());
  // The extent can be found only after its checksum has been verified.
  const auto sealed = writer->Seal(wanted.extent.xxh3);
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

Result<ExtentWriter> OriginCache::OpenWriter(const ManifestExtent& extent) {
  auto place = FFR_TRY(store_->Place(extent.id, extent.size_bytes));
  for (;;) {
    auto writer = FFR_TRY(place.Open());
    if (writer) return *std::move(writer);  // Else it has a place on another disk.
  }
}

// Removes a cached extent that has this id and is damaged or has other bytes: the right one could
// not be stored beside it.
void OriginCache::RemoveOther(const ManifestExtent& extent) {
  const ExtentPtr other = store_->Find(extent.id);
  if (other && !FindCached(extent)) room_.Discard(*other);
}

// --- Upkeep --------------------------------------------------------------------------------------

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
  if (Clock::now() - started_ < options_.grace + options_.names_patience) return {};
  std::vector<ExtentId> unexplained;
  // Nobody is asked while the store's locks are held.
  for (const ExtentPtr& extent : store_->FindAll([](const Extent&) { return true; }))
    if (!Knows(extent->id)) unexplained.push_back(extent->id);
  return unexplained;
}

void OriginCache::TellWhatHangs() {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = *lanes_[i];
    const bool hangs = !lane.running.empty() && now - *lane.running.begin() >= kHangTime;
    if (std::exchange(lane.is_told, hangs) || !hangs) continue;
    spdlog::error(
        "event=origin_hangs place=\"{}\" fetches={} seconds={}", options_.reader.allowed[i],
        lane.running.size(),
        std::chrono::duration_cast<std::chrono::seconds>(now - *lane.running.begin()).count());
  }
}

void OriginCache::Tend() {
  TellWhatHangs();
  for (const ExtentId& id : ForgetRemoved()) room_.Remove(id);
  for (const ExtentId& id : Unexplained()) room_.Remove(id);
  room_.Tend();
}

OriginCache::Counts OriginCache::counts() const {
  Counts counts;
  counts.size_bytes = store_->totals().size_bytes;
  counts.fetched_count = fetched_count_;
  counts.fetched_bytes = fetched_bytes_;
  counts.failed_count = failed_count_;
  counts.damaged_count = damaged_count_;
  counts.evicted_count = room_.evicted_count();
  const std::lock_guard lock(mutex_);
  counts.trouble = trouble_;
  const auto now = Clock::now();
  for (const auto& lane : lanes_)
    if (!lane->running.empty())
      counts.waiting = std::max(
          counts.waiting,
          std::chrono::duration_cast<std::chrono::milliseconds>(now - *lane->running.begin()));
  return counts;
}

void OriginCache::Show(MetricsPage& page) const {
  const Counts found = counts();
  page.Value("ffrecord_origin_cached_bytes", "Extents of origins on the disks of the node.",
             found.size_bytes);
  page.Value("ffrecord_origin_fetched_total", "Extents fetched from their origin.",
             found.fetched_count);
  page.Value("ffrecord_origin_fetched_bytes_total", "Bytes of them.", found.fetched_bytes);
  page.Value("ffrecord_origin_failed_total", "Fetches that have failed.", found.failed_count);
  page.Value("ffrecord_origin_evicted_total", "Cached extents removed to make room.",
             found.evicted_count);
  page.Value("ffrecord_origin_damaged_total",
             "Cached extents that readers found damaged, and that are fetched again.",
             found.damaged_count);
  page.Value("ffrecord_origin_wait_seconds", "How long the oldest fetch under way has lasted.",
             std::chrono::duration_cast<std::chrono::seconds>(found.waiting).count());
}

}  // namespace ffrecord::server
