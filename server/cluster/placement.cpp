#include "server/cluster/placement.h"

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "server/cluster/row_order.h"

namespace ffrecord::server::cluster {
namespace {

// The rows while they are made, with what decides on the next node.
class Rows {
 public:
  Rows(SlotMap& map, const SlotMap& previous)
      : map_(map),
        loads_(map.nodes.size(), 0),
        pairs_(map.nodes.size() * map.nodes.size(), 0),
        sizes_(kSlotCount, 0) {
    map_.rows.assign(std::size_t{kSlotCount} * map_.row_size, SlotMap::kNoNode);
    NumberDomains();
    std::vector<std::uint16_t> ordinals;  // Places of the previous map's nodes in this one.
    for (const PlacedNode& node : previous.nodes) {
      const std::uint16_t now = map_.Find(node.id);
      const bool takes = now != SlotMap::kNoNode && map_.nodes[now].weight > 0;
      ordinals.push_back(takes ? now : SlotMap::kNoNode);
    }
    for (std::uint32_t slot = 0; slot < kSlotCount; ++slot)
      for (const std::uint16_t node : previous.NodesOf(slot))
        if (const std::uint16_t now = ordinals[node];
            now != SlotMap::kNoNode && sizes_[slot] < map_.row_size && IsFree(slot, now))
          Append(slot, now);
  }

  void Fill() {
    for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
      while (sizes_[slot] < map_.row_size) {
        const std::uint16_t best = BestFor(slot);
        if (best == SlotMap::kNoNode) break;  // No domain is left.
        Append(slot, best);
      }
    }
  }

  void Even() {
    while (MoveOne()) {
    }
  }

 private:
  // A node that takes slots over.
  struct Taker {
    // All slots, those with the largest affinity to the node first, then the lower ones.
    std::vector<std::uint32_t> order;
    std::vector<std::uint32_t> places;  // The place of each slot in the order.
    // By the node that gives: it has nothing to give before that place in the order.
    std::vector<std::uint32_t> begins;
  };

  void NumberDomains() {
    std::unordered_map<std::string_view, std::uint32_t> numbers;
    for (const PlacedNode& node : map_.nodes)
      domains_.push_back(
          numbers.try_emplace(node.domain, static_cast<std::uint32_t>(numbers.size()))
              .first->second);
  }

  std::span<std::uint16_t> RowOf(std::uint32_t slot) {
    return std::span(map_.rows).subspan(std::size_t{slot} * map_.row_size, sizes_[slot]);
  }

  // No node of the row is in the domain of `node`; `leaving` does not count.
  bool IsFree(std::uint32_t slot, std::uint16_t node, std::uint16_t leaving = SlotMap::kNoNode) {
    for (const std::uint16_t other : RowOf(slot))
      if (other != leaving && domains_[other] == domains_[node]) return false;
    return true;
  }

  bool Has(std::uint32_t slot, std::uint16_t node) {
    for (const std::uint16_t other : RowOf(slot))
      if (other == node) return true;
    return false;
  }

  void Append(std::uint32_t slot, std::uint16_t node) {
    for (const std::uint16_t other : RowOf(slot)) {
      ++PairOf(node, other);
      ++PairOf(other, node);
    }
    map_.rows[std::size_t{slot} * map_.row_size + sizes_[slot]++] = node;
    ++loads_[node];
  }

  std::uint32_t& PairOf(std::uint16_t one, std::uint16_t other) {
    return pairs_[std::size_t{one} * map_.nodes.size() + other];
  }

  // The least cost for its weight; ties go to the larger affinity, then to the smaller id.
  std::uint16_t BestFor(std::uint32_t slot) {
    std::uint16_t best = SlotMap::kNoNode;
    std::uint64_t best_cost = 0;
    for (std::uint16_t node = 0; node < map_.nodes.size(); ++node) {
      if (map_.nodes[node].weight == 0 || !IsFree(slot, node)) continue;
      std::uint64_t cost = loads_[node] + 1;
      for (const std::uint16_t other : RowOf(slot)) cost += PairOf(node, other);
      if (best != SlotMap::kNoNode) {
        const std::uint64_t left = cost * map_.nodes[best].weight;
        const std::uint64_t right = best_cost * map_.nodes[node].weight;
        if (left > right) continue;
        if (left == right &&
            SlotAffinity(slot, map_.nodes[node].id) <= SlotAffinity(slot, map_.nodes[best].id))
          continue;
      }
      best = node;
      best_cost = cost;
    }
    return best;
  }

  // load(one) + extra, for its weight, is less than that of `other`.
  bool IsLighter(std::uint16_t one, std::uint64_t extra, std::uint16_t other,
                 std::uint64_t other_extra) const {
    return (loads_[one] + extra) * map_.nodes[other].weight <
           (loads_[other] + other_extra) * map_.nodes[one].weight;
  }

