#include "server/service/cluster/cluster_state.h"

#include <algorithm>
#include <utility>

namespace ffrecord::server {
namespace {

using Node = net::ClusterMapReply::Node;

// Calls `visit` with the name behind `kind` and the value of each such key.
template <class Visit>
void ForEachKey(const cluster::KeyMirror& mirror, std::string_view kind, const Visit& visit) {
  const auto& entries = mirror.entries();
  for (auto at = entries.lower_bound(kind); at != entries.end() && at->first.starts_with(kind);
       ++at)
    visit(at->first.substr(kind.size()), at->second.value);
}

}  // namespace

bool ClusterState::IsUp(std::string_view node) const {
  const auto found = std::ranges::lower_bound(nodes, node, {}, &Node::id);
  return found != nodes.end() && found->id == node && found->is_up;
}

bool ClusterState::IsGone(std::string_view node) const {
  const auto found = std::ranges::lower_bound(nodes, node, {}, &Node::id);
  if (found == nodes.end() || found->id != node) return true;
  return found->state == net::MemberState::kOut && !found->is_up;
}

std::set<std::string> ClusterState::NodesUp() const {
  std::set<std::string> up;
  for (const Node& node : nodes)
    if (node.is_up) up.insert(node.id);
  return up;
}

std::string ClusterState::AddressOf(std::string_view node) const {
  const auto found = std::ranges::lower_bound(nodes, node, {}, &Node::id);
  return found == nodes.end() || found->id != node ? "" : found->address;
}

std::string ClusterState::OwnerOf(const cluster::StripePlace& place) const {
  const SlotMap& map = slots->map;
  const std::uint16_t owner = map.StripeOwners(place.slot, place.member_count)[place.member];
  return owner == SlotMap::kNoNode ? "" : map.nodes[owner].id;
}

std::vector<std::string> ClusterState::HoldersUp(const cluster::StripePlace& place,
                                                 const ExtentId& id, std::string_view but) const {
  std::vector<std::string> holders = slots->CandidatesOf(id, NodesUp());
  if (std::string owner = OwnerOf(place); !owner.empty())
    holders.insert(holders.begin(), std::move(owner));
  std::vector<std::string> up;
  for (std::string& node : holders)
    if (node != but && IsUp(node) && std::ranges::find(up, node) == up.end())
      up.push_back(std::move(node));
  return up;
}

std::shared_ptr<const ClusterState::NameMap> NamesOf(const cluster::NameTable& table,
                                                     const ClusterState::NameMap& before,
                                                     const std::set<std::string>& changed) {
  ClusterState::NameMap::Changes changes;
  for (const std::string& text : changed) {
    auto& change = changes[text];
    const auto* const name = table.Find(text);
    if (name == nullptr) continue;
    change = ClusterState::Name{name->record, name->revision, name->manifest};
    const ClusterState::Name* const old = before.Find(text);
    // A revision may come twice, after the metadata was put back: with another attempt.
    if (!change->manifest && old != nullptr && old->revision == name->revision &&
        old->record == name->record)
      change->manifest = old->manifest;
  }
  return std::make_shared<const ClusterState::NameMap>(before.With(std::move(changes)));
}

ClusterState::Nodes NodesOf(const cluster::View& view, const ClusterState::Nodes& before) {
  std::map<std::string, Node> nodes;
  ForEachKey(view.mirror, cluster::kMemberKeys, [&](const std::string& id, const auto& value) {
    const auto member = cluster::MemberRecord::Decode(value);
    if (!member) return;
    Node& node = nodes[id];
    node.domain = member.value().domain;
    node.weight = member.value().weight;
    node.state = static_cast<net::MemberState>(member.value().state);
  });
  for (const Node& old : before)
    if (const auto found = nodes.find(old.id); found != nodes.end())
      found->second.address = old.address;
  ForEachKey(view.mirror, cluster::kNodeKeys, [&](const std::string& id, const auto& value) {
    const auto record = cluster::NodeRecord::Decode(value);
    if (!record) return;
    nodes[id].address = record.value().address;
    nodes[id].is_up = true;
  });
  ClusterState::Nodes list;
  for (auto& [id, node] : nodes) {
    node.id = id;
    list.push_back(std::move(node));
  }
  return list;
}

std::map<std::string, cluster::WaitingRecord> WaitingOf(const cluster::View& view,
                                                        const ClusterState::Nodes& nodes) {
  std::map<std::string, cluster::WaitingRecord> waiting;
  for (const Node& node : nodes) {
    if (node.state != net::MemberState::kWaiting) continue;
    const auto* const entry = view.mirror.Find(cluster::Key(cluster::kWaitingKeys, node.id));
    if (entry == nullptr) continue;
    if (auto record = cluster::WaitingRecord::Decode(entry->value))
      waiting.emplace(node.id, std::move(record).value());
  }
  return waiting;
}

}  // namespace ffrecord::server
