#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

  explicit MetaState(const MetaHistory::Limits& limits = {}) : history_(limits, 0) {}

  std::optional<MetaStore::KeyValue> Get(std::string_view key) const;
  Result<MetaStore::Page> List(const MetaStore::ListRequest& request) const;
  Result<MetaStore::Outcome> TryCommit(const MetaStore::Commit& commit, TimePoint now);

  MetaStore::Lease GrantLease(std::chrono::milliseconds ttl, TimePoint now);
  std::optional<std::chrono::milliseconds> KeepLease(MetaStore::LeaseId lease, TimePoint now);
  void RevokeLease(MetaStore::LeaseId lease);
  // Ends the leases whose time is over.
  void ExpireLeases(TimePoint now);
  std::optional<TimePoint> next_expiry() const { return leases_.next_expiry(); }

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
  void Change(const std::vector<MetaStore::Put>& puts, const std::vector<std::string>& deletes);

  MetaHistory::Entries entries_;
  std::uint64_t revision_ = 0;
  LeaseTable leases_;
  MetaHistory history_;
};

// The page of `entries` that is asked for; its revision is left to the caller.
MetaStore::Page PageOf(const MetaHistory::Entries& entries, const MetaStore::ListRequest& request);

// The errors of List() if `revision` is compacted, or is not there yet.
Error CompactedError(std::uint64_t revision);
Error FutureError(std::uint64_t revision);
// The error of TryCommit() if `lease` has ended.
Error EndedLeaseError(MetaStore::LeaseId lease);

}  // namespace ffrecord::server
