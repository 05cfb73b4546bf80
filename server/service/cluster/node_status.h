#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "server/service/cluster/cluster_state.h"

namespace ffrecord::server {

// Counts of the extents that names refer to, and of those on this node. A value.
struct ExtentCounts {
  std::uint64_t missing_bytes = 0;
  std::uint64_t missing_count = 0;  // Extents that should be here and are not,
  std::uint64_t surplus_count = 0;  // and those that are here for others.
  std::uint64_t unexplained_count = 0;
  std::uint64_t lacking_count = 0;  // Counted over all nodes: an owner is down,
  std::uint64_t alone_count = 0;    // or all of them are.
  // The state that they were counted from. As long as it is the same, so are they.
  struct Basis {
    std::uint64_t names_change = 0;
    std::uint64_t revision = 0;  // Revision of the metadata.
    std::uint64_t extents_change = 0;
    std::uint32_t map_version = 0;
    bool was_listed = false;
    std::set<std::string> live;

    bool operator==(const Basis&) const = default;
  };
  Basis basis;
};

// The status of a node for operators. A value.
struct NodeStatus {
  bool is_leased = false;
  bool is_leading = false;
  std::string leader;   // Its node; empty: none is known.
  std::string trouble;  // Why this node does not take part, or no map is made; empty: all is well.
  // Names whose files this node does not know yet: of their extents it counts nothing.
  std::uint64_t incomplete_count = 0;
  ExtentCounts extents;
  std::uint64_t adopting_count = 0;  // Own names that are not in the cluster yet,
  std::string adoption_trouble;      // and why one of them is not.
  std::uint64_t refused_count = 0;   // Extents for which there was no room.
  std::uint64_t open_upload_count = 0;
  std::uint64_t tombstone_count = 0;
  std::uint64_t unheld_count = 0;  // Missing here, and no node that answers has them.
  std::optional<std::chrono::milliseconds> silent_for;  // The coordinator; none: it answers.
  bool is_moving = false;                               // The map has changed and data moves.
  std::map<std::string, std::string> refusals;          // As of Peers.
  // Nothing is dropped: the metadata was put back to an older state, and nobody has confirmed it.
  bool is_frozen = false;
  std::string why_frozen;
  std::uint64_t incarnation = 0;      // Incarnation of the metadata.
  std::uint64_t lost_name_count = 0;  // That this node has known, and that are not there.
  // The highest feature level that each node knows which is up.
  std::map<std::string, std::uint32_t> levels;
  // Nodes that are up and may fetch files from other places than this one.
  std::vector<std::string> other_origins;
  ClusterStatePtr state;
};

}  // namespace ffrecord::server
