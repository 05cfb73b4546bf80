#pragma once

#include <atomic>
#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
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
#include "server/storage/extent_trailer.h"
#include "server/storage/write_health.h"

namespace ffrecord::server {

struct HashExtentId {
  // Not noexcept: so the tables of libstdc++ keep it beside each id, and compare it first.
  std::size_t operator()(const ExtentId& id) const;
};

// One sealed extent. Whoever holds it may read its file: it is not unlinked before the last one
// has let go.
struct Extent {
  ExtentId id{};
  std::uint64_t size_bytes = 0;
  std::uint64_t xxh3 = 0;
  // Nothing that is published names it any more: caches of open files shall let go.
  mutable std::atomic<bool> is_deleted = false;
  // Its bytes on the disk are not those of its checksum, or cannot be read. ExtentStore::Mark.
  mutable std::atomic<bool> is_bad = false;
};
using ExtentPtr = std::shared_ptr<const Extent>;

class ExtentStore;

// Keeps the id of an extent from being used anew while somebody writes it. ExtentStore::Unlink.
class WritingClaim {
 public:
  WritingClaim(ExtentStore& store, const ExtentId& id) : store_(&store), id_(id) {}
  WritingClaim(WritingClaim&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)), id_(other.id_) {}
  WritingClaim& operator=(WritingClaim&& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~WritingClaim();

 private:
  ExtentStore* store_;
  ExtentId id_;
};

// One extent on its way to the disk. Thread-bound. Destroyed before Seal(), it leaves nothing.
class ExtentWriter {
 public:
  ExtentWriter(ExtentWriter&&) noexcept = default;
  ExtentWriter& operator=(ExtentWriter&&) noexcept = default;

  std::uint64_t size_bytes() const noexcept { return file_.size_bytes(); }

  // How much of the time in Append() went into the checksum.
  std::chrono::nanoseconds checksum_time() const noexcept { return checksum_time_; }

  // Fails with kInvalidArgument past the size that was declared, with kIo as AtomicFile does.
  Result<void> Append(std::span<const std::byte> bytes);

  // Makes the extent durable and known under its id. With equal bytes sealed there already, only
  // their name is made durable.
  //
  // Fails with kCorruption if the bytes are not those of `xxh3`, kInvalidArgument if some are
  // missing, kConflict if the id is marked deleted or a file with other bytes has its name, kIo.
  Result<ExtentPtr> Seal(std::uint64_t xxh3);

 private:
  friend class ExtentStore;
  ExtentWriter(ExtentStore& store, WritingClaim claim, AtomicFile file, const ExtentId& id,
               std::uint64_t size_bytes)
      : store_(&store),
        claim_(std::move(claim)),
        file_(std::move(file)),
        id_(id),
        declared_size_bytes_(size_bytes) {}
  // That the file under our name has exactly our bytes, and keeps its name.
  Result<void> CheckSealedByAnother(std::uint64_t xxh3) const;

  ExtentStore* store_;
  WritingClaim claim_;  // Goes after the file.
  AtomicFile file_;
  ExtentId id_;
  std::uint64_t declared_size_bytes_;
  Xxh3Stream sum_;
  std::chrono::nanoseconds checksum_time_{};
};

// The sealed extents in one folder: FOLDER/<slot>/<id>, each with its trailer.
//
// The index is made by a scan at start and lives in memory. Files that the scan cannot make sense
// of are reported and left alone. Of extents that manifests describe only the names are looked at
// then: that their bytes are what was promised is for readers and the scrubber to find out.
// Thread-safe; outlives its writers.
class ExtentStore {
 public:
  struct ScanReport {
    std::uint64_t extent_count = 0;
    std::uint64_t size_bytes = 0;
    std::vector<std::string> refused;  // Path and reason of each file that is not a valid extent.
    std::vector<ExtentId> unknown;     // Those that no manifest has described.
    std::uint64_t missing_count = 0;   // How many were described and are not there.
  };

