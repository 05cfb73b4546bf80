#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "replica_reads_fixture.h"

namespace ffrecord::net {

// The candidates of each extent, all of them owners.
class MovingMap final : public ReplicaMap {
 public:
  using Nodes = std::vector<NodeIndex>;
  explicit MovingMap(std::vector<Nodes> of_extents, bool in_order = false)
      : of_extents_(std::move(of_extents)), in_order_(in_order) {}
  std::span<const NodeIndex> NodesOf(std::uint32_t extent) const override {
    return of_extents_[extent];
  }
  std::size_t OwnerCountOf(std::uint32_t extent) const override {
    return in_order_ ? std::min<std::size_t>(1, of_extents_[extent].size())
                     : of_extents_[extent].size();
  }
  bool MovesExtents() const override { return true; }
  bool AsksInOrder() const override { return in_order_; }

 private:
  const std::vector<Nodes> of_extents_;
  const bool in_order_;
};

class ReplicaMapsTest : public ReplicaReadsTest {
 protected:
  static constexpr std::uint64_t kLarge = 4 << 20;  // Not hedged.

  ReplicaMapsTest() : ReplicaReadsTest(6) {}

  // The map before is gone then, as its owner's is.
  void TakeMap(std::vector<MovingMap::Nodes> of_extents, bool in_order = false) {
    auto newer = std::make_unique<MovingMap>(std::move(of_extents), in_order);
    Step(Reads::NewMap{newer.get()});
    moving_map_ = std::move(newer);
  }
  // One part of each extent.
  Reads::Send BeginOn(std::vector<MovingMap::Nodes> of_extents, std::uint64_t size_bytes = kLarge) {
    const auto count = static_cast<std::uint32_t>(of_extents.size());
    TakeMap(std::move(of_extents));
    std::vector<Reads::PartSize> parts;
    for (std::uint32_t extent = 0; extent < count; ++extent) parts.push_back({extent, size_bytes});
    Step(Reads::Begin{1, std::move(parts), now_ + 30s});
    return All<Reads::Send>().front();
  }
  std::vector<NodeIndex> Asked() const {
    std::vector<NodeIndex> nodes;
    for (const auto& send : All<Reads::Send>()) nodes.push_back(send.node);
    return nodes;
  }
  bool IsSought() const { return !All<Reads::SeekMap>().empty(); }

  std::unique_ptr<MovingMap> moving_map_;
};

using Nodes = std::vector<NodeIndex>;

}  // namespace ffrecord::net
