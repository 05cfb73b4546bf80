#include "server/metadata/meta_state.h"

#include <algorithm>
#include <utility>

namespace ffrecord::server {
namespace {

// The part of `entries` that is asked for; its revision is left to the caller.
MetaState::Found PartOf(const MetaHistory::Entries& entries,
                        const MetaStore::ListRequest& request) {
  const auto& [prefix, after, limit, revision] = request;
  MetaState::Found found;
  auto entry = after < prefix ? entries.lower_bound(prefix) : entries.upper_bound(after);
  for (; entry != entries.end() && entry->first.starts_with(prefix); ++entry) {
    found.more = found.entries.size() == limit;
    if (found.more) break;
    found.entries.push_back(entry->second);
  }
  return found;
}

Error CompactedError(std::uint64_t revision) {
  return {ErrorCode::kConflict, "the metadata of revision " + std::to_string(revision) +
                                    " is compacted; list from the beginning"};
}

Error FutureError(std::uint64_t revision) {
  return {ErrorCode::kInvalidArgument,
          "the metadata has no revision " + std::to_string(revision) + " yet"};
}

Error EndedLeaseError(MetaStore::LeaseId lease) {
  return {ErrorCode::kNotFound,
          "the lease " + std::to_string(lease) + " has ended; nothing was committed"};
}

}  // namespace

MetaStore::Page MetaState::Found::Copy() const {
  MetaStore::Page page{{}, more, revision};
  page.entries.reserve(entries.size());
  for (const EntryPtr& entry : entries) page.entries.push_back(*entry);
  return page;
}

MetaState::EntryPtr MetaState::Find(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : found->second;
}

std::optional<MetaStore::KeyValue> MetaState::Get(std::string_view key) const {
  const EntryPtr entry = Find(key);
  return entry ? std::optional(*entry) : std::nullopt;
}

Result<MetaStore::Page> MetaState::List(const MetaStore::ListRequest& request) const {
  return FFR_TRY(FindPage(request)).Copy();
}

Result<MetaState::Found> MetaState::FindPage(const MetaStore::ListRequest& request) const {
  if (request.revision > revision_) return FutureError(request.revision);
  const std::uint64_t revision = request.revision == 0 ? revision_ : request.revision;
  Found found;
  if (revision == revision_) {
    found = PartOf(entries_, request);
  } else {
    auto entries = entries_;
    if (!history_.Undo(entries, revision)) return CompactedError(revision);
    found = PartOf(entries, request);
  }
  found.revision = revision;
  return found;
}

Result<std::optional<MetaStore::Outcome>> MetaState::Check(const MetaStore::Commit& commit,
                                                           TimePoint now) const {
  using Fate = MetaStore::Outcome::Fate;
  const auto without_change = [this](Fate fate) {
    return std::optional(MetaStore::Outcome{fate, revision_, std::nullopt});
  };
  for (const auto& compare : commit.compares) {
    const EntryPtr found = Find(compare.key);
    if ((found ? found->mod_revision : 0) != compare.mod_revision)
      return without_change(Fate::kLost);
  }
  for (const auto& put : commit.puts)
    if (put.lease != 0 && !leases_.IsLive(put.lease, now)) return EndedLeaseError(put.lease);
  const auto is_there = [this](const std::string& key) { return entries_.contains(key); };
  if (commit.puts.empty() && std::ranges::none_of(commit.deletes, is_there))
    return without_change(Fate::kCommitted);
  return std::optional<MetaStore::Outcome>();
}

Result<MetaStore::Outcome> MetaState::TryCommit(const MetaStore::Commit& commit, TimePoint now) {
  if (auto outcome = FFR_TRY(Check(commit, now))) return *std::move(outcome);
  Change(commit.puts, commit.deletes);
  return MetaStore::Outcome{MetaStore::Outcome::Fate::kCommitted, revision_, std::nullopt};
}

void MetaState::Change(const std::vector<MetaStore::Put>& puts,
                       const std::vector<std::string>& deletes) {
  const std::uint64_t revision = revision_ + 1;
  std::vector<MetaHistory::Change> changes;
  for (const std::string& key : deletes) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) continue;
    leases_.Detach(key);
    changes.push_back({{key, std::nullopt, revision}, std::move(found->second)});
    entries_.erase(found);
  }
  for (const auto& put : puts) {
    leases_.Attach(put.key, put.lease);
    changes.push_back({{put.key, put.value, revision}, Find(put.key)});
    entries_[put.key] = std::make_shared<const MetaStore::KeyValue>(
        MetaStore::KeyValue{put.key, put.value, revision});
  }
  if (changes.empty()) return;
  revision_ = revision;
  history_.Add(std::move(changes));
}

MetaStore::Lease MetaState::GrantLease(std::chrono::milliseconds ttl, TimePoint now) {
  return {leases_.Grant(ttl, now), ttl};
}

std::optional<std::chrono::milliseconds> MetaState::KeepLease(MetaStore::LeaseId lease,
                                                              TimePoint now) {
  return leases_.Keep(lease, now);
}

void MetaState::PutBack(const MetaState& older, TimePoint now) {
  entries_ = older.entries_;
  revision_ = older.revision_;
  leases_.PutBack(older.leases_, now);
  history_.PutBack(revision_);
}

void MetaState::RevokeLease(MetaStore::LeaseId lease) {
  Change({}, leases_.KeysOf(lease));
  leases_.End(lease);
}

void MetaState::ExpireLeases(TimePoint now) {
  while (const auto expired = leases_.FindExpired(now)) RevokeLease(*expired);
}

}  // namespace ffrecord::server
