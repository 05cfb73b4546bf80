#include "server/metadata/lease_table.h"

#include <utility>

#include "libffrecord/base/assert.h"

namespace ffrecord::server {

LeaseTable::LeaseId LeaseTable::Grant(std::chrono::milliseconds ttl, TimePoint now) {
  const LeaseId id = next_id_++;
  leases_[id] = {ttl, now + ttl, {}};
  expiries_.emplace(now + ttl, id);
  return id;
}

std::optional<std::chrono::milliseconds> LeaseTable::Keep(LeaseId lease, TimePoint now) {
  if (!IsLive(lease, now)) return std::nullopt;
  State& state = leases_[lease];
  expiries_.erase({state.expiry, lease});
  state.expiry = now + state.ttl;
  expiries_.emplace(state.expiry, lease);
  return state.ttl;
}

void LeaseTable::PutBack(const LeaseTable& older, TimePoint now) {
  const LeaseId next_id = next_id_;
  *this = older;
  next_id_ = std::max(next_id_, next_id);
  expiries_.clear();
  for (auto& [id, state] : leases_) {
    state.expiry = now + state.ttl;
    expiries_.emplace(state.expiry, id);
  }
}

bool LeaseTable::IsLive(LeaseId lease, TimePoint now) const {
  const auto found = leases_.find(lease);
  return found != leases_.end() && found->second.expiry > now;
}

std::vector<std::string> LeaseTable::KeysOf(LeaseId lease) const {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return {};
  return {found->second.keys.begin(), found->second.keys.end()};
}

void LeaseTable::Attach(const std::string& key, LeaseId lease) {
  Detach(key);
  if (lease == 0) return;
  FFR_ASSERT(leases_.contains(lease));
  leases_[lease].keys.insert(key);
  lease_of_[key] = lease;
}

void LeaseTable::Detach(std::string_view key) {
  const auto found = lease_of_.find(key);
  if (found == lease_of_.end()) return;
  auto& keys = leases_[found->second].keys;
  keys.erase(keys.find(key));
  lease_of_.erase(found);
}

void LeaseTable::End(LeaseId lease) {
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return;
  for (const std::string& key : found->second.keys) lease_of_.erase(key);
  expiries_.erase({found->second.expiry, lease});
  leases_.erase(found);
}

std::optional<LeaseTable::LeaseId> LeaseTable::FindExpired(TimePoint now) const {
  if (expiries_.empty() || expiries_.begin()->first > now) return std::nullopt;
  return expiries_.begin()->second;
}

std::optional<LeaseTable::TimePoint> LeaseTable::next_expiry() const {
  if (expiries_.empty()) return std::nullopt;
  return expiries_.begin()->first;
}

}  // namespace ffrecord::server
