#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ffrecord::net {

// A daemon among those that a replicated source reads from: its place in their list.
using NodeIndex = std::uint16_t;

// Says which nodes hold which extent. Never changes; thread-safe.
class ReplicaMap {
 public:
  // More candidates of an extent are not looked at.
  static constexpr std::size_t kCandidatesMax = 64;

  virtual ~ReplicaMap() = default;

  // The nodes to ask for the extent with this number among those of the source, each once. The
  // order of owners decides only where nothing else does. Valid as long as the map.
  virtual std::span<const NodeIndex> NodesOf(std::uint32_t extent) const = 0;
  // The first so many of them are its owners, which should hold it. The others may, the likeliest
  // first, and are asked in that order when no owner is left.
  virtual std::size_t OwnerCountOf(std::uint32_t extent) const { return NodesOf(extent).size(); }
  // Extents go from node to node: one that no node had may have been on its way.
  virtual bool MovesExtents() const { return false; }
  // Any node that is asked gets what it lacks from elsewhere, and answers that it is busy until it
  // has it. So one node is asked for an extent at a time: the first in the order of NodesOf() that
  // answers at all.
  virtual bool AsksInOrder() const { return false; }
};

}  // namespace ffrecord::net
