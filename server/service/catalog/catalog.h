#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "server/metadata/blocking_store.h"
#include "server/service/catalog/extent_references.h"
#include "server/service/catalog/name_records.h"
#include "server/service/catalog/names.h"
#include "server/service/catalog/upload_ledger.h"
#include "server/storage/dropped_extents.h"
#include "server/storage/extent_store.h"
#include "server/storage/home_disk.h"

namespace ffrecord::server {

// Published data and data that may go: names, manifests, uploads and tombstones in a MetaStore,
// over the extents of one ExtentStore.
//
// Nothing is visible before the one commit that publishes it, and no extent is unlinked but for a
// tombstone or an upload record that names it: an extent that nothing explains is reported and
// kept. Calls block on the disk. Thread-safe. Errors are those to be sent to clients.
//
class Catalog {
 public:
  struct Options {
    // How long after its last word an upload is given up and its extents are collected.
    std::chrono::milliseconds upload_grace{std::chrono::minutes(10)};
    // How many bytes of files the names that begin with a prefix may have together.
    std::map<std::string, std::uint64_t> quotas = {};
    // Extents that others than this catalog's names refer to, and that are never removed. Ordered.
    std::vector<ExtentId> kept = {};
  };

  // The findings at start.
  struct Report {
    std::uint64_t name_count = 0;
    std::uint64_t open_upload_count = 0;
    std::uint64_t unpublished_count = 0;   // Extents of open uploads; collected after the grace.
    std::uint64_t deleted_count = 0;       // Extents of tombstones; unlinked now.
    std::vector<std::string> unexplained;  // Extents that no record names; kept.
    std::vector<std::string> missing;      // Extents that manifests name and that are not there.
    // Manifests that cannot be read. While there are any nothing is ever unlinked: what they name
    // is not known.
    std::vector<std::string> damaged;
  };

  // Both stores and `home`, through which `meta` writes, outlive the catalog. `published` is what
  // `meta` has, and what `extents` was opened with. Fails as the MetaStore does.
  static Result<std::unique_ptr<Catalog>> Open(BlockingStore& meta, ExtentStore& extents,
                                               HomeDisk& home, const Options& options,
                                               PublishedNames published);

  const Report& report() const noexcept { return report_; }

  std::uint64_t name_count() const { return references_.name_count(); }  // With a sound manifest.

  // A place for the extent, its upload on record; none if it is sealed already. `owner_prefix`:
  // below which the client may publish it. Waits for the disk of the metadata only. Fails with
  // kConflict if an extent of that id has another size, or is published and lost, with kIo: EDQUOT
  // if what clients of a quota's prefix have not published passes the quota.
  Result<std::optional<NewExtent>> BeginPut(const net::PutBegin& begin,
                                            std::string_view owner_prefix = "");
  // Bytes of it have come: its upload is not silent.
  void NoteHeard(const ExtentId& id);
  // Fails as ExtentWriter::Seal, and with kConflict if the upload was given up meanwhile.
  Result<void> Seal(ExtentWriter& writer, const net::PutSeal& seal);

  using Resolved = Names::Resolved;
  // This, List and CheckRoom do not wait for those that write.
  Result<Resolved> Resolve(std::string_view name);
  // `own_prefix`: extents that are published already must be so under a name that begins with it.
  Result<net::RevisionReply> Publish(const net::Publish& publish,
                                     std::span<const std::byte> manifest,
                                     std::string_view own_prefix = "");
  // Whether `size_bytes` could be published as `name` now: what a publication would be refused for
  // before any byte is sent. Fails with kIo: ENOSPC, EDQUOT past a quota, or as the disk has.
  Result<void> CheckRoom(std::string_view name, std::uint64_t size_bytes);
  Result<net::ListReply> List(const net::List& list);
  Result<void> Remove(const net::Delete& request);

  // As HomeDisk::CheckAnswers().
  Result<void> CheckAnswers() const { return home_.CheckAnswers(); }

  // Which names refer to which extents. Does not block on the disk.
  const ExtentReferences& references() const noexcept { return references_; }

  using Usage = Names::Usage;
  std::vector<Usage> Usages() const;  // Does not block on the disk.

