#include "server/service/cluster/adoption.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "libffrecord/base/cursor.h"
#include "server/metadata/version_list.h"
#include "server/service/catalog/name_records.h"
#include "server/service/catalog/upload_records.h"

namespace ffrecord::server {
namespace {

constexpr std::string_view kTakenKeys = "cluster/adopted/";  // <name>: attempt that published it.
constexpr std::ptrdiff_t kUnderWayMax = 8;
// A coordinator or a node may be back soon; a name that is in the way is for people to remove.
constexpr std::chrono::seconds kRetrySoon{2};
constexpr std::chrono::seconds kRetryLate{30};

std::string TakenKey(std::string_view name) { return std::string(kTakenKeys) + std::string(name); }

std::vector<std::byte> EncodeAttempt(std::uint64_t attempt) {
  ByteWriter writer;
  writer.Put(attempt);
  return std::move(writer).Take();
}

// The attempts of the names that the cluster has taken.
using Taken = std::map<std::string, std::uint64_t, std::less<>>;
Result<Taken> ReadTaken(BlockingStore& home) {
  Taken taken;
  FFR_TRY(ForEachEntry(home, kTakenKeys, [&](const MetaStore::KeyValue& entry) {
    ByteReader reader(entry.value);
    const auto attempt = reader.Take<std::uint64_t>();
    if (reader.AtEnd()) taken[entry.key.substr(kTakenKeys.size())] = attempt;
  }));
  return taken;
}

// Whether the cluster has taken what `record` publishes.
bool IsTaken(const Taken& taken, std::string_view name, const NameRecord& record) {
  const auto noted = taken.find(name);
  return noted != taken.end() && noted->second == record.attempt;
}

Result<std::vector<std::string>> OwnNames(BlockingStore& home) {
  std::vector<std::string> names;
  FFR_TRY(ForEachEntry(home, kDatasetKeys, [&](const MetaStore::KeyValue& entry) {
    names.push_back(entry.key.substr(kDatasetKeys.size()));
  }));
  return names;
}

Result<NameRecord> RecordOf(BlockingStore& home, const std::string& name) {
  const auto record = FFR_TRY(FindName(home, name));
  if (record) return *record;
  return Error{ErrorCode::kCorruption, "the record of the name " + name + " is gone"};
}

// All keys below the prefixes, in commits of bounded size.
Result<void> DeleteAll(BlockingStore& home, std::initializer_list<std::string_view> prefixes) {
  constexpr std::uint32_t kPageSize = 256;
  for (const std::string_view prefix : prefixes) {
    for (;;) {
      const auto page = FFR_TRY(home.List(prefix, "", kPageSize));
      if (page.entries.empty()) break;
      BlockingStore::Commit commit;
      for (const auto& entry : page.entries) commit.deletes.push_back(entry.key);
      FFR_TRY(home.TryCommit(commit));
    }
  }
  return {};
}

}  // namespace

Result<bool> Adoption::IsNeeded(BlockingStore& home) {
  return !FFR_TRY(home.List(kDatasetKeys, "", 1)).entries.empty();
}

Result<std::unique_ptr<Adoption>> Adoption::Open(BlockingStore& home) {
  std::unique_ptr<Adoption> adoption(new Adoption(home));
  adoption->taken_ = FFR_TRY(ReadTaken(home));
  for (const std::string& text : FFR_TRY(OwnNames(home))) {
    const NameRecord record = FFR_TRY(RecordOf(home, text));
    auto manifest = DecodeDatasetManifest(FFR_TRY(ReadManifest(home, record)));
    if (!manifest)
      return Error{ErrorCode::kCorruption, text + ": " + manifest.error().message +
                                               "; start the daemon without `cluster` and remove "
                                               "that name before it is adopted"};
    for (const ManifestFile& file : manifest.value().files)
      for (const ManifestExtent& extent : file.extents) adoption->extents_.push_back(extent.id);
    if (IsTaken(adoption->taken_, text, record)) continue;
    adoption->references_.Change(text, nullptr, &manifest.value());
    Name name{text, record.attempt, record.revision,
              std::make_shared<const DatasetManifest>(std::move(manifest).value())};
    adoption->pending_.emplace(text, Pending{std::move(name), false, {}, {}});
  }
  auto& extents = adoption->extents_;
  std::sort(extents.begin(), extents.end());
  extents.erase(std::unique(extents.begin(), extents.end()), extents.end());
  return adoption;
}

// Names are deleted before manifests and all else, so that no name is ever without its manifest. A
// daemon that is killed meanwhile finishes at its next start.
Result<void> Adoption::Finish(BlockingStore& home) {
  const Taken taken = FFR_TRY(ReadTaken(home));
  std::size_t left_count = 0;
  std::string example;
  for (const std::string& name : FFR_TRY(OwnNames(home))) {
    const NameRecord record = FFR_TRY(RecordOf(home, name));
    if (IsTaken(taken, name, record)) continue;
    if (left_count++ == 0) example = name;
  }
  if (left_count > 0)
    return Error{ErrorCode::kConflict,
                 "this daemon's data folder has " + std::to_string(left_count) +
                     " names that were published without a cluster and are not in it, such as " +
                     example +
                     "; take them over with `--adopt`, start the daemon without `cluster`, or give "
                     "it another data folder"};
  return DeleteAll(home, {kDatasetKeys, kManifestKeys, kUploadKeys, kTombstoneKeys, kTakenKeys});
}

std::optional<Adoption::Name> Adoption::Find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const auto found = pending_.find(name);
  return found == pending_.end() ? std::nullopt : std::optional(found->second.name);
}

