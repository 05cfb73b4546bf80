#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "client/dataset/cluster.h"
#include "client/dataset/extent_legs.h"

namespace ffrecord::client {

// The place of an extent in a stripe: it goes to one node, in a failure domain that no other member
// of the stripe is in.
struct StripeSpot {
  std::uint32_t slot = 0;  // Slot of the stripe.
  std::size_t member = 0;
  std::size_t member_count = 0;
  std::set<std::string>* domains = nullptr;  // That other members are in; this one's is added.
};

// Writes extents of one upload to a cluster, each to as many failure domains as it is to have
// replicas. The owners of its slot take it, in parallel; one that fails is replaced by
// the next node of the slot, and is asked last for kAvoidTime. A single daemon takes all.
// Thread-safe.
class ReplicaWriter {
 public:
  static constexpr std::chrono::seconds kAvoidTime{30};

  // `replicas`: of each extent; 0: as many as the cluster has.
  explicit ReplicaWriter(std::shared_ptr<Cluster> cluster, std::size_t replicas = 0)
      : cluster_(std::move(cluster)), replicas_(replicas) {}

  // Returns the checksum of the extent, which is durable in all its domains. Waits for nodes that
  // are down until the timeout of the cluster's options. Fails as `source` does; with kUnavailable
  // or kDeadlineExceeded; kIo, if no node has room for it; kDenied, if all nodes
  // deny it.
  Result<std::uint64_t> Put(const SourcedExtent& extent, const ExtentSource& source,
                            const std::function<void(std::uint64_t)>& sent,
                            const StripeSpot* spot = nullptr);

 private:
  using Targets = std::vector<ClusterView::Target>;
  struct Progress;
  struct Way;

  Result<std::uint64_t> PutAtOne(const SourcedExtent& extent, const ExtentSource& source,
                                 const std::function<void(std::uint64_t)>& sent);
  static std::optional<Error> DeniedByAll(const ClusterView& view, const Progress& progress);
  Targets Choose(const ClusterView& view, const Progress& progress);
  Result<void> SendTo(const ClusterView& view, Targets targets, Progress& progress,
                      const ExtentSource& source, const std::function<void(std::uint64_t)>& sent);
  Result<void> NoteFailure(const ClusterView::Target& target, Error error, bool is_told,
                           Progress& progress);
  std::set<net::NodeIndex> Avoided();

  const std::shared_ptr<Cluster> cluster_;
  const std::size_t replicas_;
  std::mutex mutex_;
  std::map<net::NodeIndex, net::Deadline> avoided_until_;
};

}  // namespace ffrecord::client
