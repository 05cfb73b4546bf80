#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/metadata/lease_table.h"
#include "server/metadata/meta_history.h"
#include "server/metadata/meta_store.h"

namespace ffrecord::server {

// The state of a MetaStore's server, in memory: the map, its history, its leases. No thread, no
// clock, no system call: callers pass the time, which must not go back. Deterministic. Distinct
// objects in distinct threads.
//
// Each call tells what MetaStore's call of that name tells.
class MetaState {
 public:
  using TimePoint = MetaStore::TimePoint;
  using EntryPtr = MetaHistory::EntryPtr;
  // A page whose entries are shared, to be copied without a lock on the state.
  struct Found {
    std::vector<EntryPtr> entries;
    bool more = false;
    std::uint64_t revision = 0;

    MetaStore::Page Copy() const;
  };

  // Begins with `entries` at `revision`; what was before is compacted.
  explicit MetaState(const MetaHistory::Limits& limits = {}, MetaHistory::Entries entries = {},
                     std::uint64_t revision = 0)
      : entries_(std::move(entries)), revision_(revision), history_(limits, revision) {}

  EntryPtr Find(std::string_view key) const;  // Null: it is absent.
  Result<Found> FindPage(const MetaStore::ListRequest& request) const;
  std::optional<MetaStore::KeyValue> Get(std::string_view key) const;
  Result<MetaStore::Page> List(const MetaStore::ListRequest& request) const;
  Result<MetaStore::Outcome> TryCommit(const MetaStore::Commit& commit, TimePoint now);

  // TryCommit() in two halves, for a store that writes the change to a disk in between. The outcome
  // of a commit that is lost or changes nothing; none: it is to be changed.
  Result<std::optional<MetaStore::Outcome>> Check(const MetaStore::Commit& commit,
                                                  TimePoint now) const;
  // At the next revision. Requires something to change, and that the leases of puts are there.
  void Change(const std::vector<MetaStore::Put>& puts, const std::vector<std::string>& deletes);

  MetaStore::Lease GrantLease(std::chrono::milliseconds ttl, TimePoint now);
  std::optional<std::chrono::milliseconds> KeepLease(MetaStore::LeaseId lease, TimePoint now);
  void RevokeLease(MetaStore::LeaseId lease);
  // Ends the leases whose time is over.
  void ExpireLeases(TimePoint now);
  std::optional<TimePoint> next_expiry() const { return leases_.next_expiry(); }
  std::optional<MetaStore::LeaseId> FindExpired(TimePoint now) const {
    return leases_.FindExpired(now);
  }
  std::vector<std::string> KeysOf(MetaStore::LeaseId lease) const { return leases_.KeysOf(lease); }

  // Forgets the changes up to `revision`, which must not be newer than the newest.
  void CompactTo(std::uint64_t revision) { history_.CompactTo(revision); }
  // As an operator restores a snapshot: everything is as it was in `older`, revisions too. Watches
  // that have told of later revisions are silent until there are such.
  void PutBack(const MetaState& older, TimePoint now);
  // The events for a watch that has told all before `from_revision`; none: it is compacted.
  std::optional<std::vector<MetaStore::Event>> EventsSince(std::string_view prefix,
                                                           std::uint64_t from_revision) const {
    return history_.Since(prefix, from_revision);
  }
  std::uint64_t revision() const { return revision_; }

 private:
  MetaHistory::Entries entries_;
  std::uint64_t revision_ = 0;
  LeaseTable leases_;
  MetaHistory history_;
};

}  // namespace ffrecord::server
