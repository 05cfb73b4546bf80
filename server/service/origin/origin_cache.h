#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "server/service/cluster/task_threads.h"
#include "server/service/metrics_page.h"
#include "server/service/origin/cache_room.h"
#include "server/service/origin/origin_reader.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// The extents of names whose bytes lie at an origin, as far as this node has them: fetched when
// they are first read, verified, and removed again when others need the room. Decision 50.
//
// They lie in a store of their own on each disk, so that nothing else can be evicted, and the
// machines of the cluster conclude nothing from them. Sizes are bytes. Thread-safe. No call waits
// for an origin or for a disk.
//
// Each place of the setting `origins` has threads of its own: one that hangs costs its own readers.
// Each disk has one too, which unlinks and verifies.
class OriginCache {
 public:
  struct Options {
    // One on each disk that is used, which outlives the cache; made if missing.
    struct Folder {
      std::filesystem::path path;
      const Disk* disk;
    };
    std::vector<Folder> folders = {};
    std::uint64_t size_bytes_max = std::uint64_t{64} << 30;
    // Room that the cache leaves free on each disk for other data; on a small disk, a twentieth.
    std::uint64_t free_bytes_min = std::uint64_t{4} << 30;
    // How long extents of a removed name are still served, for those who read them.
    std::chrono::milliseconds grace{86'400'000};
    // After a fetch that has failed, until the next one; ten times that if it is of no use before
    // somebody has changed something.
    std::chrono::milliseconds retry{1'000};
    // For so long after the start, names may still come in.
    std::chrono::milliseconds names_patience = std::chrono::minutes(10);
    // An extent is verified for its readers at most once in this time.
    std::chrono::milliseconds verify_interval{10'000};
    OriginReader::Options reader = {};
  };

  // Finds what is on the disks. Fails as ExtentStore::Open.
  static Result<std::unique_ptr<OriginCache>> Open(const Options& options);
  ~OriginCache();  // Waits for origins and disks.
  OriginCache(const OriginCache&) = delete;
  OriginCache& operator=(const OriginCache&) = delete;

  // Ends what is being fetched; as TaskThreads.
  void BeginStop();
  bool AwaitEnd(Clock::time_point deadline);

  // A name has stood for `before` and stands for `after` from now on. Null: for nothing.
  void Change(const DatasetManifest* before, const DatasetManifest* after);
  // As OriginReader::Check.
  Result<void> Check(std::string_view address) const { return reader_.Check(address); }

  // Whether it is an extent of an origin. Only such are found here.
  bool Knows(const ExtentId& id) const;
  // The extent, to be bound: on a disk, or on none until it has been fetched: then its reads are
  // answered BUSY. Null: no name has it.
  ExtentPtr Find(const ExtentId& id);
  // For each read of what Find() or Use() has returned: the extent as it is now, as Find(). One
  // that is to be fetched begins to be fetched. kDoubted: its reader has found other bytes there
  // than the right ones. Until it has been verified it counts as on no disk for that reader; if it
  // is damaged, it is removed and fetched again.
  enum class Trust : std::uint8_t { kTrusted, kDoubted };
  ExtentPtr Use(const ExtentPtr& extent, Trust trust = Trust::kTrusted);

  // Removes an extent whose bytes are damaged: it is fetched again.
  void Discard(const Extent& extent) { room_.Discard(extent); }
  // Removes what has no name any more, and makes room on disks that others need. To be called now
  // and then.
  void Tend();

  ExtentStore& store() noexcept { return *store_; }
  struct Counts {
    std::uint64_t size_bytes = 0;  // Cached.
    std::uint64_t fetched_count = 0, fetched_bytes = 0, failed_count = 0, evicted_count = 0;
    std::uint64_t damaged_count = 0;  // Found when they were verified for a reader.
    // For how long the oldest of the fetches that are under way has been: long means that an origin
    // hangs.
    std::chrono::milliseconds waiting{0};
    std::string trouble;  // Error of the last fetch that has failed, if none has succeeded since.
  };
  Counts counts() const;
  void Show(MetricsPage& page) const;

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
    bool is_verifying = false;
    Clock::time_point verify_at = {};  // Not before.
  };
  using Entries = std::unordered_map<ExtentId, Entry, HashExtentId>;
  // The input of a fetch.
  struct Wanted {
    ManifestExtent extent;
    std::shared_ptr<const OriginFile> file;
    std::uint64_t offset_bytes = 0;
  };

  // The fetches from one place.
  struct Lane {
    explicit Lane(std::size_t thread_count) : threads(thread_count) {}
    std::uint32_t waiting_count = 0;           // Fetches that have not ended.
    std::multiset<Clock::time_point> running;  // Since when, those that a thread has begun.
    bool is_told = false;                      // That it hangs.
    TaskThreads threads;
  };

  OriginCache(const Options& options, std::unique_ptr<ExtentStore> store);
  ExtentPtr FindCached(const ManifestExtent& extent) const;
  ExtentPtr Look(const ExtentId& id, bool is_read);
  ExtentPtr AbsentOf(Entry& entry);
  ExtentPtr UseVerified(const ExtentPtr& extent);
  void Verify(const ExtentPtr& extent);
  void Begin(Entry& entry);
  void Fetch(Lane& lane, const Wanted& wanted);
  void Settle(Entry& entry, const Result<void>& outcome);
  void TellWhatHangs();
  Result<void> Bring(const Wanted& wanted);
  Result<ExtentWriter> OpenWriter(const ManifestExtent& extent);
  void RemoveOther(const ManifestExtent& extent);
  std::vector<ExtentId> ForgetRemoved();
  std::vector<ExtentId> Unexplained() const;

  const Options options_;
  const OriginReader reader_;
  const std::unique_ptr<ExtentStore> store_;
  const Clock::time_point started_ = Clock::now();
  mutable std::mutex mutex_;  // Guards the next ones, and the lanes.
  Entries entries_;
  std::string trouble_;
  Clock::time_point tell_at_ = {};  // Not before.
  std::atomic<std::uint64_t> fetched_count_{0}, fetched_bytes_{0}, failed_count_{0},
      damaged_count_{0};
  CacheRoom room_;                            // Its threads use all that is above,
  std::vector<std::unique_ptr<Lane>> lanes_;  // and theirs this too. One for each allowed place.
};

}  // namespace ffrecord::server