  // The catalog's upkeep, to be called now and then, each call by a thread of its own: disks may
  // hang. The next call does whatever this one could not do. These fail with kIo.
  // Gives up uploads that have fallen silent. Waits for the disk of the metadata only.
  Result<void> GiveUpUploads(Clock::time_point now);
  // Removes the files of extents that are marked deleted and used by nobody; returns how many.
  // Waits for that disk, and for those that have copies.
  Result<std::uint64_t> UnlinkOn(const Disk& disk);
  // Takes what is unlinked off the record. Waits for the disk of the metadata, and for all disks if
  // an earlier run of the daemon may have unlinked something.
  Result<void> ForgetUnlinked();

 private:
  struct Upload {
    std::uint64_t revision = 0;
    std::string owner_prefix;  // Prefix of the client that began it.
    Clock::time_point heard;
    // Begun before the start, and perhaps in part on a disk that is missing: kept until it is back.
    bool may_be_absent = false;
  };
  struct Tombstone {
    std::string key;
    std::vector<ExtentId> ids;   // They are marked deleted until the key is.
    std::size_t gone_count = 0;  // How many of the first of them are known to be gone.
    // There was no file of these. A run that was killed may have removed it, and not durably.
    std::vector<ExtentId> unseen;
  };

  Catalog(BlockingStore& meta, ExtentStore& extents, HomeDisk& home, const Options& options)
      : meta_(meta), extents_(extents), home_(home), options_(options), dropped_(extents) {}

  Result<void> Load(PublishedNames published);
  void TakePublished(PublishedNames published);
  void ReportMissing(const std::string& name, const DatasetManifest& manifest);
  Result<void> LoadUploads();
  Result<void> LoadTombstones();
  void ExplainExtents();

  // Puts on record that the upload goes on, with the client that began it.
  Result<void> RecordUpload(std::uint64_t upload, std::string_view owner_prefix);
  bool IsPublished(const ExtentId& id) const { return references_.Contains(id); }
  bool IsKept(const ExtentId& id) const {
    return std::binary_search(options_.kept.begin(), options_.kept.end(), id);
  }
  Result<void> CheckExtents(const DatasetManifest& manifest, std::string_view own_prefix,
                            MetaStore::Commit& commit) const;
  // Adds to `commit` what removes `name`'s manifest, whose extents, less those of `keep`, get a
  // tombstone; returns that manifest.
  Result<DatasetManifest> RemoveManifest(const NameRecord& name, const DatasetManifest& keep,
                                         MetaStore::Commit& commit);
  // Fails with kIo (EDQUOT), with names and figures, if `name` may not grow to `size_bytes`.
  Result<void> CheckQuotas(std::string_view name, std::uint64_t size_bytes) const;
  // Fails in the same way if what has not been published may not grow by that extent.
  Result<void> CheckUploadQuotas(const net::PutBegin& begin, std::string_view owner_prefix) const;
  Result<BlockingStore::Outcome> CommitGeneration(MetaStore::Commit commit);
  // Returns how many of the extents are here.
  std::size_t AddTombstone(std::string key, std::span<const ExtentId> ids);
  // Those that `commit`, which has been committed, has put.
  void AddTombstones(const MetaStore::Commit& commit);
  Result<void> GiveUpSilent(Clock::time_point now);
  // Nothing is removed while the metadata is damaged or cannot be written.
  bool MayUnlink() const;
  Result<void> Forget(std::span<const Tombstone> tombstones);

  BlockingStore& meta_;
  ExtentStore& extents_;
  HomeDisk& home_;  // The disk of the metadata.
  const Options options_;
  Report report_;
  ExtentReferences references_;  // Changes with mutex_ held only.
  UploadLedger ledger_;          // With mutex_ held.
  DroppedExtents dropped_;       // All of tombstones_, until their files are gone.

  std::mutex mutex_;  // Guards all below, and each read-decide-commit.
  std::map<std::uint64_t, Upload> uploads_;
  std::vector<Tombstone> tombstones_;
  std::uint64_t generation_revision_ = 0;
};

}  // namespace ffrecord::server
