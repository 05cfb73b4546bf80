#include "server/cluster/move_plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "server/cluster/members.h"
#include "server/cluster/placement.h"

namespace ffrecord::server::cluster {
namespace {

Result<SlotMap> MapAfter(const View& view, const PlannedChange& change) {
  for (const std::string& id : change.without)
    if (!MembersOf(view).contains(id))
      return Error{ErrorCode::kNotFound, "the cluster has no node " + id};
  auto nodes = PlaceableNodes(view, [&](const std::string&) { return change.are_down_lost; });
  for (PlacedNode& node : nodes)
    if (change.without.contains(node.id)) node.weight = 0;
  return Place(view.slots.map, std::move(nodes),
               {.row_size = view.slots.map.row_size, .allow_short = true});
}

// The first of the owners that can be asked. A node that drains, or that the plan empties, serves.
std::string SourceOf(const View& view, const std::vector<std::string>& holders) {
  const auto found =
      std::ranges::find_if(holders, [&](const std::string& holder) { return view.IsLive(holder); });
  return found == holders.end() ? "" : *found;
}

// The members that an extent can be computed from, if enough nodes that should have them are up. 0:
// it cannot be.
std::size_t MembersFor(const View& view, const SlotsRecord& slots, const StripeTable& stripes,
                       const NameTable::Wanted& wanted) {
  for (const StripePlace& place : wanted.stripes)
    if (LiveMembers(slots, stripes, place, view.live) >= place.data_count())
      return place.data_count();
  return 0;
}

}  // namespace

Result<MovePlan> PlanMoves(const View& view, const PlannedChange& change) {
  if (view.slots.map.row_size == 0 || !view.names.IsComplete())
    return Error{ErrorCode::kUnavailable,
                 "this node does not know the slot map and all names yet; try again"};
  const SlotsRecord before{view.slots.previous.value_or(view.slots.map), std::nullopt};
  const SlotsRecord after{FFR_TRY(MapAfter(view, change)), std::nullopt};
  const StripeTable stripes_before, stripes_after;
  std::map<std::tuple<std::string, std::size_t, std::string>, MovePlan::Move> moves;
  for (const auto& [id, wanted] : view.names.wanted()) {
    const auto holders = OwnersOf(before, stripes_before, wanted).nodes;
    for (const std::string& owner : OwnersOf(after, stripes_after, wanted).nodes) {
      if (std::ranges::find(holders, owner) != holders.end()) continue;
      std::string from = SourceOf(view, holders);
      const std::size_t members =
          from.empty() ? MembersFor(view, before, stripes_before, wanted) : 0;
      MovePlan::Move& move = moves[{from, members, owner}];
      move.from = std::move(from);
      move.to = owner;
      move.member_count = members;
      ++move.extent_count;
      move.size_bytes += wanted.extent.size_bytes;
    }
  }
  MovePlan plan;
  plan.slot_count = CountMoves(before.map, after.map);
  std::set<std::string> domains;
  for (const PlacedNode& node : after.map.nodes)
    if (node.weight > 0) domains.insert(node.domain);
  plan.is_short = domains.size() < after.map.row_size;
  for (auto& [key, move] : moves) plan.moves.push_back(std::move(move));
  return plan;
}

}  // namespace ffrecord::server::cluster
