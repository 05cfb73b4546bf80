#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "server/cluster/machine.h"
#include "server/metadata/meta_store.h"
#include "server/service/cluster/extent_mover.h"
#include "server/service/cluster/node_extents.h"
#include "server/service/cluster/node_machines.h"
#include "server/service/cluster/peers.h"

namespace ffrecord::server {

// Carries out the actions that the machines of a node want done: calls of the store, questions to
// other nodes, work with extents. Each answer comes to the machines by their inbox.
//
// Threads: the node's thread alone, which waits for nothing here; Leave() comes after it.
// Ownership: ClusterService owns it; it borrows the store and the rooms, and owns the watches.
class ActionCarrier {
 public:
  using TimePoint = cluster::TimePoint;

  ActionCarrier(std::string node, MetaStore& store, NodeMachines& machines, Peers& peers,
                NodeExtents& extents, ExtentMover& mover)
      : node_(std::move(node)),
        store_(store),
        machines_(machines),
        peers_(peers),
        extents_(extents),
        mover_(mover) {}

  void Carry(std::vector<cluster::Action> actions);
  // When the store answered last; the epoch of the clock: never.
  TimePoint heard() const noexcept { return heard_; }
  // Stops the watches and gives the lease back. Waits for the store, for a moment.
  void Leave(MetaStore::LeaseId lease);

 private:
  struct Visitor;
  // Posts the answer to the node's thread. Any thread.
  void Deliver(cluster::CallId id, cluster::Reply reply);

  const std::string node_;
  MetaStore& store_;
  NodeMachines& machines_;
  Peers& peers_;
  NodeExtents& extents_;
  ExtentMover& mover_;
  TimePoint heard_{};
  std::map<cluster::CallId, MetaStore::WatchId> watches_;
};

}  // namespace ffrecord::server
