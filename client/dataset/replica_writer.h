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

// Writes extents of one upload to a cluster, each to as many failure domains as what is published
// there has replicas. The owners of its slot take it, in parallel; one that fails is replaced by
// the next node of the slot, and is asked last for kAvoidTime. Thread-safe.
class ReplicaWriter {
 public:
  static constexpr std::chrono::seconds kAvoidTime{30};

  explicit ReplicaWriter(std::shared_ptr<Cluster> cluster) : cluster_(std::move(cluster)) {}

  // Returns the checksum of the extent, which is durable in all its domains. Waits for nodes that
  // are down until the timeout of the cluster's options. Fails as `source` does; with kUnavailable
  // or kDeadlineExceeded; kIo, if no node has room for it; kDenied, if all nodes
  // deny it.
  Result<std::uint64_t> Put(const SourcedExtent& extent, const ExtentSource& source,
                            const std::function<void(std::uint64_t)>& sent);

 private:
  using Targets = std::vector<ClusterView::Target>;
  struct Progress;
  struct Way;

  static std::optional<Error> DeniedByAll(const ClusterView& view, const Progress& progress);
  Targets Choose(const ClusterView& view, const Progress& progress);
  Result<void> SendTo(const ClusterView& view, Targets targets, Progress& progress,
                      const ExtentSource& source, const std::function<void(std::uint64_t)>& sent);
  Result<void> NoteFailure(const ClusterView::Target& target, Error error, Progress& progress);
  std::set<net::NodeIndex> Avoided();

  const std::shared_ptr<Cluster> cluster_;
  std::mutex mutex_;
  std::map<net::NodeIndex, net::Deadline> avoided_until_;
};

}  // namespace ffrecord::client
