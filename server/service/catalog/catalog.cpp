#include "server/service/catalog/catalog.h"

#include <algorithm>
#include <cerrno>
#include <set>
#include <unordered_map>
#include <utility>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/cursor.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/net/protocol/messages.h"
#include "server/metadata/name_quotas.h"
#include "server/metadata/version_list.h"
#include "server/service/catalog/upload_records.h"

namespace ffrecord::server {
namespace {

Error NotFound(std::string_view name) {
  return {ErrorCode::kNotFound, "nothing is published under the name " + std::string(name)};
}

}  // namespace

Result<std::unique_ptr<Catalog>> Catalog::Open(BlockingStore& meta, ExtentStore& extents,
                                               HomeDisk& home, const Options& options,
                                               PublishedNames published) {
  std::unique_ptr<Catalog> catalog(new Catalog(meta, extents, home, options));
  const std::lock_guard lock(catalog->mutex_);
  FFR_TRY(catalog->Load(std::move(published)));
  return catalog;
}

// --- Start ---------------------------------------------------------------------------------------

Result<void> Catalog::Load(PublishedNames published) {
  if (const auto generation = FFR_TRY(meta_.Get(kGenerationKey)))
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
  FFR_TRY(ForEachEntry(meta_, kUploadKeys, [&](const MetaStore::KeyValue& entry) {
    std::uint64_t upload = 0;
    if (!ParseNumberKey(kUploadKeys, entry.key, upload)) return;
    std::string owner(reinterpret_cast<const char*>(entry.value.data()), entry.value.size());
    uploads_.emplace(upload, Upload{entry.mod_revision, std::move(owner), now,
                                    extents_.missing_disk_count() > 0});
  }));
  report_.open_upload_count = uploads_.size();
  return {};
}

Result<void> Catalog::LoadTombstones() {
  return ForEachEntry(meta_, kTombstoneKeys, [&](const MetaStore::KeyValue& entry) {
    // Though nothing is unlinked beside a damaged manifest: their ids must not be used anew.
    report_.deleted_count += AddTombstone(entry.key, DecodeIds(entry.value));
  });
}

void Catalog::ExplainExtents() {
  for (const ExtentId& id : extents_.scan_report().unknown) {
    const ExtentPtr extent = extents_.Find(id);
    if (!extent) continue;  // Deleted.
    const auto upload = uploads_.find(UploadOf(id));
    if (upload == uploads_.end() && IsKept(id)) continue;
    if (upload == uploads_.end()) {
      report_.unexplained.push_back(extent->disk->PathOf(id).string());
      continue;
    }
    ++report_.unpublished_count;
    ledger_.Add(id, extent->size_bytes, upload->second.owner_prefix);
  }
}

// --- Putting -------------------------------------------------------------------------------------

Result<std::optional<NewExtent>> Catalog::BeginPut(const net::PutBegin& begin,
                                                   std::string_view owner_prefix) {
  FFR_TRY(home_.CheckReserve());
  {
    const std::lock_guard lock(mutex_);
    if (!IsPublished(begin.id)) {
      FFR_TRY(CheckUploadQuotas(begin, owner_prefix));
      FFR_TRY(RecordUpload(UploadOf(begin.id), owner_prefix));
      ledger_.Add(begin.id, begin.size_bytes, owner_prefix);
    } else if (const ExtentPtr extent = extents_.Find(begin.id); !extent || !extent->disk) {
      // Readers of its names would get whatever comes.
      return Error{ErrorCode::kConflict, "extent " + Hex(begin.id) +
                                             " is published and missing on the daemon's disks; "
                                             "upload its bytes under a new id"};
    }
  }
  if (const ExtentPtr extent = extents_.Find(begin.id)) {
    if (extent->size_bytes == begin.size_bytes) return std::optional<NewExtent>();
    return Error{ErrorCode::kConflict, "extent " + Hex(begin.id) + " exists with another size"};
  }
  return std::optional(FFR_TRY(extents_.Place(begin.id, begin.size_bytes)));
}

Result<void> Catalog::RecordUpload(std::uint64_t upload, std::string_view owner_prefix) {
  if (const auto found = uploads_.find(upload); found != uploads_.end()) {
    found->second.heard = Clock::now();
    return {};
  }
  MetaStore::Commit commit;
  const std::string key = NumberKey(kUploadKeys, upload);
  commit.compares.push_back({key, 0});
  const auto owner = std::as_bytes(std::span(owner_prefix));
  commit.puts.push_back({key, {owner.begin(), owner.end()}});
  const auto outcome = FFR_TRY(meta_.TryCommit(commit));
  if (!outcome.committed)
    return Error{ErrorCode::kUnavailable, "the upload was being recorded by another; try again"};
  uploads_.emplace(upload,
                   Upload{outcome.revision, std::string(owner_prefix), Clock::now(), false});
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
        {std::string(kTombstoneKeys) + "extent-" + Hex(seal.id), EncodeIds({&seal.id, 1})});
    // Also where that cannot be recorded: until the next start it is known all the same.
    (void)meta_.TryCommit(commit);
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

// Every extent must be here, and be explained until the commit by an upload or another manifest.
Result<void> Catalog::CheckExtents(const DatasetManifest& manifest, std::string_view own_prefix,
                                   MetaStore::Commit& commit) const {
  if (manifest.has_code() || manifest.replicas > 1)
    return Error{
        ErrorCode::kInvalidArgument,
        "this daemon is in no cluster: names have one replica here, and no erasure code; leave "
        "the durability class out"};
  if (manifest.has_origins())
    return Error{ErrorCode::kInvalidArgument,
                 manifest.files.front().origin.address +
                     ": only the daemons of a cluster fetch files from origins; upload them"};
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
    commit.compares.push_back({NumberKey(kUploadKeys, upload), uploads_.at(upload).revision});
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
    commit.puts.push_back({NumberKey(kTombstoneKeys, generation_revision_),
                           EncodeIds(std::vector<ExtentId>(last.begin(), last.end()))});
  return manifest;
}

Result<BlockingStore::Outcome> Catalog::CommitGeneration(MetaStore::Commit commit) {
  commit.compares.push_back({std::string(kGenerationKey), generation_revision_});
  commit.puts.push_back({std::string(kGenerationKey), {}});
  const auto outcome = FFR_TRY(meta_.TryCommit(commit));
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
  FFR_TRY(CheckNameChange(ChangeOf(publish.mode), publish.name, found ? found->revision : 0,
                          publish.expected_revision));
  if (!FFR_TRY(meta_.List(NameKey(VersionListOf(publish.name)), "", 1)).entries.empty())
    return RefusalForVersions(publish.name);
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

  const auto outcome = FFR_TRY(CommitGeneration(commit));
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
  return CheckNameQuotas(
      options_.quotas, name, references_.SizeOf(name), size_bytes,
      [&](const std::string& prefix) { return references_.SizeBelow(prefix, name); });
}

// The name is not known yet: uploads may replace what is published, so that only they are counted.
Result<void> Catalog::CheckUploadQuotas(const net::PutBegin& begin,
                                        std::string_view owner_prefix) const {
  for (const auto& [prefix, quota_bytes] : options_.quotas) {
    if (!owner_prefix.starts_with(prefix)) continue;
    const std::uint64_t pending_bytes = ledger_.SizeBelow(prefix, begin.id);
    FFR_TRY(CheckUploadQuota(prefix, quota_bytes, pending_bytes, begin.size_bytes));
  }
  return {};
}

Result<void> Catalog::CheckRoom(std::string_view name, std::uint64_t size_bytes) {
  FFR_TRY(home_.writes().CheckWritable());
  FFR_TRY(home_.CheckReserve());
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
  FFR_TRY(CheckNameChange(NameChange::kRemove, request.name, found ? found->revision : 0,
                          request.expected_revision));
  MetaStore::Commit commit;
  commit.compares.push_back({NameKey(request.name), found->revision});
  commit.deletes.push_back(NameKey(request.name));
  const auto removed = FFR_TRY(RemoveManifest(*found, {}, commit));
  const auto outcome = FFR_TRY(CommitGeneration(commit));
  if (!outcome.committed)
    return Error{ErrorCode::kConflict, "another writer was faster; look again"};
  references_.Change(request.name, &removed, nullptr);
  AddTombstones(commit);
  return {};
}

}  // namespace ffrecord::server
