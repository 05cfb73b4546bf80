#pragma once

#include <set>
#include <string>

#include "server/cluster/continuity.h"
#include "server/cluster/key_mirror.h"
#include "server/cluster/lease_keeper.h"
#include "server/cluster/machine.h"
#include "server/cluster/name_table.h"
#include "server/cluster/records.h"
#include "server/cluster/tombstone_table.h"

namespace ffrecord::server::cluster {

// What the machines of one node know of the cluster, to read. Kept up to date by ClusterNode.
struct View {
  const std::string& node;
  const LeaseKeeper& lease;
  const KeyMirror& mirror;
  const NameTable& names;
  const TombstoneTable& tombstones;
  const LocalExtents& extents;
  const SlotsRecord& slots;
  const Continuity& continuity;
  const std::set<std::string>& live;  // Nodes that have a lease, this one perhaps among them.

  std::uint32_t map_version() const { return slots.map.version; }
  // This node may conclude from what it knows that something is not wanted here: its lease holds,
  // it has seen everything since it started, and the metadata was not put back to an older state.
  bool MayConclude(TimePoint now) const {
    return lease.IsLeased(now) && mirror.was_listed() && names.IsComplete() &&
           continuity.is_trusted();
  }
  // This node is one of those that are to hold the extent.
  bool IsOwner(const ExtentId& id, std::size_t replicas) const {
    return slots.IsOwner(node, id, replicas);
  }
  bool IsLive(const std::string& other) const { return live.contains(other); }
};

}  // namespace ffrecord::server::cluster
