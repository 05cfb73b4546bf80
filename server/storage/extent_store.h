#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/io/atomic_file.h"
#include "server/storage/disk.h"
#include "server/storage/extent_index.h"
#include "server/storage/extent_scan.h"
#include "server/storage/extent_trailer.h"

namespace ffrecord::server {

// One sealed extent. Its file may be read while somebody holds it: it is not unlinked before the
// last holder releases it.
struct Extent {
  ExtentId id{};
  std::uint64_t size_bytes = 0;
  std::uint64_t xxh3 = 0;
  // Where its file is. Null: on no disk that is here, while one of the daemon's disks is missing,
  // or until it is fetched from its origin. Such an extent is absent: it can neither be read nor
  // unlinked, and nobody may upload it anew.
  Disk* disk = nullptr;
  // Nothing that is published names it any more: caches of open files shall close it.
  mutable std::atomic<bool> is_deleted = false;
  // Its bytes on the disk are not those of its checksum, or cannot be read. ExtentStore::Mark.
  mutable std::atomic<bool> is_bad = false;
  // Its bytes lie at an origin: it may be removed at any time, and fetched again. OriginCache.
  bool is_cached = false;
  // A read has failed, and the cache is to verify it.
  mutable std::atomic<bool> is_suspect = false;
  // When it was used last, by the cache's clock.
  mutable std::atomic<std::int64_t> used_at = 0;
  // For an extent that is on no disk: why it cannot be fetched. kOk: it is, or may be tried.
  mutable std::atomic<ErrorCode> refusal = ErrorCode::kOk;
};

class ExtentStore;

// Keeps the id of an extent from being used anew while somebody writes it, and its writers on one
// disk. Ends when it goes, or with the seal: what can be found is not being written any more.
// ExtentStore::Unlink.
class WritingClaim {
 public:
  WritingClaim(WritingClaim&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)),
        disk_(other.disk_),
        id_(other.id_),
        size_bytes_(other.size_bytes_) {}
  WritingClaim& operator=(WritingClaim&& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(disk_, other.disk_);
    std::swap(id_, other.id_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }
  ~WritingClaim() { End(); }

  Disk& disk() const noexcept { return *disk_; }
  const ExtentId& id() const noexcept { return id_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

 private:
  friend class ExtentStore;
  WritingClaim(ExtentStore& store, Disk& disk, const ExtentId& id, std::uint64_t size_bytes);
  void End();
  void EndLocked();  // Requires the store's mutex.

  ExtentStore* store_;  // Null once it has ended.
  Disk* disk_;
  ExtentId id_;
  std::uint64_t size_bytes_;
};

// One extent on its way to the disk. Thread-bound. Destroyed before Seal(), it leaves nothing.
class ExtentWriter {
 public:
  ExtentWriter(ExtentWriter&&) noexcept = default;
  ExtentWriter& operator=(ExtentWriter&&) noexcept = default;

  std::uint64_t size_bytes() const noexcept { return file_.size_bytes(); }

  // How much of the time in Append() went into the checksum.
  std::chrono::nanoseconds checksum_time() const noexcept { return checksum_time_; }

  // Fails with kInvalidArgument past the size that was declared, with kIo as AtomicFile does; with
  // kUnavailable if it is the disk that failed, and another one may take the extent.
  Result<void> Append(std::span<const std::byte> bytes);

  // Makes the extent durable and known under its id. With equal bytes sealed there already, only
  // their name is made durable. The last call.
  //
  // Fails with kCorruption if the bytes are not those of `xxh3`, kInvalidArgument if some are
  // missing, kConflict if the id is marked deleted or a file with other bytes has its name; else as
  // Append.
  Result<ExtentPtr> Seal(std::uint64_t xxh3);

 private:
  friend class ExtentStore;
  friend class NewExtent;
  ExtentWriter(ExtentStore& store, WritingClaim claim, AtomicFile file)
      : store_(&store), claim_(std::move(claim)), file_(std::move(file)) {}
  // That the file under our name has exactly our bytes, and keeps its name.
  Result<void> CheckSealedByAnother(std::uint64_t xxh3) const;
  template <class T>
  Result<T> Noted(Result<T> result);

  ExtentStore* store_;
  WritingClaim claim_;  // Goes after the file.
  AtomicFile file_;
  Xxh3Stream sum_;
  std::chrono::nanoseconds checksum_time_{};
};

// An extent that has a place on a disk, and no file there yet. Destroyed, it gives the place up.
class NewExtent {
 public:
  Disk& disk() const noexcept { return claim_->disk(); }

  // Makes the file, and waits for disk(). None if that disk failed and the extent has a place on
  // another one, which is disk() now: to be called again, by a thread that may wait for that one.
  // Requires that no writer was returned. Fails as ExtentStore::Place(), and with the error of the
  // last disk once all have failed.
  Result<std::optional<ExtentWriter>> Open();

 private:
  friend class ExtentStore;
  NewExtent(ExtentStore& store, WritingClaim claim) : store_(&store), claim_(std::move(claim)) {}

  ExtentStore* store_;
  std::optional<WritingClaim> claim_;
  std::vector<Disk*> tried_;  // And failed.
};

// The sealed extents on the disks of one daemon, each in a file with its trailer.
//
// The index is made by a scan at start and lives in memory. Files that the scan cannot make sense
// of are reported and left alone. For extents that manifests describe it looks at the names only:
// readers and the scrubber find out whether their bytes are what was promised. Which disk an extent
// is on is recorded nowhere else: files may be moved to another disk of the daemon while it is
// stopped.
//
// A disk that fails or is full costs its own extents: those of others are read, and what is new
// goes to others. Thread-safe; outlives its writers.
class ExtentStore {
 public:
  struct ScanReport {
    std::uint64_t extent_count = 0;
    std::uint64_t size_bytes = 0;
    std::vector<std::string> refused;  // Path and reason of each file that is not a valid extent.
    std::vector<ExtentId> unknown;     // Those that no manifest has described.
    std::uint64_t missing_count = 0;   // How many were described and are not there.
    std::uint64_t absent_count = 0;    // As above, but perhaps on a disk that is missing.
    // Why each disk that was given cannot be listed: it counts as missing.
    std::vector<std::string> unreadable_disks;
  };

  struct Disks {
    std::vector<std::unique_ptr<Disk>> present;
    std::size_t missing_count = 0;
    // Up to how many may be missing in all, of those that cannot be listed too.
    std::size_t missing_count_max = 0;
  };

  // `known`: what manifests say of extents, in order of their ids, each once. Fails with kIo,
  // kDenied, if a disk cannot be listed that may not be missing, or none is left of those given.
  static Result<std::unique_ptr<ExtentStore>> Open(Disks disks,
                                                   std::span<const ManifestExtent> known = {});
  // On one disk, as Disk::Open makes it.
  static Result<std::unique_ptr<ExtentStore>> Open(const std::filesystem::path& folder,
                                                   std::span<const ManifestExtent> known = {});

  const ScanReport& scan_report() const noexcept { return scan_report_; }
  std::span<const std::unique_ptr<Disk>> disks() const noexcept { return disks_; }
  std::size_t missing_disk_count() const noexcept { return missing_disk_count_; }

  // Totals of the index, without absent extents.
  struct Totals {
    std::uint64_t extent_count = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t bad_count = 0;
  };
  Totals totals() const;

  // The extent called `id`, or null. It may be absent.
  ExtentPtr Find(const ExtentId& id) const;
  std::vector<ExtentPtr> FindAll(const std::function<bool(const Extent&)>& wanted) const;

  // The extent's file, for reading. Fails as Disk::OpenFile, with kUnavailable if it is absent.
  static Result<UniqueFd> OpenFile(const Extent& extent);

  // A new extent of `size_bytes`, for which a disk must have room now; none is set aside, for who
  // declares bytes may never send them. Disks that answer well come first, and among them each gets
  // its part by the room that it has. Waits for no disk. Fails with kIo, also once all disks have
  // failed; kConflict if its id is marked deleted, or it is on a disk that is missing.
  // NewExtent::Open() tells if it exists.
  Result<NewExtent> Place(const ExtentId& id, std::uint64_t size_bytes);

  // Whether Place() would find a disk for so many bytes now. Fails as it.
  Result<void> CheckTakes(std::uint64_t size_bytes) const;

  // Moving an extent to another disk: BeginMove() gives a writer there, to which the caller appends
  // the bytes of the extent. EndMove() seals them, and has the extent found there, as another
  // object, from now on. Its old file is to be removed by RemoveMoved() once nobody else holds
  // `old`. A daemon that is killed between them finds two copies, which is no harm.
  //
  // They fail with kConflict if the extent was deleted, or is being written, meanwhile; else as
  // NewExtent::Open() and Seal().
  // MoveToCopy() needs no writer: true if a copy is there already on a disk that takes writes, and
  // its bytes are good; one with other bytes is removed. BeginMove() chooses none of the disks with
  // a copy that could not be removed.
  Result<bool> MoveToCopy(const ExtentPtr& old);
  Result<ExtentWriter> BeginMove(const Extent& extent);
  Result<void> EndMove(const ExtentPtr& old, ExtentWriter& writer);
  Result<void> RemoveMoved(const Extent& old);

  // Room for new extents on all disks that can be written to. Fails with kIo if there is none.
  Result<std::uint64_t> FreeBytes() const;
  // The size of these disks, with what others use of it. 0 if that is not known.
  std::uint64_t SizeBytes() const;

  // Another number after each change of which extents are here and of which are bad, and not before
  // it can be seen: who takes the number and then looks has seen all that it stands for.
  std::uint64_t change_count() const noexcept {
    return change_count_.load(std::memory_order_acquire);
  }

  // How many extents have been marked deleted since the start; rises after they are.
  std::uint64_t deleted_count() const noexcept {
    return deleted_count_.load(std::memory_order_acquire);
  }

  // Notes whether the extent is bad. False if that is no news, or it is not here any more.
  bool Mark(const Extent& extent, bool is_bad);

  // Marks `id` deleted: until Release() no writer gets it and none can seal it, so that unlinking
  // its file unlinks nothing newer. Takes its extent out of the index and marks it: it can no
  // longer be found. Null if there is none; while a disk is missing it is absent instead. The file
  // stays until Unlink.
  ExtentPtr MarkDeleted(const ExtentId& id);
  // Its own, and those that have copies of it. None: its disk is missing.
  std::vector<Disk*> DisksOf(const Extent& extent) const;
  // Removes the file of a deleted extent that nobody else holds. False, and nothing is done,
  // while a writer that came before the mark is open, while its disk is missing, or once that has
  // failed. Fails with kIo.
  Result<bool> Unlink(const Extent& extent);
  // Removes files that have the name of `id` though it is not in the index: the scan refused them,
  // or they could not be unlinked when their extent was deleted. For callers who have the right
  // bytes. False, and nothing is done, if the extent is here, is being written or is marked
  // deleted. Fails with kIo.
  Result<bool> RemoveUnknown(const ExtentId& id);
  // Those that are being written, or are marked deleted: an end, or a crash, may leave their files.
  std::vector<ExtentId> InMotion() const;
  // Makes it durable that their files are there, or not, on whichever disk. Fails with kIo.
  Result<void> SyncNames(std::span<const ExtentId> ids) const;
  // Takes one MarkDeleted() of each id back; after the last one it may be used anew. Requires that
  // their files are durably unlinked, and that no durable tombstone lists them at the next start.
  void Release(std::span<const ExtentId> ids);

  // Takes the MarkDeleted() back that has returned this extent, whose file was not unlinked: it is
  // here again, as another object, unless it is marked once more.
  void TakeBack(const Extent& extent);

 private:
  friend class ExtentWriter;
  friend class NewExtent;
  friend class WritingClaim;
  struct Writing {
    Disk* disk = nullptr;
    std::uint32_t count = 0;
  };

  explicit ExtentStore(Disks disks);
  Result<void> ScanAll(std::size_t missing_count_max, std::span<const ManifestExtent> known);
  Result<void> Take(Disk& disk, FoundExtents found);
  void TakeCopy(Disk& disk, const ExtentTrailer& copy);
  void AddAbsent(std::span<const ManifestExtent> known);
  Result<void> RemoveFiles(const ExtentId& id);
  bool HasOtherFor(const Disk& disk) const;
  Result<void> Relocate(const ExtentPtr& old, Disk& target);
  std::vector<Disk*> CopiesOf(const ExtentId& id) const;
  static Result<void> CheckCopy(const Extent& extent, Disk& disk);
  void AddCopy(const ExtentId& id, Disk& disk);
  void NoteChange() noexcept { change_count_.fetch_add(1, std::memory_order_release); }
  void DropCopy(const ExtentId& id, const Disk& disk);
  void SetDeleted(const Extent& extent) noexcept;
  static Result<AtomicFile> BeginFile(Disk& disk, const ExtentId& id);
  Result<WritingClaim> Claim(const ExtentId& id, std::uint64_t size_bytes,
                             std::span<Disk* const> tried);
  Result<Disk*> Choose(std::uint64_t size_bytes, std::span<Disk* const> tried);
  Result<ExtentPtr> Add(Disk& disk, const ExtentTrailer& trailer, WritingClaim* claim = nullptr);
  static ExtentPtr Make(Disk* disk, const ExtentTrailer& trailer);

  std::vector<std::unique_ptr<Disk>> disks_;
  std::size_t missing_disk_count_;
  ScanReport scan_report_;
  ExtentIndex index_;  // Changes with mutex_ held only; look-ups take no lock of the store.
  std::atomic<std::uint64_t> change_count_{0};
  std::atomic<std::uint64_t> deleted_count_{0};
  mutable std::mutex mutex_;  // Guards all below.
  // Other disks that have a file of an extent's name: as when it was copied from one to the other.
  std::unordered_multimap<ExtentId, Disk*, HashExtentId> copies_;
  // How often each is marked deleted. None of them is in the index.
  std::unordered_map<ExtentId, std::uint32_t, HashExtentId> deleted_;
  std::unordered_map<ExtentId, Writing, HashExtentId> writing_;
  std::vector<double> credits_;  // Credit of each disk, in the choice of the next one.
};

}  // namespace ffrecord::server
