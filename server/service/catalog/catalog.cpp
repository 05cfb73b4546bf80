#include "server/service/catalog/catalog.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <set>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "libffrecord/base/cursor.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/net/protocol/messages.h"

namespace ffrecord::server {
namespace {

constexpr std::string_view kUploads = "uploads/";
constexpr std::string_view kDeletes = "deletes/";
constexpr std::string_view kGeneration = "generation";

std::vector<std::byte> EncodeIds(std::span<const ExtentId> ids) {
  ByteWriter writer;
  for (const ExtentId& id : ids) writer.PutBytes(id);
  return std::move(writer).Take();
}

std::vector<ExtentId> DecodeIds(std::span<const std::byte> bytes) {
  std::vector<ExtentId> ids(bytes.size() / sizeof(ExtentId));
  ByteReader reader(bytes);
  for (ExtentId& id : ids) std::ranges::copy(reader.TakeBytes(id.size()), id.begin());
  return ids;
}

Error NotFound(std::string_view name) {
  return {ErrorCode::kNotFound, "nothing is published under the name " + std::string(name)};
}

}  // namespace

Catalog::Catalog(MetaStore& meta, ExtentStore& extents, const Options& options)
    : meta_(meta),
      extents_(extents),
      options_(options),
      home_(options.reserve != nullptr ? options.reserve->path().parent_path()
                                       : extents.disks().front()->folder()),
      home_writes_(options.home_writes != nullptr ? *options.home_writes
                                                  : extents.disks().front()->writes()),
      reserve_(options.reserve) {}

Result<std::unique_ptr<Catalog>> Catalog::Open(MetaStore& meta, ExtentStore& extents,
                                               const Options& options, PublishedNames published) {
  std::unique_ptr<Catalog> catalog(new Catalog(meta, extents, options));
  const std::lock_guard lock(catalog->mutex_);
  FFR_TRY(catalog->Load(std::move(published)));
  return catalog;
}

// --- Start ---------------------------------------------------------------------------------------

Result<void> Catalog::Load(PublishedNames published) {
  if (const auto generation = FFR_TRY(meta_.Get(kGeneration)))
    generation_revision_ = generation->mod_revision;
  TakePublished(std::move(published));
  FFR_TRY(LoadUploads());
  FFR_TRY(LoadTombstones());
  ExplainExtents();
  return {};
}

void Catalog::TakePublished(PublishedNames published) {
  report_.name_count = published.datasets.size() + published.damaged.size();
  report_.damaged = std::move(published.damaged);
  references_.Reserve(static_cast<std::size_t>(extents_.totals().extent_count));
  for (const auto& [name, manifest] : published.datasets) {
    references_.Change(name, nullptr, &manifest);
    if (extents_.scan_report().missing_count > 0) ReportMissing(name, manifest);
  }
}

void Catalog::ReportMissing(const std::string& name, const DatasetManifest& manifest) {
  for (const ManifestFile& file : manifest.files)
    for (const ManifestExtent& extent : file.extents)
      if (!extents_.Find(extent.id))
        report_.missing.push_back(name + ", " + file.name + ": extent " + Hex(extent.id));
}

Result<void> Catalog::LoadUploads() {
  const auto now = Clock::now();
  FFR_TRY(ForEachEntry(meta_, kUploads, [&](const MetaStore::KeyValue& entry) {
    std::uint64_t upload = 0;
    if (ParseNumberKey(kUploads, entry.key, upload))
      uploads_.emplace(upload, Upload{entry.mod_revision, now, extents_.missing_disk_count() > 0});
  }));
  report_.open_upload_count = uploads_.size();
  return {};
}

Result<void> Catalog::LoadTombstones() {
  return ForEachEntry(meta_, kDeletes, [&](const MetaStore::KeyValue& entry) {
    // Though nothing is unlinked beside a damaged manifest: their ids must not be used anew.
    AddTombstone(entry.key, DecodeIds(entry.value));
  });
}

void Catalog::ExplainExtents() {
  for (const Tombstone& tombstone : tombstones_) report_.deleted_count += tombstone.extents.size();
  for (const ExtentId& id : extents_.scan_report().unknown) {
    const ExtentPtr extent = extents_.Find(id);
    if (!extent) continue;  // Deleted.
    if (uploads_.contains(UploadOf(id)))
      ++report_.unpublished_count;
    else
      report_.unexplained.push_back(extent->disk->PathOf(id).string());
  }
}

// --- Putting -------------------------------------------------------------------------------------

Result<std::optional<ExtentWriter>> Catalog::BeginPut(const net::PutBegin& begin,
                                                      std::string_view owner_prefix) {
  FFR_TRY(home_writes_.Noted(CheckReserve()));
  {
    const std::lock_guard lock(mutex_);
    if (!IsPublished(begin.id)) {
      FFR_TRY(CheckUploadQuotas(begin, owner_prefix));
      FFR_TRY(RecordUpload(UploadOf(begin.id)));
      ledger_.Add(begin.id, begin.size_bytes, owner_prefix);
    } else if (const ExtentPtr extent = extents_.Find(begin.id); !extent || !extent->disk) {
      // Readers of its names would get whatever comes.
      return Error{ErrorCode::kConflict, "extent " + Hex(begin.id) +
                                             " is published and missing on the daemon's disks; "
                                             "upload its bytes under a new id"};
    }
  }
  if (const ExtentPtr extent = extents_.Find(begin.id)) {
    if (extent->size_bytes == begin.size_bytes) return std::optional<ExtentWriter>();
    return Error{ErrorCode::kConflict, "extent " + Hex(begin.id) + " exists with another size"};
  }
  auto writer = extents_.Create(begin.id, begin.size_bytes);
  if (!writer) return std::move(writer).error();
  return std::optional(std::move(writer).value());
}

Result<void> Catalog::RecordUpload(std::uint64_t upload) {
  if (const auto found = uploads_.find(upload); found != uploads_.end()) {
    found->second.heard = Clock::now();
    return {};
  }
  MetaStore::Commit commit;
  const std::string key = NumberKey(kUploads, upload);
  commit.compares.push_back({key, 0});
  commit.puts.push_back({key, {}});
  const auto outcome = FFR_TRY(Commit(commit));
  if (!outcome.committed)
    return Error{ErrorCode::kUnavailable, "the upload was being recorded by another; try again"};
  uploads_.emplace(upload, Upload{outcome.revision, Clock::now(), false});
  return {};
}

void Catalog::NoteHeard(const ExtentId& id) {
  const std::lock_guard lock(mutex_);
  if (const auto found = uploads_.find(UploadOf(id)); found != uploads_.end())
    found->second.heard = Clock::now();
}

Result<void> Catalog::Seal(ExtentWriter& writer, const net::PutSeal& seal) {
  const ExtentPtr extent = FFR_TRY(writer.Seal(seal.xxh3));
  const std::lock_guard lock(mutex_);
  const auto found = uploads_.find(UploadOf(seal.id));
  if (found != uploads_.end()) {
    found->second.heard = Clock::now();
    return {};
  }
  // Given up between the bytes and the seal: nothing else explains what is on the disk now.
  if (!IsPublished(seal.id)) {
    MetaStore::Commit commit;
    commit.puts.push_back(
        {std::string(kDeletes) + "extent-" + Hex(seal.id), EncodeIds({&seal.id, 1})});
    // Also where that cannot be recorded: until the next start it is known all the same.
    (void)CommitDeletion(commit);
    AddTombstones(commit);
  }
  return Error{ErrorCode::kConflict,
               "the upload was silent for too long and was given up; start again"};
}

// --- Names ---------------------------------------------------------------------------------------

Result<Catalog::Resolved> Catalog::Resolve(std::string_view name) {
  // Without mutex_, which others hold while they wait for the disk.
  for (;;) {
    const auto found = FFR_TRY(FindName(meta_, name));
    if (!found) return NotFound(name);
    auto manifest = ReadManifest(meta_, *found);
    if (manifest) return Resolved{std::move(manifest).value(), found->revision};
    const auto now = FFR_TRY(FindName(meta_, name));
    // Else it was replaced between the two, and is looked at again.
    if (now && now->revision == found->revision) return std::move(manifest).error();
  }
}

Result<void> Catalog::CheckMode(const net::Publish& publish,
                                const std::optional<NameRecord>& found) const {
  switch (publish.mode) {
    case net::Publish::Mode::kReplace:
      return {};
    case net::Publish::Mode::kCreate:
      if (!found) return {};
      return Error{ErrorCode::kConflict,
                   publish.name + " exists already; choose another name, or replace it"};
    case net::Publish::Mode::kSwap:
      if (found && found->revision == publish.expected_revision) return {};
      return Error{ErrorCode::kConflict, publish.name +
                                             (found ? " was published again" : " was removed") +
                                             " since it was looked at; look again, then decide"};
  }
  return Error{ErrorCode::kInvalidArgument, "unknown mode"};
}

// Every extent must be here, and be explained until the commit by an upload or another manifest.
Result<void> Catalog::CheckExtents(const DatasetManifest& manifest, std::string_view own_prefix,
                                   MetaStore::Commit& commit) const {
  std::set<std::uint64_t> uploads;
  for (const ManifestFile& file : manifest.files) {
    for (const ManifestExtent& wanted : file.extents) {
      const ExtentPtr extent = extents_.Find(wanted.id);
      // Those of others are not here for who may not read them.
      const bool is_published = IsPublished(wanted.id);
      const bool is_explained = is_published
                                    ? references_.AreReferenced(own_prefix, {&wanted.id, 1}).front()
                                    : uploads_.contains(UploadOf(wanted.id));
      if (extent && is_explained && extent->is_bad.load(std::memory_order_relaxed))
        return Error{ErrorCode::kCorruption,
                     file.name + ": extent " + Hex(wanted.id) +
                         " is damaged on the daemon's disk: upload it again"};
      if (!extent || !extent->disk || !is_explained)
        return Error{ErrorCode::kConflict,
                     file.name + ": extent " + Hex(wanted.id) +
                         " is not here; its upload did not end or was given up: upload again"};
      if (extent->size_bytes != wanted.size_bytes || extent->xxh3 != wanted.xxh3)
        return Error{ErrorCode::kInvalidArgument,
                     file.name + ": extent " + Hex(wanted.id) +
                         " has another size or checksum than the manifest says"};
      if (!is_published) uploads.insert(UploadOf(wanted.id));
    }
  }
  for (const std::uint64_t upload : uploads)
    commit.compares.push_back({NumberKey(kUploads, upload), uploads_.at(upload).revision});
  return {};
}

// The key of a tombstone is the generation that its commit ends: an attempt may come back.
Result<DatasetManifest> Catalog::RemoveManifest(const NameRecord& name, const DatasetManifest& keep,
                                                MetaStore::Commit& commit) {
  const auto bytes = FFR_TRY(ReadManifest(meta_, name));
  auto manifest = FFR_TRY(DecodeDatasetManifest(bytes));
  std::set<ExtentId> kept;
  for (const ManifestFile& file : keep.files)
    for (const ManifestExtent& extent : file.extents) kept.insert(extent.id);
  std::set<ExtentId> last;  // Those of which this manifest holds the last reference.
  std::unordered_map<ExtentId, std::uint32_t, HashExtentId> own;
  for (const ManifestFile& file : manifest.files)
    for (const ManifestExtent& extent : file.extents) ++own[extent.id];
  for (const auto& [id, count] : own)
    if (references_.CountOf(id) == count && !kept.contains(id)) last.insert(id);

  commit.deletes.push_back(NumberKey(kManifestKeys, name.attempt));
  if (!last.empty())
    commit.puts.push_back({NumberKey(kDeletes, generation_revision_),
                           EncodeIds(std::vector<ExtentId>(last.begin(), last.end()))});
  return manifest;
}

Result<void> Catalog::CheckReserve() const {
  if (reserve_ == nullptr || reserve_->is_whole()) return {};
  // A limit on the sizes of files, say: making room would not help. For clients and for the health
  // it is the same as a full disk: nothing fits until somebody has changed that.
  if (const int why = reserve_->missing_errno(); why != 0 && why != ENOSPC && why != EDQUOT)
    return Error{ErrorCode::kIo,
                 "the daemon cannot reserve the room that deletions need, in " +
                     reserve_->path().string() + ": " + std::generic_category().message(why),
                 ENOSPC};
  return Error{ErrorCode::kIo,
               "the daemon's disk is full, and what is left of it is kept for deletions; remove "
               "something, or make room at " +
                   home_.string(),
               ENOSPC};
}

Result<MetaStore::Outcome> Catalog::Commit(const MetaStore::Commit& commit) {
  FFR_TRY(home_writes_.CheckWritable());
  FFR_TRY(home_writes_.Noted(CheckReserve()));
  return home_writes_.Noted(meta_.TryCommit(commit));
}

Result<MetaStore::Outcome> Catalog::CommitDeletion(const MetaStore::Commit& commit) {
  FFR_TRY(home_writes_.CheckWritable());
  auto outcome = meta_.TryCommit(commit);
  const bool is_full = !outcome && (outcome.error().system_errno == ENOSPC ||
                                    outcome.error().system_errno == EDQUOT);
  // A store that is full has committed nothing.
  if (is_full && reserve_ != nullptr && reserve_->Release()) outcome = meta_.TryCommit(commit);
  return home_writes_.Noted(std::move(outcome));
}

Result<MetaStore::Outcome> Catalog::CommitGeneration(MetaStore::Commit commit, bool is_deletion) {
  commit.compares.push_back({std::string(kGeneration), generation_revision_});
  commit.puts.push_back({std::string(kGeneration), {}});
  const auto outcome = FFR_TRY(is_deletion ? CommitDeletion(commit) : Commit(commit));
  if (outcome.committed) generation_revision_ = outcome.revision;
  return outcome;
}

Result<net::RevisionReply> Catalog::Publish(const net::Publish& publish,
                                            std::span<const std::byte> bytes,
                                            std::string_view own_prefix) {
  auto manifest = DecodeDatasetManifest(bytes);
  if (!manifest) return Error{ErrorCode::kInvalidArgument, manifest.error().message};

  const std::lock_guard lock(mutex_);
  const auto found = FFR_TRY(FindName(meta_, publish.name));
  // Our own commit, whose reply was lost.
  if (found && found->attempt == publish.attempt) return net::RevisionReply{found->revision};
  FFR_TRY(CheckMode(publish, found));

  FFR_TRY(CheckQuotas(publish.name, manifest.value().size_bytes()));

  MetaStore::Commit commit;
  FFR_TRY(CheckExtents(manifest.value(), own_prefix, commit));
  commit.compares.push_back({NameKey(publish.name), found ? found->revision : 0});
  commit.compares.push_back({NumberKey(kManifestKeys, publish.attempt), 0});
  const NameRecord record{publish.attempt, manifest.value().size_bytes(),
                          manifest.value().files.size()};
  commit.puts.push_back({NameKey(publish.name), record.Encode()});
  commit.puts.push_back({NumberKey(kManifestKeys, publish.attempt), {bytes.begin(), bytes.end()}});
  std::optional<DatasetManifest> removed;
  if (found) removed = FFR_TRY(RemoveManifest(*found, manifest.value(), commit));

  const auto outcome = FFR_TRY(CommitGeneration(commit, false));
  if (!outcome.committed)
    return Error{ErrorCode::kConflict, "another writer published at the same time; look again"};
  references_.Change(publish.name, removed ? &*removed : nullptr, &manifest.value());
  for (const ManifestFile& file : manifest.value().files)
    for (const ManifestExtent& extent : file.extents) ledger_.Remove(extent.id);
  AddTombstones(commit);
  return net::RevisionReply{outcome.revision};
}

// --- Room ----------------------------------------------------------------------------------------

Result<void> Catalog::CheckQuotas(std::string_view name, std::uint64_t size_bytes) const {
  const std::uint64_t own_bytes = references_.SizeOf(name);
  if (size_bytes <= own_bytes) return {};  // Who shrinks is not held up.
  for (const auto& [prefix, quota_bytes] : options_.quotas) {
    if (!name.starts_with(prefix)) continue;
    const std::uint64_t others_bytes = references_.SizeBelow(prefix, name);
    if (others_bytes <= quota_bytes && size_bytes <= quota_bytes - others_bytes) continue;
    return Error{ErrorCode::kIo,
                 std::string(name) + " has " + std::to_string(size_bytes) +
                     " bytes: with the other " + std::to_string(others_bytes) + " bytes under '" +
                     prefix + "' that is more than the quota of " + std::to_string(quota_bytes) +
                     "; remove something there, or have the quota raised",
                 EDQUOT};
  }
  return {};
}

// The name is not known yet: uploads may replace what is published, so that only they are counted.
Result<void> Catalog::CheckUploadQuotas(const net::PutBegin& begin,
                                        std::string_view owner_prefix) const {
  for (const auto& [prefix, quota_bytes] : options_.quotas) {
    if (!owner_prefix.starts_with(prefix)) continue;
    const std::uint64_t pending_bytes = ledger_.SizeBelow(prefix, begin.id);
    if (pending_bytes <= quota_bytes && begin.size_bytes <= quota_bytes - pending_bytes) continue;
    return Error{
        ErrorCode::kIo,
        "uploads of " + std::to_string(pending_bytes) + " bytes wait to be published under '" +
            prefix + "': " + std::to_string(begin.size_bytes) + " more would pass the quota of " +
            std::to_string(quota_bytes) + "; publish them, or wait until they are given up",
        EDQUOT};
  }
  return {};
}

void Catalog::RefreshRoom() {
  for (const auto& disk : extents_.disks())
    if (disk->space().free_bytes >= kExtentSizeMax && &disk->writes() != &home_writes_)
      disk->writes().NoteSuccess();
  struct statvfs disk {};
  const bool is_known = ::statvfs(home_.c_str(), &disk) == 0;
  const std::uint64_t free_bytes =
      is_known ? std::uint64_t{disk.f_bavail} * disk.f_frsize : UINT64_MAX;
  if (reserve_ != nullptr) reserve_->Restore(free_bytes);
  if (CheckReserve() && free_bytes >= kExtentSizeMax) home_writes_.NoteSuccess();
}

Result<void> Catalog::CheckRoom(std::string_view name, std::uint64_t size_bytes) {
  FFR_TRY(home_writes_.CheckWritable());
  FFR_TRY(CheckReserve());
  FFR_TRY(CheckQuotas(name, size_bytes));
  const std::uint64_t free_bytes = FFR_TRY(extents_.FreeBytes());
  if (size_bytes <= free_bytes) return {};
  return Error{ErrorCode::kIo,
               std::string(name) + " has " + std::to_string(size_bytes) +
                   " bytes, and the daemon's disks have room for " + std::to_string(free_bytes),
               ENOSPC};
}

std::vector<Catalog::Usage> Catalog::Usages() const {
  std::vector<Usage> usages;
  for (const auto& [prefix, quota_bytes] : options_.quotas)
    usages.push_back({prefix, references_.SizeBelow(prefix), quota_bytes});
  return usages;
}

Result<net::ListReply> Catalog::List(const net::List& list) {
  const std::string after = list.after.empty() ? "" : NameKey(list.after);
  auto page = FFR_TRY(meta_.List(NameKey(list.prefix), after, list.limit));
  net::ListReply reply;
  reply.more = page.more;
  for (const auto& entry : page.entries) {
    ByteReader reader(entry.value);
    (void)reader.Take<std::uint64_t>();
    const auto size_bytes = reader.Take<std::uint64_t>();
    const auto file_count = reader.Take<std::uint64_t>();
    reply.entries.push_back(
        {entry.key.substr(kDatasetKeys.size()), entry.mod_revision, size_bytes, file_count});
  }
  return reply;
}

Result<void> Catalog::Remove(const net::Delete& request) {
  const std::lock_guard lock(mutex_);
  const auto found = FFR_TRY(FindName(meta_, request.name));
  if (!found) return NotFound(request.name);
  if (request.expected_revision != 0 && request.expected_revision != found->revision)
    return Error{ErrorCode::kConflict,
                 request.name + " was published again since it was looked up"};
  MetaStore::Commit commit;
  commit.compares.push_back({NameKey(request.name), found->revision});
  commit.deletes.push_back(NameKey(request.name));
  const auto removed = FFR_TRY(RemoveManifest(*found, {}, commit));
  const auto outcome = FFR_TRY(CommitGeneration(commit, true));
  if (!outcome.committed)
    return Error{ErrorCode::kConflict, "another writer was faster; look again"};
  references_.Change(request.name, &removed, nullptr);
  AddTombstones(commit);
  return {};
}

// --- Collecting ----------------------------------------------------------------------------------

void Catalog::AddTombstone(std::string key, std::span<const ExtentId> ids) {
  Tombstone tombstone{std::move(key), {}, {}};
  for (const ExtentId& id : ids) {
    // A tombstone never names what a manifest names: both are written by one commit. What a
    // damaged one says is not believed.
    if (IsPublished(id)) continue;
    tombstone.ids.push_back(id);
    if (ExtentPtr extent = extents_.MarkDeleted(id)) tombstone.extents.push_back(std::move(extent));
  }
  tombstones_.push_back(std::move(tombstone));
}

void Catalog::AddTombstones(const MetaStore::Commit& commit) {
  for (const auto& put : commit.puts)
    if (put.key.starts_with(kDeletes)) AddTombstone(put.key, DecodeIds(put.value));
}

// All in one commit, and one look through the index. The key of a tombstone is the revision of the
// upload's record: the same upload may begin anew while its extents are still in use.
Result<void> Catalog::GiveUpSilent(Clock::time_point now) {
  MetaStore::Commit commit;
  std::map<std::uint64_t, std::vector<ExtentId>> silent;
  for (const auto& [upload, state] : uploads_) {
    if (state.may_be_absent || now - state.heard < options_.upload_grace) continue;
    silent.try_emplace(upload);
    commit.compares.push_back({NumberKey(kUploads, upload), state.revision});
    commit.deletes.push_back(NumberKey(kUploads, upload));
  }
  if (silent.empty()) return {};
  const auto left = extents_.FindAll([&](const Extent& extent) {
    return silent.contains(UploadOf(extent.id)) && !IsPublished(extent.id);
  });
  for (const ExtentPtr& extent : left) silent.at(UploadOf(extent->id)).push_back(extent->id);
  for (const auto& [upload, ids] : silent)
    if (!ids.empty())
      commit.puts.push_back(
          {NumberKey(std::string(kDeletes) + "upload-", uploads_.at(upload).revision),
           EncodeIds(ids)});
  const auto outcome = FFR_TRY(CommitDeletion(commit));
  if (!outcome.committed) return {};
  for (const auto& [upload, ids] : silent) {
    uploads_.erase(upload);
    ledger_.RemoveUpload(upload);
  }
  AddTombstones(commit);
  return {};
}

std::vector<Catalog::Unlinking> Catalog::TakeToUnlink(const Disk& disk) {
  std::vector<Unlinking> taken;
  const std::lock_guard lock(mutex_);
  if (!report_.damaged.empty() || !home_writes_.CheckWritable()) return taken;
  for (Tombstone& tombstone : tombstones_) {
    auto& extents = tombstone.extents;
    // Where ours is the last: nobody reads it, and it can no longer be found.
    const auto first = std::partition(extents.begin(), extents.end(), [&](const ExtentPtr& extent) {
      return extent->disk != &disk || extent.use_count() > 1;
    });
    for (auto extent = first; extent != extents.end(); ++extent, ++tombstone.unlinking_count)
      taken.push_back({tombstone.key, std::move(*extent)});
    extents.erase(first, extents.end());
  }
  return taken;
}

void Catalog::GiveBack(std::span<const std::string> keys, std::vector<Unlinking> left) {
  const std::lock_guard lock(mutex_);
  std::unordered_map<std::string_view, Tombstone*> found;
  for (Tombstone& tombstone : tombstones_) found.emplace(tombstone.key, &tombstone);
  for (const std::string& key : keys) --found.at(key)->unlinking_count;
  for (Unlinking& one : left) found.at(one.key)->extents.push_back(std::move(one.extent));
}

// A disk may take long over each unlink, and hold no lock of others meanwhile.
Result<std::uint64_t> Catalog::UnlinkOn(const Disk& disk) {
  std::vector<Unlinking> extents = TakeToUnlink(disk);
  std::vector<std::string> keys;
  for (const Unlinking& one : extents) keys.push_back(one.key);
  Result<std::uint64_t> unlinked_count = std::uint64_t{0};
  const std::size_t count = std::erase_if(extents, [&](const Unlinking& one) {
    const auto unlinked = extents_.Unlink(*one.extent);
    if (!unlinked) unlinked_count = unlinked.error();  // The others go all the same.
    return unlinked && unlinked.value();
  });
  GiveBack(keys, std::move(extents));
  if (unlinked_count) unlinked_count = std::uint64_t{count};
  return unlinked_count;
}

Result<bool> Catalog::Forget(std::span<const Tombstone> tombstones) {
  if (tombstones.empty()) return true;
  // What was unlinked on a disk that has failed since cannot be made durable; the room is there.
  for (const auto& disk : extents_.disks())
    if (!disk->writes().CheckWritable()) return false;
  MetaStore::Commit commit;
  std::vector<ExtentId> ids;
  for (const Tombstone& tombstone : tombstones) {
    commit.deletes.push_back(tombstone.key);
    ids.insert(ids.end(), tombstone.ids.begin(), tombstone.ids.end());
  }
  // Else a power cut could bring back what no record explains.
  FFR_TRY(extents_.SyncNames(ids));
  FFR_TRY(CommitDeletion(commit));
  for (const Tombstone& tombstone : tombstones) extents_.Release(tombstone.ids);
  return true;
}

Result<void> Catalog::GiveUpUploads(Clock::time_point now) {
  RefreshRoom();
  const std::lock_guard lock(mutex_);
  if (!report_.damaged.empty() || !home_writes_.CheckWritable()) return {};
  return GiveUpSilent(now);
}

Result<void> Catalog::ForgetUnlinked() {
  std::vector<Tombstone> done;
  {
    const std::lock_guard lock(mutex_);
    if (!report_.damaged.empty() || !home_writes_.CheckWritable()) return {};
    const auto is_left = [](const Tombstone& one) {
      return !one.extents.empty() || one.unlinking_count > 0;
    };
    const auto first = std::partition(tombstones_.begin(), tombstones_.end(), is_left);
    std::move(first, tombstones_.end(), std::back_inserter(done));
    tombstones_.erase(first, tombstones_.end());
  }
  const auto forgotten = Forget(done);
  if (!forgotten || !forgotten.value()) {
    const std::lock_guard lock(mutex_);
    std::move(done.begin(), done.end(), std::back_inserter(tombstones_));
  }
  if (!forgotten) return Error(forgotten.error());
  return {};
}

Result<std::uint64_t> Catalog::Collect(Clock::time_point now) {
  FFR_TRY(GiveUpUploads(now));
  Result<std::uint64_t> unlinked_count = std::uint64_t{0};
  for (const auto& disk : extents_.disks()) {
    auto unlinked = UnlinkOn(*disk);
    if (!unlinked || !unlinked_count)
      unlinked_count = unlinked ? unlinked_count : std::move(unlinked);
    else
      unlinked_count = unlinked_count.value() + unlinked.value();
  }
  FFR_TRY(ForgetUnlinked());
  return unlinked_count;
}

}  // namespace ffrecord::server
