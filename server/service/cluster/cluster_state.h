#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/net/protocol/cluster_messages.h"
#include "server/cluster/records.h"
#include "server/cluster/stripe_table.h"
#include "server/cluster/view.h"
#include "server/service/cluster/persistent_map.h"

namespace ffrecord::server {

// A node's knowledge of its cluster, for everybody who asks it: a value that does not change.
struct ClusterState {
  struct Name {
    cluster::DatasetRecord record;
    std::uint64_t revision = 0;
    std::shared_ptr<const DatasetManifest> manifest;  // Null: not known yet.
  };
  using NameMap = PersistentMap<Name>;
  using Nodes = std::vector<net::ClusterMapReply::Node>;

  std::shared_ptr<const NameMap> names = std::make_shared<const NameMap>();
  std::shared_ptr<const cluster::SlotsRecord> slots =
      std::make_shared<const cluster::SlotsRecord>();
  Nodes nodes;  // In order of their ids.
  // The records of nodes that wait for approval; an earlier version has none.
  std::map<std::string, cluster::WaitingRecord> waiting;
  net::ClusterId cluster{};
  std::uint32_t level = 1;  // Feature level of the cluster.
  // Incarnations of the metadata before the one that is trusted (HistoryRecord).
  std::vector<std::uint64_t> ancestors;
  // The metadata was put back to an older state: what it lacks may have been published.
  bool may_lack_names = false;
  // From before this start: the coordinator has not been heard since.
  bool is_from_cache = false;

  std::uint32_t map_version() const { return slots->map.version; }
  const Name* Find(std::string_view name) const { return names->Find(name); }
  bool IsUp(std::string_view node) const;
  // It is down, and no member, or one that was counted out.
  bool IsGone(std::string_view node) const;
  std::set<std::string> NodesUp() const;
  // Empty: it is not known.
  std::string AddressOf(std::string_view node) const;
  // The node that is to hold that member of a stripe. Empty: it has none.
  std::string OwnerOf(const cluster::StripePlace& place) const;
  // The nodes that are up and may have a member of a stripe, its owner first. Without `but`.
  std::vector<std::string> HoldersUp(const cluster::StripePlace& place, const ExtentId& id,
                                     std::string_view but) const;
};
using ClusterStatePtr = std::shared_ptr<const ClusterState>;

// `before` with those names as the table has them. A manifest that it does not have yet is taken
// from `before`, if that is of the same revision.
std::shared_ptr<const ClusterState::NameMap> NamesOf(const cluster::NameTable& table,
                                                     const ClusterState::NameMap& before,
                                                     const std::set<std::string>& changed);
// All that are members, or run. The address of a node that does not run is the one of `before`.
ClusterState::Nodes NodesOf(const cluster::View& view, const ClusterState::Nodes& before);
// The records of those of `nodes` that wait.
std::map<std::string, cluster::WaitingRecord> WaitingOf(const cluster::View& view,
                                                        const ClusterState::Nodes& nodes);

}  // namespace ffrecord::server
