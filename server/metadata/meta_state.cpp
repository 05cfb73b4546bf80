#include "server/metadata/meta_state.h"

#include <algorithm>
#include <utility>

namespace ffrecord::server {

MetaStore::Page PageOf(const MetaHistory::Entries& entries, const MetaStore::ListRequest& request) {
  const auto& [prefix, after, limit, revision] = request;
  MetaStore::Page page;
  auto entry = after < prefix ? entries.lower_bound(prefix) : entries.upper_bound(after);
  for (; entry != entries.end() && entry->first.starts_with(prefix); ++entry) {
    page.more = page.entries.size() == limit;
    if (page.more) break;
    page.entries.push_back(entry->second);
  }
  return page;
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

std::optional<MetaStore::KeyValue> MetaState::Get(std::string_view key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? std::nullopt : std::optional(found->second);
}

Result<MetaStore::Page> MetaState::List(const MetaStore::ListRequest& request) const {
  if (request.revision > revision_) return FutureError(request.revision);
  const std::uint64_t revision = request.revision == 0 ? revision_ : request.revision;
  MetaStore::Page page;
  if (revision == revision_) {
    page = PageOf(entries_, request);
  } else {
    auto entries = entries_;
    if (!history_.Undo(entries, revision)) return CompactedError(revision);
    page = PageOf(entries, request);
  }
  page.revision = revision;
  return page;
}

Result<MetaStore::Outcome> MetaState::TryCommit(const MetaStore::Commit& commit, TimePoint now) {
  using Fate = MetaStore::Outcome::Fate;
  for (const auto& compare : commit.compares) {
    const auto found = entries_.find(compare.key);
    const std::uint64_t mod_revision = found == entries_.end() ? 0 : found->second.mod_revision;
    if (mod_revision != compare.mod_revision)
      return MetaStore::Outcome{Fate::kLost, revision_, std::nullopt};
  }
  for (const auto& put : commit.puts)
    if (put.lease != 0 && !leases_.IsLive(put.lease, now)) return EndedLeaseError(put.lease);
  Change(commit.puts, commit.deletes);
  return MetaStore::Outcome{Fate::kCommitted, revision_, std::nullopt};
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
    changes.push_back({{put.key, put.value, revision}, Get(put.key)});
    entries_.insert_or_assign(put.key, MetaStore::KeyValue{put.key, put.value, revision});
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
