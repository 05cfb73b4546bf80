// The catalog's collecting: gives up uploads that fell silent, unlinks extents, forgets tombstones.

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/service/catalog/catalog.h"
#include "server/service/catalog/upload_records.h"

namespace ffrecord::server {

void Catalog::AddTombstone(std::string key, std::span<const ExtentId> ids) {
  Tombstone tombstone{std::move(key), {}, {}};
  for (const ExtentId& id : ids) {
    // A tombstone never names what a manifest names: both are written by one commit. A damaged
    // tombstone is not believed.
    if (IsPublished(id) || IsKept(id)) continue;
    tombstone.ids.push_back(id);
    if (ExtentPtr extent = extents_.MarkDeleted(id)) tombstone.extents.push_back(std::move(extent));
  }
  tombstones_.push_back(std::move(tombstone));
}

void Catalog::AddTombstones(const MetaStore::Commit& commit) {
  for (const auto& put : commit.puts)
    if (put.key.starts_with(kTombstoneKeys)) AddTombstone(put.key, DecodeIds(put.value));
}

// All in one commit, and one look through the index. The key of a tombstone is the revision of the
// upload's record: the same upload may begin anew while its extents are still in use.
Result<void> Catalog::GiveUpSilent(Clock::time_point now) {
  MetaStore::Commit commit;
  std::map<std::uint64_t, std::vector<ExtentId>> silent;
  for (const auto& [upload, state] : uploads_) {
    if (state.may_be_absent || now - state.heard < options_.upload_grace) continue;
    silent.try_emplace(upload);
    commit.compares.push_back({NumberKey(kUploadKeys, upload), state.revision});
    commit.deletes.push_back(NumberKey(kUploadKeys, upload));
  }
  if (silent.empty()) return {};
  const auto left = extents_.FindAll([&](const Extent& extent) {
    return silent.contains(UploadOf(extent.id)) && !IsPublished(extent.id);
  });
  for (const ExtentPtr& extent : left) silent.at(UploadOf(extent->id)).push_back(extent->id);
  for (const auto& [upload, ids] : silent)
    if (!ids.empty())
      commit.puts.push_back(
          {NumberKey(std::string(kTombstoneKeys) + "upload-", uploads_.at(upload).revision),
           EncodeIds(ids)});
  const auto outcome = FFR_TRY(meta_.TryCommit(commit));
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
  if (!report_.damaged.empty() || !home_.writes().CheckWritable()) return taken;
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
Result<std::uint64_t> Catalog::UnlinkOn(Disk& disk) {
  disk.RefreshSpace();
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
  // An unlink on a disk that has failed since cannot be made durable; the room is there.
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
  FFR_TRY(meta_.TryCommit(commit));
  for (const Tombstone& tombstone : tombstones) extents_.Release(tombstone.ids);
  return true;
}

Result<void> Catalog::GiveUpUploads(Clock::time_point now) {
  RefreshRoom();
  const std::lock_guard lock(mutex_);
  if (!report_.damaged.empty() || !home_.writes().CheckWritable()) return {};
  return GiveUpSilent(now);
}

Result<void> Catalog::ForgetUnlinked() {
  std::vector<Tombstone> done;
  {
    const std::lock_guard lock(mutex_);
    if (!report_.damaged.empty() || !home_.writes().CheckWritable()) return {};
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
