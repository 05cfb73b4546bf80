#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/metadata/meta_store.h"

namespace ffrecord::server {

// The leases of a store that counts their time itself, and the keys of each. Callers pass the time;
// it must not go back. Deterministic. Distinct objects in distinct threads.
class LeaseTable {
 public:
  using LeaseId = MetaStore::LeaseId;
  using TimePoint = MetaStore::TimePoint;

  LeaseId Grant(std::chrono::milliseconds ttl, TimePoint now);
  // Begins its time anew; its ttl, or none if it has ended.
  std::optional<std::chrono::milliseconds> Keep(LeaseId lease, TimePoint now);
  // Its time is not over, and it was not ended.
  bool IsLive(LeaseId lease, TimePoint now) const;
  std::vector<std::string> KeysOf(LeaseId lease) const;

  // The leases of an older state, whose time begins anew. Their ids are not granted again.
  void PutBack(const LeaseTable& older, TimePoint now);

  // The key is the lease's from now on, and no other's. Requires a lease that is there, or 0.
  void Attach(const std::string& key, LeaseId lease);
  void Detach(std::string_view key);

  // Forgets the lease, whose keys the caller has deleted. Nothing happens if it is not there.
  void End(LeaseId lease);
  // The lease that is still there and whose time was over first.
  std::optional<LeaseId> FindExpired(TimePoint now) const;
  std::optional<TimePoint> next_expiry() const;

 private:
  struct State {
    std::chrono::milliseconds ttl{};
    TimePoint expiry;
    std::set<std::string, std::less<>> keys;
  };

  LeaseId next_id_ = 1;
  std::map<LeaseId, State> leases_;
  std::set<std::pair<TimePoint, LeaseId>> expiries_;
  std::map<std::string, LeaseId, std::less<>> lease_of_;
};

}  // namespace ffrecord::server