  // Gives one slot of the fullest node that has one to spare to the emptiest. False: all is even.
  bool MoveOne() {
    std::uint16_t to = SlotMap::kNoNode;
    for (std::uint16_t node = 0; node < map_.nodes.size(); ++node)
      if (map_.nodes[node].weight > 0 && (to == SlotMap::kNoNode || IsLighter(node, 1, to, 1)))
        to = node;
    if (to == SlotMap::kNoNode) return false;
    fullest_.clear();
    for (std::uint16_t node = 0; node < map_.nodes.size(); ++node)
      if (map_.nodes[node].weight > 0 && IsLighter(to, 1, node, 0))
        fullest_.push_back(node);  // Others are even with it.
    std::ranges::sort(fullest_, [&](std::uint16_t one, std::uint16_t other) {
      if (IsLighter(other, 0, one, 0)) return true;
      return !IsLighter(one, 0, other, 0) && one < other;
    });
    return std::ranges::any_of(fullest_, [&](std::uint16_t from) { return MoveFrom(from, to); });
  }

  bool IsMovable(std::uint32_t slot, std::uint16_t from, std::uint16_t to) {
    return Has(slot, from) && IsFree(slot, to, from);
  }

  bool MoveFrom(std::uint16_t from, std::uint16_t to) {
    Taker& taker = TakerOf(to);
    std::uint32_t& at = taker.begins[from];
    while (at < kSlotCount && !IsMovable(taker.order[at], from, to)) ++at;
    if (at == kSlotCount) return false;
    const std::uint32_t slot = taker.order[at];
    std::ranges::replace(RowOf(slot), from, to);
    --loads_[from];
    ++loads_[to];
    NoteMoved(slot);
    return true;
  }

  // Only a slot whose row has changed can have become movable.
  void NoteMoved(std::uint32_t slot) {
    for (auto& [to, taker] : takers_)
      for (const std::uint16_t from : RowOf(slot))
        if (taker.places[slot] < taker.begins[from] && IsMovable(slot, from, to))
          taker.begins[from] = taker.places[slot];
  }

  Taker& TakerOf(std::uint16_t node) {
    Taker& taker = takers_[node];
    if (!taker.order.empty()) return taker;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> order;
    order.reserve(kSlotCount);
    for (std::uint32_t slot = 0; slot < kSlotCount; ++slot)
      order.emplace_back(~SlotAffinity(slot, map_.nodes[node].id), slot);
    std::ranges::sort(order);
    taker.order.reserve(kSlotCount);
    taker.places.resize(kSlotCount);
    taker.begins.resize(map_.nodes.size());
    for (const auto& [affinity, slot] : order) {
      taker.places[slot] = static_cast<std::uint32_t>(taker.order.size());
      taker.order.push_back(slot);
    }
    return taker;
  }

  SlotMap& map_;
  std::vector<std::uint32_t> domains_;
  std::vector<std::uint64_t> loads_;  // How many slots each node has.
  std::vector<std::uint32_t> pairs_;  // How many slots two nodes share; while rows are filled.
  std::vector<std::uint8_t> sizes_;   // How many nodes each row has.
  std::vector<std::uint16_t> fullest_;
  std::unordered_map<std::uint16_t, Taker> takers_;
};

Result<void> CheckDomains(const SlotMap& map, const PlaceOptions& options) {
  std::set<std::string_view> domains;
  for (const PlacedNode& node : map.nodes)
    if (node.weight > 0) domains.insert(node.domain);
  if (options.allow_short || domains.size() >= map.row_size) return {};
  return Error{ErrorCode::kInvalidArgument,
               "the nodes are in " + std::to_string(domains.size()) + " failure domains, and " +
                   std::to_string(map.row_size) +
                   " replicas need as many; add nodes in other domains, or force it"};
}

}  // namespace

Result<SlotMap> Place(const SlotMap& previous, std::vector<PlacedNode> nodes,
                      const PlaceOptions& options) {
  SlotMap map;
  map.version = previous.version + 1;
  map.row_size = options.row_size;
  map.nodes = std::move(nodes);
  std::ranges::sort(map.nodes, {}, &PlacedNode::id);
  FFR_TRY(CheckSlotMapNodes(map));
  FFR_TRY(CheckDomains(map, options));
  Rows rows(map, previous);
  if (!map.nodes.empty()) {
    rows.Fill();
    rows.Even();
    EvenOrder(map);
  }
  return map;
}

std::uint64_t CountMoves(const SlotMap& before, const SlotMap& after) {
  std::uint64_t count = 0;
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
    const auto old = before.NodesOf(slot);
    for (const std::uint16_t node : after.NodesOf(slot)) {
      const std::uint16_t then = before.Find(after.nodes[node].id);
      if (then == SlotMap::kNoNode || std::ranges::find(old, then) == old.end()) ++count;
    }
  }
  return count;
}

}  // namespace ffrecord::server::cluster
