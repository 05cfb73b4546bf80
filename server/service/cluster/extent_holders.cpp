#include "server/service/cluster/extent_holders.h"

#include "libffrecord/format/slot_map.h"

namespace ffrecord::server {

bool ExtentHolders::IsPreferredOwner(const ExtentId& id, std::size_t replicas) const {
  const ClusterStatePtr known = shown_.state();
  // A member of a stripe has one owner. Without it nodes bring what they lack at the first read.
  if (const auto place = stripes_.PlaceOf(id)) return known->OwnerOf(*place) == node_;
  const SlotMap& map = known->slots->map;
  const std::size_t count = replicas != 0 ? replicas : replicas_;
  for (const std::uint16_t owner : map.OwnersByAffinity(SlotOf(id), count)) {
    const std::string& node = map.nodes[owner].id;
    if (node == node_) return true;
    if (known->IsUp(node)) return false;
  }
  return false;
}

std::vector<std::string> ExtentHolders::OthersOf(const ExtentId& id) const {
  const ClusterStatePtr known = shown_.state();
  if (const auto place = stripes_.PlaceOf(id)) return known->HoldersUp(*place, id, node_);
  auto nodes = known->slots->CandidatesOf(id, known->NodesUp());
  std::erase(nodes, node_);
  return nodes;
}

}  // namespace ffrecord::server
