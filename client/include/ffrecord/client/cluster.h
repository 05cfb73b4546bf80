#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

namespace ffrecord::client {

// Whether a node of a cluster takes part, as operators have said.
enum class NodeState : std::uint8_t {
  kIn,
  kDraining,  // It takes nothing new, and the others take over what it holds.
  kOut,       // It counts no more.
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
// the cluster may be asked. Fails also with kNotFound if there is no such node, and kDenied.
FFR_EXPORT Result<void> SetNodeState(std::string_view address, std::string_view node,
                                     NodeState state, const SessionOptions& options);

}  // namespace ffrecord::client
