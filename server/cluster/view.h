#pragma once

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/cluster/continuity.h"
#include "server/cluster/key_mirror.h"
#include "server/cluster/lease_keeper.h"
#include "server/cluster/machine.h"
#include "server/cluster/name_table.h"
#include "server/cluster/owners.h"
#include "server/cluster/records.h"
#include "server/cluster/tombstone_table.h"

namespace ffrecord::server::cluster {

// The state of the cluster as the machines of one node know it, to read. Kept up to date by
// ClusterNode.
struct View {
  const std::string& node;
  const LeaseKeeper& lease;
  const KeyMirror& mirror;
  const NameTable& names;
  const TombstoneTable& tombstones;
  const LocalExtents& extents;
  const SlotsRecord& slots;
  const StripeTable& stripes;
  const Continuity& continuity;
  const std::set<std::string>& live;  // Nodes that have a lease, this one perhaps among them.
  // The names from before the metadata was put back; none: it was not, or that is confirmed.
  const std::optional<KnownNames>& known_before;

  std::uint32_t map_version() const { return slots.map.version; }
  // This node may conclude from what it knows that something is not wanted here: its lease holds,
  // it has seen everything since it started, and the metadata was not put back to an older state.
  bool MayConclude(TimePoint now) const {
    return lease.IsLeased(now) && mirror.was_listed() && names.IsComplete() &&
           continuity.is_trusted();
  }
  OwnerList OwnersOf(const NameTable::Wanted& wanted) const {
    return cluster::OwnersOf(slots, stripes, wanted);
  }
  // This node is one of those that are to hold the extent.
  bool IsOwner(const NameTable::Wanted& wanted) const {
    return cluster::IsOwner(slots, stripes, node, wanted);
  }
  // Nodes that are up should hold it, or enough members of its stripe.
  bool IsInReach(const NameTable::Wanted& wanted) const {
    const auto is_live = [this](const std::string& owner) { return IsLive(owner); };
    const auto has_enough = [this](const StripePlace& place) {
      return LiveMembers(slots, stripes, place, live) >= place.data_count();
    };
    return std::ranges::any_of(OwnersOf(wanted).nodes, is_live) ||
           std::ranges::any_of(wanted.stripes, has_enough);
  }
  // Those that may hold an extent, the likeliest first; some are down.
  std::vector<std::string> CandidatesOf(const ExtentId& id) const {
    return slots.CandidatesOf(id, live);
  }
  bool IsLive(const std::string& other) const { return live.contains(other); }
  // Whether this publication was removed again, or replaced. Told while its tombstone stands.
  bool WasRemoved(const DatasetRecord& record) const {
    return tombstones.WasRemoved(BodyExtentOf(record.attempt));
  }
};

}  // namespace ffrecord::server::cluster
