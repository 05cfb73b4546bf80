#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "libffrecord/net/protocol/cluster_messages.h"
#include "libffrecord/net/protocol/messages.h"
#include "server/cluster/cluster_node.h"
#include "server/service/catalog/extent_references.h"
#include "server/service/cluster/cluster_state.h"

namespace ffrecord::server {

// The node's view of its cluster, published for readers: the state, the version of its slot map,
// whether the node holds its lease, and the extents that names refer to.
//
// Threads: Begin() comes before the node's thread starts, Refresh() and revision() belong to that
// thread, and all else may be called from any thread. Nothing waits for a disk or another node.
// Ownership: ClusterService owns it, and each room that reads it borrows it.
class ShownState {
 public:
  using Manifest = std::shared_ptr<const DatasetManifest>;
  struct Options {
    std::string node;           // Id of this node.
    std::uint8_t replicas = 2;  // Replicas of each published extent.
    bool adopts = false;        // The daemon takes names of its own into the cluster.
    // Called after a name has come to stand for other files; null: for nothing. Must not block.
    std::function<void(const Manifest& before, const Manifest& after)> on_name;
  };
  explicit ShownState(Options options) : options_(std::move(options)) {}

  // Shows the state that this node's disk has.
  void Begin(ClusterState state);
  // Makes readers see what the machines know. `cluster`: the node's, once it is proved. Returns the
  // new state, or null if nothing has changed.
  ClusterStatePtr Refresh(cluster::TimePoint now, cluster::ClusterNode& node,
                          const std::optional<net::ClusterId>& cluster);
  // Revision of the metadata that is shown.
  std::uint64_t revision() const noexcept { return revision_seen_; }

  ClusterStatePtr state() const;
  const ExtentReferences& references() const noexcept { return references_; }
  // The machines believe in this node's lease.
  bool is_leased() const noexcept { return is_leased_.load(std::memory_order_relaxed); }
  // Version of the slot map; for the headers of frames.
  const std::atomic<std::uint32_t>& map_version() const noexcept { return map_version_; }

  // For clients.
  struct Map {
    net::ClusterMapReply reply;
    std::vector<std::byte> slots;  // Empty: as known.
  };
  Map MapFor(std::uint32_t known_version) const;
  net::NodeIdentity Identity() const { return {state()->cluster, options_.node}; }

 private:
  void NoteLease(cluster::TimePoint now, const cluster::View& view);
  void NoteTrust(const cluster::Continuity& continuity);
  std::shared_ptr<ClusterState> Following(const ClusterState& before, cluster::ClusterNode& node,
                                          bool has_names) const;
  // The version of the map that clients receive. While this daemon adopts, none without it: by that
  // they would look for its extents at other nodes alone.
  std::uint32_t AdvertisedVersion(const ClusterState& state) const;
  void ChangeName(const std::string& name, const Manifest& before, const Manifest& after);
  void ChangeReferences(const ClusterState::NameMap& before, const ClusterState::NameMap& after);

  const Options options_;
  ExtentReferences references_;
  std::atomic<std::uint32_t> map_version_{0};
  std::atomic<bool> is_leased_{false};
  mutable std::mutex mutex_;
  ClusterStatePtr state_ = std::make_shared<const ClusterState>();

  // The state of the machines that state_ shows. The node's thread's.
  std::uint64_t names_seen_ = 0;  // Change count of the names.
  std::uint64_t revision_seen_ = 0;
  cluster::HistoryMark mark_seen_;
  bool was_frozen_ = false;
};

}  // namespace ffrecord::server
