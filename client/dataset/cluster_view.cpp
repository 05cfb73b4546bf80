#include "client/dataset/cluster_view.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace ffrecord::client {
namespace {

const net::ClusterMapReply::Node* FindNode(const net::ClusterMapReply& reply,
                                           const std::string& id) {
  const auto found = std::ranges::lower_bound(reply.nodes, id, {}, &net::ClusterMapReply::Node::id);
  return found != reply.nodes.end() && found->id == id ? &*found : nullptr;
}

// The place of the node with this address: the youngest place counts.
std::optional<net::NodeIndex> FindPlace(std::span<const ClusterView::Place> places,
                                        const net::ClusterMapReply::Node& node) {
  for (std::size_t i = places.size(); i-- > 0;) {
    const auto& [id, location] = places[i];
    if (id == node.id && location.address.ToString() == node.address)
      return static_cast<net::NodeIndex>(i);
  }
  return std::nullopt;
}

Result<void> AddPlaces(ClusterView& view, const net::Location& seed) {
  constexpr std::size_t kPlacesMax = 60'000;  // So that a NodeIndex names each.
  for (net::ClusterMapReply::Node& node : view.reply.nodes) {
    // The seed itself answers, at least.
    if (node.address.empty() && view.places.empty() && node.id == view.reply.node)
      node.address = seed.address.ToString();
    if (node.address.empty()) continue;
    const auto address = net::Address::Parse(node.address, kDefaultPort);
    if (!address || address.value().port == 0)
      return Error{ErrorCode::kCorruption, "node " + node.id + " of the cluster has the address '" +
                                               node.address + "', which cannot be connected to"};
    node.address = address.value().ToString();
    if (FindPlace(view.places, node) || view.places.size() == kPlacesMax) continue;
    net::Location location = seed;
    location.address = address.value();
    location.node = net::NodeIdentity{view.reply.cluster, node.id};
    view.places.push_back({node.id, std::move(location)});
  }
  if (!view.places.empty()) return {};
  return Error{ErrorCode::kUnavailable,
               "no node of the cluster of " + seed.address.ToString() + " has an address yet"};
}

}  // namespace

Result<ClusterView> NextView(const ClusterView* before, net::ClusterMapReply reply,
                             std::span<const std::byte> payload, const net::Location& seed) {
  ClusterView view;
  if (reply.version == 0)
    return Error{ErrorCode::kUnavailable,
                 "the cluster of " + seed.address.ToString() +
                     " has no slot map yet: its first nodes are still starting, or that daemon "
                     "waits for approval, which `ffrecord cluster nodes` shows at the others"};
  if (before != nullptr && before->reply.cluster != reply.cluster)
    return Error{ErrorCode::kCorruption, seed.address.ToString() + " is now of another cluster"};
  if (before != nullptr) view.places = before->places;
  if (!payload.empty())
    view.map = FFR_TRY(DecodeSlotMap(payload));
  else if (before != nullptr)
    view.map = before->map;
  if (view.map.version != reply.version)
    return Error{ErrorCode::kCorruption, "a slot map of another version than the answer says"};
  view.reply = std::move(reply);
  FFR_TRY(AddPlaces(view, seed));
  return view;
}

ClusterView ViewOfOneDaemon(const net::Location& location) {
  const std::string id = "daemon";  // Nobody else sees it.
  ClusterView view;
  view.reply.node = id;
  view.reply.nodes.push_back(
      {.id = id, .address = location.address.ToString(), .domain = id, .is_up = true});
  view.map.row_size = 1;
  view.map.nodes.push_back({id, id});
  view.map.rows.assign(kSlotCount, 0);
  view.places.push_back({id, location});
  return view;
}

ClusterView::Candidates ClusterView::CandidatesOf(std::uint32_t slot, std::size_t replicas) const {
  const auto owners = map.OwnersByAffinity(slot, replicas != 0 ? replicas : reply.replicas);
  auto order = map.OrderOf(slot);  // It begins with them.
  std::ranges::copy(owners, order.begin());
  Candidates candidates = PlacesOf(order, owners.size());
  for (const net::ClusterMapReply::Node& node : reply.nodes) {
    if (!node.is_up || node.state != net::MemberState::kOut || node.address.empty() ||
        candidates.nodes.size() == net::ReplicaMap::kCandidatesMax)
      continue;
    const auto place = FindPlace(places, node);
    if (place && std::ranges::find(candidates.nodes, *place) == candidates.nodes.end())
      candidates.nodes.push_back(*place);
  }
  return candidates;
}

ClusterView::Candidates ClusterView::FetchersOf(std::uint32_t slot) const {
  return PlacesOf(map.FetchOrderOf(slot), 1);
}

ClusterView::Candidates ClusterView::BringersOf(std::uint16_t owner, std::uint32_t slot) const {
  auto order = map.FetchOrderOf(slot);
  const auto found = std::ranges::find(order, owner);
  if (found == order.end()) return PlacesOf(order, 0);
  std::rotate(order.begin(), found, std::next(found));
  return PlacesOf(order, 1);
}

ClusterView::Candidates ClusterView::PlacesOf(std::span<const std::uint16_t> order,
                                              std::size_t owner_count) const {
  Candidates candidates;
  std::size_t number = 0;
  for (const std::uint16_t ordinal : order) {
    const bool is_owner = number++ < owner_count;
    const auto* const node = FindNode(reply, map.nodes[ordinal].id);
    if (node == nullptr || node->address.empty()) continue;
    const auto place = FindPlace(places, *node);
    if (!place || candidates.nodes.size() == net::ReplicaMap::kCandidatesMax) continue;
    candidates.nodes.push_back(*place);
    if (is_owner) ++candidates.owner_count;
  }
  return candidates;
}

std::vector<net::NodeIndex> ClusterView::PlacesUp() const {
  std::vector<net::NodeIndex> up;
  for (const net::ClusterMapReply::Node& node : reply.nodes) {
    if (!node.is_up || node.address.empty()) continue;
    if (const auto place = FindPlace(places, node)) up.push_back(*place);
  }
  return up;
}

bool ClusterView::IsUp(net::NodeIndex place) const {
  const auto* const node = FindNode(reply, places[place].node);
  return node != nullptr && node->is_up;
}

std::vector<ClusterView::Target> ClusterView::TargetsOf(std::uint32_t slot) const {
  std::vector<Target> up;
  std::vector<Target> down;
  for (const std::uint16_t ordinal : map.OrderOf(slot)) {
    const PlacedNode& placed = map.nodes[ordinal];
    const auto* const node = FindNode(reply, placed.id);
    if (placed.weight == 0 || node == nullptr || node->state != net::MemberState::kIn ||
        node->address.empty())
      continue;
    if (const auto place = FindPlace(places, *node))
      (node->is_up ? up : down).push_back({*place, placed.domain});
  }
  up.insert(up.end(), down.begin(), down.end());
  return up;
}

std::vector<ClusterView::Target> ClusterView::StripeTargetsOf(std::uint32_t slot,
                                                              std::size_t member,
                                                              std::size_t member_count) const {
  auto targets = TargetsOf(slot);
  const std::uint16_t owner = map.StripeOwners(slot, member_count)[member];
  const auto is_owner = [&](const Target& target) {
    return owner != SlotMap::kNoNode && places[target.place].node == map.nodes[owner].id &&
           IsUp(target.place);
  };
  std::stable_partition(targets.begin(), targets.end(), is_owner);
  return targets;
}

}  // namespace ffrecord::client
