#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

namespace ffrecord::client {

// A cluster as its operators see it: which nodes it has, and which of them take part. Both calls
// connect to the nodes that the address names, ask one after another until one answers, block for
// `options.timeout` at most, and keep no connection. They may be called from any thread. What they
// return are values, and a node may know of a change some milliseconds later than another one.

// Whether a node of a cluster takes part, as operators have said.
enum class NodeState : std::uint8_t {
  kIn,
  kDraining,  // It takes nothing new, and the others take over what it holds.
  kOut,       // It counts no more.
  kWaiting,   // It has asked to join, and nobody has let it: kIn does.
};

struct ClusterNodeInfo {
  std::string id;
  std::string address;  // host:port; empty while nobody knows.
  std::string domain;   // Nodes of one may fail together.
  std::uint32_t weight = 1;
  NodeState state = NodeState::kIn;
  bool is_up = false;
  std::uint32_t slot_count = 0;  // Of the 4,096, as the map places them on it.
};

struct ClusterInfo {
  std::string id;  // 32 hex digits.
  std::uint32_t map_version = 0;
  std::uint32_t replica_count = 1;  // Of what is published.
  std::string answered_by;          // Id of a node.
  std::vector<ClusterNodeInfo> nodes;
};

// What the first node of the cluster at `address` that answers knows of it: ffrecord:// with the
// address of one node or several, separated by commas; a name is ignored. Fails with
// kInvalidArgument if the daemon there is of no cluster, else as OpenDataset for an address.
FFR_EXPORT Result<ClusterInfo> DescribeCluster(std::string_view address,
                                               const SessionOptions& options);

// Lets a node take part, drains it, or counts it out; returns once that is on record. Any node of
// the cluster may be asked. Fails also with kNotFound if there is no such node, kDenied, and
// kInvalidArgument for kWaiting.
FFR_EXPORT Result<void> SetNodeState(std::string_view address, std::string_view node,
                                     NodeState state, const SessionOptions& options);

// Raises the feature level of the cluster, after which nodes of earlier versions are refused;
// returns the level that it has then. `level` 0: the highest that all nodes know. Wants the right
// `admin`. Fails also with kConflict if a node is down or does not know the level, and
// kInvalidArgument if the cluster is above it.
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

// All keys of the metadata, as they are at one revision. Wants the right `admin`, as the others
// below. Fails with kConflict if the coordinator has forgotten the revision meanwhile: read it
// again.
FFR_EXPORT Result<Metadata> ReadMetadata(std::string_view address, const SessionOptions& options);

// Puts a backup into a coordinator that has no metadata of the cluster, by way of the daemon at
// `address` alone. Each key goes there once; the cluster takes part again once all are there, and
// nothing is removed from it until ConfirmMetadata(). `backup` tells backups apart: after a failure
// the same one may be put again. Fails with kConflict if there is metadata already.
FFR_EXPORT Result<void> RestoreMetadata(std::string_view address, std::uint64_t backup,
                                        const std::vector<MetadataKey>& keys,
                                        const SessionOptions& options);

enum class MetadataWork : std::uint8_t {
  kCompare,           // With what nodes have known.
  kRebuild,           // Publishes again what is lost or replaced,
  kRebuildAndRemove,  // and removes names that had been removed and are there again.
};
// Compares metadata that was put back to an older state with what the nodes have on their disks, or
// makes it that. A JSON object: what differs, and which nodes have not answered. Fails with
// kConflict if the metadata is confirmed.
FFR_EXPORT Result<std::string> WorkOnMetadata(std::string_view address, MetadataWork work,
                                              const SessionOptions& options);
// An operator knows what the metadata of this incarnation lacks: nodes may remove again what it
// says. Fails with kConflict if it is of another incarnation by now.
FFR_EXPORT Result<void> ConfirmMetadata(std::string_view address, std::uint64_t incarnation,
                                        const SessionOptions& options);

}  // namespace ffrecord::client
