// The computations of a client and of the leader in a large cluster, for the benchmark `cluster`.
//
//   placement-arm NODES EXTENTS
//
// Places the slots on NODES nodes in 40 failure domains, three replicas, then prints one JSON
// object: the time to find the nodes of an extent (random ids, from the id to the ordinals), the
// size of the encoded slot map, the time to plan the loss of one node (the new map, and which of
// EXTENTS extents have to be copied, a list of them), and how many those are.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../support/arm.h"
#include "libffrecord/format/slot_map.h"
#include "server/cluster/placement.h"

namespace {

using namespace ffrecord::bench;
using ffrecord::ExtentId;
using ffrecord::PlacedNode;
using ffrecord::SlotMap;

std::vector<PlacedNode> Nodes(std::size_t count) {
  std::vector<PlacedNode> nodes;
  for (std::size_t i = 0; i < count; ++i)
    nodes.push_back({"node" + std::to_string(i), "rack" + std::to_string(i % 40), 100});
  return nodes;
}

std::vector<ExtentId> Ids(std::size_t count) {
  std::mt19937_64 random(7);
  std::vector<ExtentId> ids(count);
  for (ExtentId& id : ids) {
    const std::array<std::uint64_t, 2> words{random(), random()};
    std::memcpy(id.data(), words.data(), id.size());
  }
  return ids;
}

// Those of which a node has to make a copy: which extent, and from whom to whom is in the maps.
std::vector<std::uint32_t> Lost(const std::vector<ExtentId>& ids, const SlotMap& map,
                                const std::string& node) {
  const std::uint16_t ordinal = map.Find(node);
  std::vector<std::uint8_t> is_lost(ffrecord::kSlotCount, 0);
  for (std::uint32_t slot = 0; slot < ffrecord::kSlotCount; ++slot)
    is_lost[slot] = std::ranges::count(map.NodesOf(slot), ordinal) > 0 ? 1 : 0;
  std::vector<std::uint32_t> lost;
  for (std::uint32_t i = 0; i < ids.size(); ++i)
    if (is_lost[ffrecord::SlotOf(ids[i])] != 0) lost.push_back(i);
  return lost;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) Fail("see the first lines of placement_arm.cpp");
  auto nodes = Nodes(std::strtoull(argv[1], nullptr, 10));
  const auto ids = Ids(std::strtoull(argv[2], nullptr, 10));
  const SlotMap map = ValueOrFail(ffrecord::server::cluster::Place({}, nodes, {.row_size = 3}));

  std::uint64_t sum = 0;  // Or else nothing would be looked up.
  auto start = Clock::now();
  for (const ExtentId& id : ids) sum += map.NodesOf(ffrecord::SlotOf(id)).front();
  const double lookup_ns = SecondsSince(start) * 1e9 / static_cast<double>(ids.size());

  const std::size_t map_bytes = ffrecord::EncodeSlotMap(map).size();

  const std::string gone = nodes[nodes.size() / 2].id;
  std::erase_if(nodes, [&](const PlacedNode& node) { return node.id == gone; });
  start = Clock::now();
  const SlotMap after =
      ValueOrFail(ffrecord::server::cluster::Place(map, std::move(nodes), {.row_size = 3}));
  const auto lost = Lost(ids, map, gone);
  const double plan_s = SecondsSince(start);

  std::printf(
      "{\"lookup_ns\": %.3f, \"map_bytes\": %zu, \"plan_s\": %.6f, \"lost\": %zu, \"moves\": %llu, "
      "\"sum\": %llu}\n",
      lookup_ns, map_bytes, plan_s, lost.size(),
      static_cast<unsigned long long>(ffrecord::server::cluster::CountMoves(map, after)),
      static_cast<unsigned long long>(sum));
  return 0;
}