  // Opens `folder`, which is made if it is missing (its parent must exist). `known`: what manifests
  // say of extents, in order of their ids, each once. Fails with kIo, kDenied.
  static Result<std::unique_ptr<ExtentStore>> Open(const std::filesystem::path& folder,
                                                   std::span<const ManifestExtent> known = {});

  const ScanReport& scan_report() const noexcept { return scan_report_; }

  // What the index holds.
  struct Totals {
    std::uint64_t extent_count = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t bad_count = 0;
  };
  Totals totals() const;
  const std::filesystem::path& folder() const noexcept { return folder_; }
  WriteHealth& health() noexcept { return health_; }

  // The extent called `id`, or null.
  ExtentPtr Find(const ExtentId& id) const;
  std::vector<ExtentPtr> FindAll(const std::function<bool(const Extent&)>& wanted) const;

  std::filesystem::path PathOf(const ExtentId& id) const;

  // The extent's file, for reading. No link is followed, and nothing outside the store's folder is
  // reached, whatever the folder holds. Fails with kNotFound, kDenied, kIo.
  Result<UniqueFd> OpenFile(const ExtentId& id) const;

  // A new extent of `size_bytes`, for which the disk must have room now; none is set aside, for who
  // declares bytes may never send them. Fails with kIo, also once the disk has failed; kConflict
  // if it exists, or its id is marked deleted.
  Result<ExtentWriter> Create(const ExtentId& id, std::uint64_t size_bytes);

  // Notes whether the extent is bad. False if that is no news, or it is not here any more.
  bool Mark(const Extent& extent, bool is_bad);

  // Marks `id` deleted: until Release() no writer gets it and none can seal it, so that whoever
  // unlinks its file unlinks nothing newer. Takes its extent out of the index and marks it: it can
  // no longer be found. Null if there is none. The file stays until Unlink.
  ExtentPtr MarkDeleted(const ExtentId& id);
  // Removes the file of a deleted extent that nobody else holds. False, and nothing is done,
  // while a writer that came before the mark is open. Fails with kIo.
  Result<bool> Unlink(const Extent& extent);
  // Makes it durable that their files are there, or not. Fails with kIo.
  Result<void> SyncNames(std::span<const ExtentId> ids) const;
  // Takes one MarkDeleted() of each id back; after the last one it may be used anew. Requires that
  // their files are durably unlinked, and that no durable tombstone lists them at the next start.
  void Release(std::span<const ExtentId> ids);

 private:
  friend class ExtentWriter;
  friend class WritingClaim;
  ExtentStore(std::filesystem::path folder, UniqueFd folder_fd)
      : folder_(std::move(folder)), folder_fd_(std::move(folder_fd)) {}
  Result<void> Scan(std::span<const ManifestExtent> known);
  Result<void> MakeSlot(std::uint32_t slot, const std::filesystem::path& folder);
  Result<WritingClaim> Claim(const ExtentId& id);
  Result<ExtentPtr> Add(const ExtentId& id, std::uint64_t size_bytes, std::uint64_t xxh3);

  const std::filesystem::path folder_;
  const UniqueFd folder_fd_;
  ScanReport scan_report_;
  mutable std::mutex mutex_;
  std::unordered_map<ExtentId, ExtentPtr, HashExtentId> index_;
  // How often each is marked deleted. None of them is in the index.
  std::unordered_map<ExtentId, std::uint32_t, HashExtentId> deleted_;
  std::unordered_map<ExtentId, std::uint32_t, HashExtentId> writer_counts_;
  std::bitset<kSlotCount> durable_slots_;  // Whose folders are known to outlive a power cut.
  std::uint64_t size_bytes_ = 0;           // Of all in the index.
  std::uint64_t bad_count_ = 0;            // Likewise.
  WriteHealth health_;
};

}  // namespace ffrecord::server
