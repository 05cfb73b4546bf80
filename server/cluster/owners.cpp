#include "server/cluster/owners.h"

#include <algorithm>

namespace ffrecord::server::cluster {

OwnerList OwnersOf(const SlotsRecord& slots, const StripeTable& stripes,
                   const NameTable::Wanted& wanted) {
  OwnerList owners{slots.OwnersOf(wanted.extent.id, wanted.replicas), true};
  owners.are_all = owners.nodes.size() == wanted.replicas;
  for (const StripePlace& place : wanted.stripes) {
    const std::uint16_t ordinal = stripes.OwnerOf(slots.map, place);
    if (ordinal == SlotMap::kNoNode) {
      owners.are_all = false;
      continue;
    }
    const std::string& node = slots.map.nodes[ordinal].id;
    if (std::ranges::find(owners.nodes, node) == owners.nodes.end()) owners.nodes.push_back(node);
  }
  return owners;
}

bool IsOwner(const SlotsRecord& slots, const StripeTable& stripes, std::string_view node,
             const NameTable::Wanted& wanted) {
  if (slots.IsOwner(node, wanted.extent.id, wanted.replicas)) return true;
  if (wanted.stripes.empty()) return false;
  const std::uint16_t ordinal = slots.map.Find(node);
  return ordinal != SlotMap::kNoNode &&
         std::ranges::any_of(wanted.stripes, [&](const StripePlace& place) {
           return stripes.OwnerOf(slots.map, place) == ordinal;
         });
}

std::size_t LiveMembers(const SlotsRecord& slots, const StripeTable& stripes,
                        const StripePlace& place, const std::set<std::string>& live) {
  std::size_t count = 0;
  StripePlace other = place;
  for (other.member = 0; other.member < place.member_count; ++other.member) {
    const std::uint16_t ordinal = stripes.OwnerOf(slots.map, other);
    if (ordinal != SlotMap::kNoNode && live.contains(slots.map.nodes[ordinal].id)) ++count;
  }
  return count;
}

}  // namespace ffrecord::server::cluster
