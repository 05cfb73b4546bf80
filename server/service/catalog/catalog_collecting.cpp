// The catalog's collecting: gives up uploads that fell silent, unlinks extents, forgets tombstones.

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/service/catalog/catalog.h"
#include "server/service/catalog/upload_records.h"

namespace ffrecord::server {

std::size_t Catalog::AddTombstone(std::string key, std::span<const ExtentId> ids) {
  Tombstone tombstone{std::move(key), {}, 0, {}};
  for (const ExtentId& id : ids) {
    // A tombstone never names what a manifest names: both are written by one commit. A damaged
    // tombstone is not believed.
    if (IsPublished(id) || IsKept(id)) continue;
    tombstone.ids.push_back(id);
    if (!dropped_.Add(id)) tombstone.unseen.push_back(id);
  }
  const std::size_t seen_count = tombstone.ids.size() - tombstone.unseen.size();
  tombstones_.push_back(std::move(tombstone));
  return seen_count;
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

bool Catalog::MayUnlink() const {
  return report_.damaged.empty() && home_.writes().CheckWritable();
}

Result<void> Catalog::GiveUpUploads(Clock::time_point now) {
  if (!MayUnlink()) return {};
  const std::lock_guard lock(mutex_);
  return GiveUpSilent(now);
}

Result<std::uint64_t> Catalog::UnlinkOn(const Disk& disk) {
  const auto swept = dropped_.Sweep(&disk, [this] { return MayUnlink(); });
  if (!swept.outcome) return swept.outcome.error();
  return std::uint64_t{swept.ids.size()};
}

Result<void> Catalog::ForgetUnlinked() {
  if (!MayUnlink()) return {};
  static_cast<void>(dropped_.Sweep(nullptr, [] { return true; }));
  // A removal on a disk that has failed since cannot be made durable.
  const bool may_sync = std::ranges::all_of(extents_.disks(), [](const auto& disk) {
    return static_cast<bool>(disk->writes().CheckWritable());
  });
  std::vector<Tombstone> done;
  {
    const std::lock_guard lock(mutex_);
    const auto is_left = [&](Tombstone& one) {
      one.gone_count += dropped_.CountGone(std::span(one.ids).subspan(one.gone_count));
      return one.gone_count < one.ids.size() || (!may_sync && !one.unseen.empty());
    };
    const auto first = std::partition(tombstones_.begin(), tombstones_.end(), is_left);
    std::move(first, tombstones_.end(), std::back_inserter(done));
    tombstones_.erase(first, tombstones_.end());
  }
  auto forgotten = Forget(done);
  if (forgotten) return {};
  const std::lock_guard lock(mutex_);
  std::move(done.begin(), done.end(), std::back_inserter(tombstones_));
  return forgotten;
}

Result<void> Catalog::Forget(std::span<const Tombstone> tombstones) {
  if (tombstones.empty()) return {};
  MetaStore::Commit commit;
  std::vector<ExtentId> unseen;
  for (const Tombstone& tombstone : tombstones) {
    commit.deletes.push_back(tombstone.key);
    unseen.insert(unseen.end(), tombstone.unseen.begin(), tombstone.unseen.end());
  }
  // Else a power cut could bring back what no record explains.
  if (!unseen.empty()) FFR_TRY(extents_.SyncNames(unseen));
  FFR_TRY(meta_.TryCommit(commit));
  for (const Tombstone& tombstone : tombstones) extents_.Release(tombstone.ids);
  return {};
}

}  // namespace ffrecord::server
