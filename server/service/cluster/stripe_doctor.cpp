#include "server/service/cluster/stripe_doctor.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <numeric>

#include "libffrecord/base/clock.h"
#include "server/service/cluster/stripe_rebuild.h"

namespace ffrecord::server {
namespace {

using std::chrono_literals::operator""s;
using cluster::TimePoint;

// The time for an extent that a reader waits for. It may be as many extents as a stripe has
// members.
constexpr auto kBringTime = 120s;

}  // namespace

// Those that are likely to be had first, for what is missing has it begin anew; before them what is
// here, for it crosses no network.
std::vector<std::size_t> StripeDoctor::OrderOf(const cluster::StripePart& part,
                                               const ClusterState& known) const {
  const auto& members = part.stripe.members;
  const auto owners =
      known.slots->map.StripeOwners(part.stripe.slot(), static_cast<std::uint8_t>(members.size()));
  const auto has_owner_up = [&](std::size_t member) {
    const std::uint16_t owner = owners[member];
    return owner != SlotMap::kNoNode && known.IsUp(known.slots->map.nodes[owner].id);
  };
  std::vector<std::size_t> order(members.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_partition(order.begin(), order.end(), has_owner_up);
  std::stable_partition(order.begin(), order.end(), [&](std::size_t member) {
    return extents_.Find(members[member].id) == members[member];
  });
  return order;
}

Result<std::vector<std::byte>> StripeDoctor::Rebuild(const cluster::StripePart& part,
                                                     TimePoint deadline, bool is_paced) {
  const ClusterStatePtr known = shown_.state();
  cluster::StripePlace place;
  place.slot = part.stripe.slot();
  place.member_count = static_cast<std::uint8_t>(part.stripe.members.size());
  const auto fetch = [&](std::size_t member) -> Result<std::vector<std::byte>> {
    const ManifestExtent& extent = part.stripe.members[member];
    if (auto here = extents_.Read(extent)) return here;
    place.member = static_cast<std::uint8_t>(member);
    const auto nodes = known->HoldersUp(place, extent.id, node_);
    return is_paced ? peers_.Pull(extent, nodes, deadline) : peers_.Fetch(extent, nodes, deadline);
  };
  return RebuildMember(part, OrderOf(part, *known), fetch);
}

Result<void> StripeDoctor::BringMember(const ManifestExtent& extent,
                                       const cluster::StripePlace& place) {
  const NodeExtents::Coming coming(extents_, extent.id);
  FFR_TRY(extents_.store().CheckTakes(extent.size_bytes));
  const TimePoint deadline = Clock::now() + kBringTime;
  auto bytes = peers_.Fetch(extent, shown_.state()->HoldersUp(place, extent.id, node_), deadline);
  if (!bytes)
    bytes = Rebuild({place.manifest->code, StripeOf(*place.manifest, place.stripe), place.member},
                    deadline,
                    /*is_paced=*/false);
  if (!bytes) return std::move(bytes).error();
  return extents_.Write(extent, bytes.value());
}

}  // namespace ffrecord::server
