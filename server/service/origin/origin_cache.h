#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ffrecord/result.h>

#include "server/service/cluster/task_threads.h"
#include "server/service/origin/origin_reader.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// The extents of names whose bytes lie at an origin, as far as this node has them: fetched when
// they are first read, verified, and removed again when others need the room. Decision 50.
//
// They lie in a store of their own on each disk, so that nothing else can be evicted, and the
// machines of the cluster conclude nothing from them. Sizes are bytes. Thread-safe. No call waits
// for an origin; those that wait for a disk say so.
class OriginCache {
 public:
  using Clock = std::chrono::steady_clock;

  struct Options {
    std::vector<std::filesystem::path> folders = {};  // One for each disk; made if missing.
    std::uint64_t size_bytes_max = std::uint64_t{64} << 30;
    // Room that the cache leaves free on each disk for other data; on a small disk, a twentieth.
    std::uint64_t free_bytes_min = std::uint64_t{4} << 30;
    // How long extents of a removed name are still served, for those who read them.
    std::chrono::milliseconds grace{86'400'000};
    // After a fetch that has failed, until the next one; ten times that if it is of no use before
    // somebody has changed something.
    std::chrono::milliseconds retry{1'000};
    OriginReader::Options reader = {};
  };
  // Whether this node is the one to fetch that extent now. Called by any thread.
  using IsMine = std::function<bool(const ExtentId&)>;

  // Finds what is on the disks. Fails as ExtentStore::Open.
  static Result<std::unique_ptr<OriginCache>> Open(const Options& options, IsMine is_mine);
  ~OriginCache() { Stop(); }
  OriginCache(const OriginCache&) = delete;
  OriginCache& operator=(const OriginCache&) = delete;

  void Stop();  // Ends what is being fetched, and joins.

  // A name has stood for `before` and stands for `after` from now on. Null: for nothing.
  void Change(const DatasetManifest* before, const DatasetManifest* after);
  // As OriginReader::Check.
  Result<void> Check(std::string_view address) const { return reader_.Check(address); }

  // Whether it is an extent of an origin. Only such are found here.
  bool Knows(const ExtentId& id) const;
  // The extent, to be bound: on a disk, or, if this node is to fetch it, on none: then its reads
  // are answered BUSY. Null: it is not here.
  ExtentPtr Find(const ExtentId& id);
  // For each read of what Find() or Use() has returned: the extent as it is now, as Find(). One
  // that is to be fetched begins to be fetched.
  ExtentPtr Use(const ExtentPtr& extent);

  // Removes an extent whose bytes are damaged: it is fetched again. Waits for its disk.
  void Discard(const Extent& extent);
  // Removes what has no name any more, and makes room on disks that others need. To be called now
  // and then. Waits for disks.
  void Tend();

  ExtentStore& store() noexcept { return *store_; }
  struct Counts {
    std::uint64_t size_bytes = 0;  // Cached.
    std::uint64_t fetched_count = 0, fetched_bytes = 0, failed_count = 0, evicted_count = 0;
    std::string trouble;  // Of the last fetch that has failed, if none has succeeded since.
  };
  Counts counts() const;

 private:
  // An extent of an origin, and what is known of it.
  struct Entry {
    ManifestExtent extent;
    std::shared_ptr<const OriginFile> file;
    std::uint64_t offset_bytes = 0;
    std::uint32_t name_count = 0;
    Clock::time_point removed = {};        // The last name went.
    std::shared_ptr<const Extent> absent;  // Stands for it while it is on no disk; made if needed.
    bool is_fetching = false;
    Clock::time_point retry_at = {};
  };
  using Entries = std::unordered_map<ExtentId, Entry, HashExtentId>;
  // What a fetch needs.
  struct Wanted {
    ManifestExtent extent;
    std::shared_ptr<const OriginFile> file;
    std::uint64_t offset_bytes = 0;
  };

  OriginCache(const Options& options, IsMine is_mine, std::unique_ptr<ExtentStore> store);
  ExtentPtr FindCached(const ManifestExtent& extent) const;
  ExtentPtr Look(const ExtentId& id, bool is_read);
  void Begin(Entry& entry);
  void Fetch(const Wanted& wanted);
  void NoteOutcome(const Wanted& wanted, const Result<void>& outcome);
  Result<void> Bring(const Wanted& wanted);
  Result<void> BringInto(ExtentWriter& writer, const Wanted& wanted);
  Result<void> Reserve(std::uint64_t size_bytes);
  std::uint64_t Evict(std::uint64_t size_bytes, const Disk* disk);
  void Remove(const ExtentId& id);
  void RemoveOther(const ManifestExtent& extent);
  void Sweep();
  std::vector<ExtentId> ForgetRemoved();
  std::vector<ExtentId> Unexplained() const;

  const Options options_;
  const IsMine is_mine_;
  const OriginReader reader_;
  const std::unique_ptr<ExtentStore> store_;
  const Clock::time_point started_ = Clock::now();
  mutable std::mutex mutex_;  // Of the next ones.
  Entries entries_;
  std::uint32_t fetching_count_ = 0;
  std::string trouble_;
  std::mutex room_mutex_;  // Of the next ones; held while files are unlinked.
  std::uint64_t reserved_bytes_ = 0;
  std::vector<ExtentPtr> unlinking_;  // Marked deleted.
  std::atomic<std::uint64_t> fetched_count_{0}, fetched_bytes_{0}, failed_count_{0},
      evicted_count_{0};
  TaskThreads folder_threads_, store_threads_;  // Last: they use all the others.
};

}  // namespace ffrecord::server
