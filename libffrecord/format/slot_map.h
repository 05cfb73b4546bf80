#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/dataset_manifest.h"

namespace ffrecord {

// Extents are hashed to this many slots, and slots are placed on nodes. Fixed for good: it decides
// where extents lie.
inline constexpr std::uint32_t kSlotCount = 4096;

// The slot of an extent: XXH3-64 of its id, modulo kSlotCount. 0 to kSlotCount - 1.
std::uint32_t SlotOf(const ExtentId& id) noexcept;

// A node that slots can be placed on.
struct PlacedNode {
  std::string id;      // 1 to 64 characters of [A-Za-z0-9._-].
  std::string domain;  // Written as `id`. Nodes of one domain may fail together.
  // The part of all data that it is to hold, up to kWeightMax. 0: it has no slots, and may hold
  // extents from before.
  std::uint32_t weight = 1;

  static constexpr std::uint32_t kWeightMax = 1'000'000;
  bool operator==(const PlacedNode&) const = default;
};

// How strongly a slot prefers a node: XXH3-64 of the slot as a little-endian u32 and the node's id.
std::uint64_t SlotAffinity(std::uint32_t slot, std::string_view node_id);

// Which nodes hold the extents of which slot. A value; format.md, "Slot map".
//
// A row lists the nodes of one slot by their ordinal in `nodes`. An extent of durability rN has its
// replicas on the first N nodes of its slot's row.
struct SlotMap {
  static constexpr std::uint32_t kNodeCountMax = 4096;
  static constexpr std::uint32_t kRowSizeMax = 32;  // Replicas, or shards of an erasure code.
  static constexpr std::uint16_t kNoNode = 0xFFFF;  // Fills the end of a row that is short.

  std::uint32_t version = 0;        // Grows with each change.
  std::uint32_t row_size = 0;       // Nodes in a row, 1 to kRowSizeMax; 0 in a map without rows.
  std::vector<PlacedNode> nodes;    // In byte order of their ids, which are unique.
  std::vector<std::uint16_t> rows;  // kSlotCount rows of row_size ordinals; empty if row_size is 0.

  // The ordinals of the slot's nodes, without kNoNode. Borrows from `rows`.
  std::span<const std::uint16_t> NodesOf(std::uint32_t slot) const noexcept;
  // Ordinal of the node, or kNoNode.
  std::uint16_t Find(std::string_view node_id) const noexcept;
  // All nodes in the order in which the slot uses them: its row, then the nodes of domains that the
  // order does not have yet, then the rest; both of the latter by descending SlotAffinity. A writer
  // takes the first N that are up; a reader that does not find an extent goes on along the list.
  std::vector<std::uint16_t> OrderOf(std::uint32_t slot) const;
  // The first `count` nodes of the slot's row, by descending SlotAffinity. Readers that all want
  // the same one of an extent's owners take the first that is up: so each node is wanted equally
  // often.
  std::vector<std::uint16_t> OwnersByAffinity(std::uint32_t slot, std::size_t count) const;
  // All nodes in the order in which they are to fetch the extents of this slot that have an origin:
  // by descending SlotAffinity, those of weight 0 last. Rows are even as a whole, and their first
  // places are not: so one node might have to fetch everything.
  std::vector<std::uint16_t> FetchOrderOf(std::uint32_t slot) const;
  // The nodes that are to hold the members of a stripe of this slot (stripes.h), in their order;
  // kNoNode for the last ones if there are fewer nodes of weight than members. They are the first
  // ones of OrderOf(). Each member, in order, takes of those that are left the one that it prefers:
  // so when one node is replaced, few members move.
  std::vector<std::uint16_t> StripeOwners(std::uint32_t slot, std::size_t member_count) const;

  bool operator==(const SlotMap&) const = default;
};

// Whether the counts, and the ids, domains, weights and order of the nodes, keep the rules above.
// Fails with kInvalidArgument.
Result<void> CheckSlotMapNodes(const SlotMap& map);

// Requires a map that Decode would accept.
std::vector<std::byte> EncodeSlotMap(const SlotMap& map);
// Fails with kCorruption if a field is out of its range, ids are not in order, an ordinal names no
// node or stands twice in a row, or the checksum does not hold. Allocates no more than a few times
// the size of `bytes`.
Result<SlotMap> DecodeSlotMap(std::span<const std::byte> bytes);

}  // namespace ffrecord
