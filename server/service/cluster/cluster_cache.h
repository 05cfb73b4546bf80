#pragma once

#include <optional>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/cluster_messages.h"
#include "server/metadata/blocking_store.h"
#include "server/service/cluster/cluster_state.h"

namespace ffrecord::server {

// The node's knowledge of its cluster, on its own disk: so a daemon that starts while the
// coordinator is away serves the names that it knew. Nothing is ever dropped because of it.
//
// Lies in the daemon's own metadata: cluster/id, cluster/node, cluster/history, cluster/anchor,
// cluster/slots, cluster/nodes, cluster/level, cluster/ancestors, and for each name
// cluster/names/<name>.
// Thread-bound; blocks on the disk; borrows the store.
class ClusterCache {
 public:
  explicit ClusterCache(BlockingStore& store) : store_(store) {}

  // The cluster that this node's data belongs to; none: it has never been of one.
  Result<std::optional<net::ClusterId>> ReadId();
  // And the node that it is of; none: it is not on record.
  Result<std::optional<std::string>> ReadNode();
  // Fails with kConflict if that is another one. A disk that was copied would bring another node
  // what the first one has promised to keep.
  Result<void> CheckNode(const std::string& node);
  Result<void> WriteId(const net::ClusterId& id, const std::string& node);

  // How far this node has seen the metadata by the state that was saved last.
  Result<cluster::HistoryMark> ReadMark();
  Result<void> WriteMark(const cluster::HistoryMark& mark);

  // Reads the state that was saved last, without entries that cannot be read.
  Result<ClusterState> Load();
  // The extents that its names refer to, in order: a daemon that has left the cluster for a
  // while keeps them.
  Result<std::vector<ExtentId>> LoadExtents();
  // Saves what differs from the last one.
  Result<void> Save(const ClusterState& state);

 private:
  Result<void> SaveNames(const ClusterState& state);

  BlockingStore& store_;
  ClusterState saved_;
};

}  // namespace ffrecord::server
