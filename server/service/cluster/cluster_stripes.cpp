// Members of stripes that this node lacks: where they may be, and how they are computed.

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "server/service/cluster/cluster_service.h"
#include "server/service/cluster/stripe_rebuild.h"

namespace ffrecord::server {
namespace {

using std::chrono_literals::operator""s;

// The time for an extent that a reader waits for. It may be as many extents as a stripe has
// members.
constexpr auto kBringTime = 120s;

}  // namespace

// Empty: it has none.
std::string ClusterService::OwnerOf(const ClusterState& known, const cluster::StripePlace& place) {
  const SlotMap& map = known.slots->map;
  const std::uint16_t owner = map.StripeOwners(place.slot, place.member_count)[place.member];
  return owner == SlotMap::kNoNode ? "" : map.nodes[owner].id;
}

// Without this one: its owner, then those that may have it, of those that are up.
std::vector<std::string> ClusterService::HoldersUp(const ClusterState& known,
                                                   const cluster::StripePlace& place,
                                                   const ExtentId& id) const {
  const cluster::SlotsRecord& slots = *known.slots;
  std::vector<std::string> nodes = slots.CandidatesOf(id, known.NodesUp());
  if (std::string owner = OwnerOf(known, place); !owner.empty())
    nodes.insert(nodes.begin(), std::move(owner));
  std::vector<std::string> up;
  for (std::string& node : nodes)
    if (node != options_.node && known.IsUp(node) && std::ranges::find(up, node) == up.end())
      up.push_back(std::move(node));
  return up;
}

Result<std::vector<std::byte>> ClusterService::Rebuild(const cluster::StripePart& part,
                                                       TimePoint deadline, bool is_paced) {
  const ClusterStatePtr known = state();
  cluster::StripePlace place;
  place.slot = part.stripe.slot();
  place.member_count = static_cast<std::uint8_t>(part.stripe.members.size());
  // Those that are likely to be had first, for what is missing has it begin anew; before them what
  // is here, for it crosses no network.
  const auto owners = known->slots->map.StripeOwners(place.slot, place.member_count);
  const auto has_owner_up = [&](std::size_t member) {
    const std::uint16_t owner = owners[member];
    return owner != SlotMap::kNoNode && known->IsUp(known->slots->map.nodes[owner].id);
  };
  std::vector<std::size_t> order(part.stripe.members.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_partition(order.begin(), order.end(), has_owner_up);
  std::stable_partition(order.begin(), order.end(), [&](std::size_t member) {
    return extents_.Find(part.stripe.members[member].id) == part.stripe.members[member];
  });
  return RebuildMember(part, order, [&](std::size_t member) -> Result<std::vector<std::byte>> {
    const ManifestExtent& extent = part.stripe.members[member];
    if (auto here = extents_.Read(extent)) return here;
    place.member = static_cast<std::uint8_t>(member);
    const auto nodes = HoldersUp(*known, place, extent.id);
    return is_paced ? peers_.Pull(extent, nodes, deadline) : peers_.Fetch(extent, nodes, deadline);
  });
}

Result<void> ClusterService::BringMember(const ManifestExtent& extent,
                                         const cluster::StripePlace& place) {
  const NodeExtents::Coming coming(extents_, extent.id);
  FFR_TRY(extents_.store().CheckTakes(extent.size_bytes));
  const TimePoint deadline = Now() + kBringTime;
  auto bytes = peers_.Fetch(extent, HoldersUp(*state(), place, extent.id), deadline);
  if (!bytes)
    bytes = Rebuild({place.manifest->code, StripeOf(*place.manifest, place.stripe), place.member},
                    deadline,
                    /*is_paced=*/false);
  if (!bytes) return std::move(bytes).error();
  return extents_.Write(extent, bytes.value());
}

}  // namespace ffrecord::server
