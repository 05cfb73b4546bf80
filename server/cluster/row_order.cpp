#include "server/cluster/row_order.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
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
      const auto row = map.NodesOf(slot);
      for (const std::uint16_t node : row.first(std::min(replicas, row.size()))) ++loads_[node];
    }
  }

  void Even() {
    while (Pass()) is_done_.assign(map_.nodes.size(), false);
  }

 private:
  // A row in which a node may go forward, and who makes room for it.
  struct Turn {
    std::uint32_t slot = 0;
    std::size_t place = 0;  // Of the one who makes room.
    std::uint64_t affinity = 0;
  };

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

  // Of those that may still go forward.
  std::optional<std::uint16_t> Lightest() const {
    std::optional<std::uint16_t> lightest;
    for (std::uint16_t node = 0; node < map_.nodes.size(); ++node)
      if (map_.nodes[node].weight > 0 && !is_done_[node] &&
          (!lightest || Share(node, *lightest) < Share(*lightest, node)))
        lightest = node;
    return lightest;
  }

  // What one node has, to compare with the same of another: by its weight.
  std::uint64_t Share(std::uint16_t node, std::uint16_t other) const {
    return loads_[node] * map_.nodes[other].weight;
  }
  bool HasTooMuch(std::uint16_t node, std::uint16_t beside) const {
    const std::uint64_t more = (loads_[beside] + 1) * map_.nodes[node].weight;
    return Share(node, beside) * 8 > more * 9;
  }

  // In a row in which it is the next one, it takes the place of the node that has most.
  bool GiveTo(std::uint16_t to) {
    std::optional<Turn> best;
    for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
      const auto row = RowOf(slot);
      if (row.size() <= replicas_ || row[replicas_] != to) continue;
      const Turn turn{slot, Heaviest(row), SlotAffinity(slot, map_.nodes[to].id)};
      if (HasTooMuch(row[turn.place], to) && (!best || IsBetter(turn, *best))) best = turn;
    }
    if (!best) return false;
    const auto row = RowOf(best->slot);
    --loads_[row[best->place]];
    ++loads_[to];
    std::swap(row[best->place], row[replicas_]);
    return true;
  }

  std::size_t Heaviest(std::span<const std::uint16_t> row) const {
    std::size_t heaviest = 0;
    for (std::size_t place = 1; place < replicas_; ++place)
      if (Share(row[heaviest], row[place]) < Share(row[place], row[heaviest])) heaviest = place;
    return heaviest;
  }

  // Ties go to the larger affinity, then to the lower slot.
  bool IsBetter(const Turn& turn, const Turn& than) {
    const std::uint16_t one = RowOf(turn.slot)[turn.place], other = RowOf(than.slot)[than.place];
    if (Share(one, other) != Share(other, one)) return Share(one, other) > Share(other, one);
    return turn.affinity > than.affinity;
  }

  std::span<std::uint16_t> RowOf(std::uint32_t slot) {
    const std::size_t size = map_.NodesOf(slot).size();
    return std::span(map_.rows).subspan(std::size_t{slot} * map_.row_size, size);
  }

  SlotMap& map_;
  const std::size_t replicas_;
  std::vector<std::uint64_t> loads_;
  std::vector<bool> is_done_;  // No row let it go forward in this pass.
};

}  // namespace

void EvenOrder(SlotMap& map) {
  // The fewer ones afterwards: they change nothing for the more.
  for (std::size_t replicas = map.row_size; --replicas > 0;) Owners(map, replicas).Even();
}

}  // namespace ffrecord::server::cluster
