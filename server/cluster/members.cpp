#include "server/cluster/members.h"

#include <utility>

namespace ffrecord::server::cluster {

std::map<std::string, MemberRecord> MembersOf(const View& view) {
  std::map<std::string, MemberRecord> members;
  const auto& entries = view.mirror.entries();
  for (auto at = entries.lower_bound(kMemberKeys);
       at != entries.end() && at->first.starts_with(kMemberKeys); ++at)
    if (auto member = MemberRecord::Decode(at->second.value))
      members.emplace(*NameIn(kMemberKeys, at->first), std::move(member).value());
  return members;
}

std::vector<PlacedNode> PlaceableNodes(
    const View& view, const std::function<bool(const std::string& id)>& is_long_down) {
  std::vector<PlacedNode> nodes;
  for (const auto& [id, member] : MembersOf(view)) {
    if (!member.counts()) continue;
    const bool is_down = !view.IsLive(id);
    const std::uint16_t placed = view.slots.map.Find(id);
    if (is_down && placed == SlotMap::kNoNode) continue;  // Never seen yet.
    const bool was_lost = placed != SlotMap::kNoNode && view.slots.map.nodes[placed].weight == 0;
    const bool is_lost = is_down && (was_lost || is_long_down(id));
    const bool takes = member.state == MemberRecord::State::kIn && !is_lost;
    nodes.push_back({id, member.domain, takes ? member.weight : 0});
  }
  return nodes;
}

}  // namespace ffrecord::server::cluster
