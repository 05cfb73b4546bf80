#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "libffrecord/net/replicas/replica_map.h"
#include "libffrecord/net/replicas/replica_places.h"
#include "libffrecord/net/replicas/replicated_files.h"

namespace ffrecord::net {

// Every node holds every extent.
class WholeReplicas final : public ReplicaMap {
 public:
  explicit WholeReplicas(std::size_t node_count) : nodes_(node_count) {
    std::iota(nodes_.begin(), nodes_.end(), NodeIndex{0});
  }
  std::span<const NodeIndex> NodesOf(std::uint32_t /*extent*/) const override { return nodes_; }

 private:
  std::vector<NodeIndex> nodes_;
};

// They stay where they are.
class FixedPlaces final : public ReplicaPlaces {
 public:
  explicit FixedPlaces(ReplicaView view)
      : view_(std::make_shared<const ReplicaView>(std::move(view))) {}
  std::shared_ptr<const ReplicaView> Now() override { return view_; }

 private:
  const std::shared_ptr<const ReplicaView> view_;
};

// The same files at each of `replicas`, at least one, which hold all of them.
inline std::shared_ptr<const ReplicatedFiles> HeldByAll(
    std::vector<std::shared_ptr<const RemoteFiles>> replicas, const SessionOptions& options) {
  auto map = std::make_shared<WholeReplicas>(replicas.size());
  return std::make_shared<const ReplicatedFiles>(
      std::make_shared<FixedPlaces>(ReplicaView{std::move(replicas), std::move(map)}), options);
}

}  // namespace ffrecord::net
