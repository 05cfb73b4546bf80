#include "server/cluster/row_order.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <queue>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ffrecord::server::cluster {
namespace {

// How many of the first `replicas` places of all rows are a node's.
class Owners {
 public:
  Owners(SlotMap& map, std::size_t replicas)
      : map_(map), replicas_(replicas), loads_(map.nodes.size()), is_done_(map.nodes.size()) {
    for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
      const auto row = RowOf(slot);
      for (const std::uint16_t node : row.first(std::min(replicas, row.size()))) ++loads_[node];
    }
  }

  void Even() {
    if (IsEven()) return;
    for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) NoteTurns(slot);
    while (Pass()) is_done_.assign(map_.nodes.size(), false);
  }

 private:
  // The rows in which one node is next and another one before it, the largest affinity to the first
  // on top, then the lower slot. Some have changed since.
  using Turns = std::priority_queue<std::pair<std::uint64_t, std::uint32_t>>;

  // No node has too much beside any other.
  bool IsEven() const {
    const auto count = static_cast<std::uint16_t>(map_.nodes.size());
    for (std::uint16_t node = 0; node < count; ++node)
      for (std::uint16_t beside = 0; beside < count; ++beside)
        if (map_.nodes[node].weight > 0 && map_.nodes[beside].weight > 0 &&
            HasTooMuch(node, beside))
          return false;
    return true;
  }

  // False: nothing moves any more.
  bool Pass() {
    bool has_moved = false;
    while (const auto to = Lightest()) {
      const bool moves = GiveTo(*to);
      has_moved = has_moved || moves;
      is_done_[*to] = !moves;
    }
    return has_moved;
  }

  // The lightest node among those that may still go forward.
  std::optional<std::uint16_t> Lightest() const {
    std::optional<std::uint16_t> lightest;
    for (std::uint16_t node = 0; node < map_.nodes.size(); ++node)
      if (map_.nodes[node].weight > 0 && !is_done_[node] &&
          (!lightest || Share(node, *lightest) < Share(*lightest, node)))
        lightest = node;
    return lightest;
  }

  // A node's load, to compare with the same of another: by its weight.
  std::uint64_t Share(std::uint16_t node, std::uint16_t other) const {
    return loads_[node] * map_.nodes[other].weight;
  }
  bool HasTooMuch(std::uint16_t node, std::uint16_t beside) const {
    const std::uint64_t more = (loads_[beside] + 1) * map_.nodes[node].weight;
    return Share(node, beside) * 8 > more * 9;
  }

  // It takes a place of the one that has most and is before it somewhere.
  bool GiveTo(std::uint16_t to) {
    givers_.clear();
    for (std::uint16_t node = 0; node < map_.nodes.size(); ++node)
      if (map_.nodes[node].weight > 0 && HasTooMuch(node, to)) givers_.push_back(node);
    std::ranges::sort(givers_, [&](std::uint16_t one, std::uint16_t other) {
      if (Share(one, other) != Share(other, one)) return Share(one, other) > Share(other, one);
      return one < other;
    });
    return std::ranges::any_of(givers_, [&](std::uint16_t from) { return Turn(from, to); });
  }

  bool Turn(std::uint16_t from, std::uint16_t to) {
    const auto found = turns_.find(KeyOf(from, to));
    if (found == turns_.end()) return false;
    for (Turns& turns = found->second; !turns.empty();) {
      const std::uint32_t slot = kSlotCount - turns.top().second;
      turns.pop();
      const auto row = RowOf(slot);
      const auto giver = std::ranges::find(row.first(replicas_), from);
      if (row[replicas_] != to || giver == row.begin() + static_cast<std::ptrdiff_t>(replicas_))
        continue;
      std::swap(*giver, row[replicas_]);
      --loads_[from];
      ++loads_[to];
      NoteTurns(slot);
      return true;
    }
    return false;
  }

  void NoteTurns(std::uint32_t slot) {
    const auto row = RowOf(slot);
    if (row.size() <= replicas_) return;
    const std::uint16_t next = row[replicas_];
    const std::uint64_t affinity = SlotAffinity(slot, map_.nodes[next].id);
    for (const std::uint16_t node : row.first(replicas_))
      turns_[KeyOf(node, next)].emplace(affinity, kSlotCount - slot);
  }

  static std::uint32_t KeyOf(std::uint16_t from, std::uint16_t to) {
    return static_cast<std::uint32_t>(from) << 16 | to;
  }

  std::span<std::uint16_t> RowOf(std::uint32_t slot) {
    const std::size_t size = map_.NodesOf(slot).size();
    return std::span(map_.rows).subspan(std::size_t{slot} * map_.row_size, size);
  }

  SlotMap& map_;
  const std::size_t replicas_;
  std::vector<std::uint64_t> loads_;
  std::vector<bool> is_done_;  // No row let it go forward in this pass.
  std::vector<std::uint16_t> givers_;
  std::unordered_map<std::uint32_t, Turns> turns_;
};

}  // namespace

void EvenOrder(SlotMap& map) {
  // The fewer ones afterwards: they change nothing for the more.
  for (std::size_t replicas = map.row_size; --replicas > 0;) Owners(map, replicas).Even();
}

}  // namespace ffrecord::server::cluster
