#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

namespace ffrecord::client {

// Calls for the operators of a cluster: its nodes, their states, and its metadata. Each call
// connects to the nodes in the address, one after another until one answers, blocks for at most
// `options.timeout`, and keeps no connection. The calls may be made from any thread, and return
// values that the caller owns. A node may learn of a change some milliseconds later than another.

// Whether a node takes part in its cluster, as set by operators.
enum class NodeState : std::uint8_t {
  kIn,
  kDraining,  // It gets no new extents, and the other nodes copy those that it holds.
  kOut,       // It is removed.
  kWaiting,   // It waits for approval; setting kIn approves it.
};

struct ClusterNodeInfo {
  std::string id;
  std::string address;  // host:port; empty while unknown.
  std::string domain;   // Failure domain: its nodes may fail together.
  std::uint32_t weight = 1;
  NodeState state = NodeState::kIn;
  bool is_up = false;
  std::uint32_t slot_count = 0;  // Slots of the 4,096 that the slot map assigns to it.
  // For a node that waits for approval, as it says itself: its address is above, and this is since
  // when it has waited, in ms since 1970 by its own clock, and the id of its daemon, which is in
  // its log and in the file `identity` on its disks. 0 and empty: it has not said so.
  std::uint64_t waiting_since_unix_ms = 0;
  std::string daemon;
};

struct ClusterInfo {
  std::string id;  // 32 hex digits.
  std::uint32_t map_version = 0;
  std::uint32_t replica_count = 1;  // Replicas of each published extent.
  std::string answered_by;          // Id of a node.
  std::vector<ClusterNodeInfo> nodes;
};

// Describes the cluster, as seen by the first node that answers. `address` is ffrecord:// with the
// addresses of one or more nodes, separated by commas; a name is ignored. Fails with
// kInvalidArgument if the daemon is not part of a cluster, else as OpenDataset for an address.
FFR_EXPORT Result<ClusterInfo> DescribeCluster(std::string_view address,
                                               const SessionOptions& options);

// Approves, drains or removes a node; returns once the new state is stored. `address` may name any
// node of the cluster. Fails also with kNotFound if there is no such node, kDenied, and
// kInvalidArgument for kWaiting.
FFR_EXPORT Result<void> SetNodeState(std::string_view address, std::string_view node,
                                     NodeState state, const SessionOptions& options);

// Raises the feature level of the cluster, and returns the new level. Afterwards, nodes of earlier
// versions cannot take part. `level` 0: the highest that all nodes support. Requires the right
// `admin`. Fails also with kConflict if a node is down or does not support the level, and
// kInvalidArgument if the cluster has a higher level.
FFR_EXPORT Result<std::uint32_t> RaiseFeatureLevel(std::string_view address, std::uint32_t level,
                                                   const SessionOptions& options);

// One key of a cluster's metadata.
struct MetadataKey {
  std::string key;
  std::uint64_t revision = 0;
  std::string value;  // Bytes.
};
struct Metadata {
  std::uint64_t revision = 0;  // All keys are as they were at it.
  std::vector<MetadataKey> keys;
};

// Reads all keys of the metadata at one revision. Requires the right `admin`, like the calls below.
// Fails with kConflict if the coordinator has compacted that revision meanwhile: in this case, call
// it again.
FFR_EXPORT Result<Metadata> ReadMetadata(std::string_view address, const SessionOptions& options);

// Writes a backup to a coordinator that has no metadata of the cluster, through the daemon at
// `address` only. Once all keys are written, the cluster works again, but its nodes remove no data
// until ConfirmMetadata(). `backup` identifies the backup: after a failure, call it again with the
// same one. Fails with kConflict if the coordinator has metadata already.
FFR_EXPORT Result<void> RestoreMetadata(std::string_view address, std::uint64_t backup,
                                        const std::vector<MetadataKey>& keys,
                                        const SessionOptions& options);

enum class MetadataWork : std::uint8_t {
  kCompare,           // Changes nothing.
  kRebuild,           // Publishes again the names that are lost or replaced.
  kRebuildAndRemove,  // Also removes names that were removed before and have returned.
};
// Compares metadata that was put back to an older state with the names on the nodes' disks; except
// for kCompare, changes it to match them. Returns a JSON object with the differences and the nodes
// that did not answer. Fails with kConflict if the metadata is confirmed.
FFR_EXPORT Result<std::string> WorkOnMetadata(std::string_view address, MetadataWork work,
                                              const SessionOptions& options);
// Confirms the metadata of this incarnation, with all that it lacks: nodes may remove data again.
// Fails with kConflict if the metadata has another incarnation by now.
FFR_EXPORT Result<void> ConfirmMetadata(std::string_view address, std::uint64_t incarnation,
                                        const SessionOptions& options);

}  // namespace ffrecord::client