std::vector<Adoption::Name> Adoption::List(std::string_view prefix, std::string_view after,
                                           std::size_t limit) const {
  std::vector<Name> names;
  const std::lock_guard lock(mutex_);
  auto at = after < prefix ? pending_.lower_bound(prefix) : pending_.upper_bound(after);
  if (after.empty()) at = pending_.lower_bound(prefix);
  for (; at != pending_.end() && at->first.starts_with(prefix) && names.size() < limit; ++at)
    names.push_back(at->second.name);
  return names;
}

bool Adoption::IsOwn(std::string_view name, std::uint64_t attempt) const {
  const std::lock_guard lock(mutex_);
  const auto taken = taken_.find(name);
  if (taken != taken_.end() && taken->second == attempt) return true;
  const auto pending = pending_.find(name);
  return pending != pending_.end() && pending->second.name.attempt == attempt;
}

std::size_t Adoption::left_count() const {
  const std::lock_guard lock(mutex_);
  return pending_.size();
}

std::string Adoption::trouble() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, pending] : pending_)
    if (!pending.trouble.empty()) return pending.trouble;
  return {};
}

bool Adoption::IsBusy() const {
  const auto is_under_way = [](const auto& entry) { return entry.second.is_under_way; };
  return std::ranges::count_if(pending_, is_under_way) >= kUnderWayMax;
}

// A list of versions follows their data: no version is ever seen without it.
bool Adoption::MustWait(const std::string& name) const {
  const std::string dataset = DatasetOf(name);
  if (dataset.empty() || !name.starts_with(VersionListOf(dataset))) return false;
  const std::string data = dataset + "/.versions/";
  const auto first = pending_.lower_bound(data);
  return first != pending_.end() && first->first.starts_with(data);
}

std::optional<Adoption::Name> Adoption::Next(cluster::TimePoint now) {
  const std::lock_guard lock(mutex_);
  if (IsBusy()) return std::nullopt;
  for (auto& [name, pending] : pending_) {
    if (pending.is_under_way || now < pending.next || MustWait(name)) continue;
    pending.is_under_way = true;
    return pending.name;
  }
  return std::nullopt;
}

cluster::TimePoint Adoption::wake() const {
  const std::lock_guard lock(mutex_);
  auto wake = cluster::TimePoint::max();
  if (IsBusy()) return wake;
  for (const auto& [name, pending] : pending_)
    if (!pending.is_under_way && !MustWait(name)) wake = std::min(wake, pending.next);
  return wake;
}

Result<void> Adoption::NoteTaken(const Name& name) {
  FFR_TRY(home_.TryCommit({{}, {{TakenKey(name.name), EncodeAttempt(name.attempt)}}, {}}));
  references_.Change(name.name, name.manifest.get(), nullptr);
  const std::lock_guard lock(mutex_);
  taken_[name.name] = name.attempt;
  pending_.erase(name.name);
  return {};
}

void Adoption::NoteFailed(const Name& name, const Error& error, cluster::TimePoint now) {
  const bool is_for_people =
      error.code != ErrorCode::kUnavailable && error.code != ErrorCode::kDeadlineExceeded;
  const std::lock_guard lock(mutex_);
  const auto found = pending_.find(name.name);
  if (found == pending_.end()) return;
  found->second.is_under_way = false;
  found->second.next = now + (is_for_people ? kRetryLate : kRetrySoon);
  found->second.trouble = error.message;
}

}  // namespace ffrecord::server
