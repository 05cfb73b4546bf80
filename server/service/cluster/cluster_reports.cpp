#include "server/service/cluster/cluster_reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "libffrecord/base/hex.h"
#include "libffrecord/base/json_text.h"

namespace ffrecord::server {
namespace {

std::string_view NameOf(net::MemberState state) {
  switch (state) {
    case net::MemberState::kIn:
      return "in";
    case net::MemberState::kDraining:
      return "draining";
    case net::MemberState::kWaiting:
      return "waiting";
    case net::MemberState::kOut:
      break;
  }
  return "out";
}

// `levels`: of those that are up.
std::string WaitingJson(const ClusterState& state, const std::string& node) {
  const auto found = state.waiting.find(node);
  if (found == state.waiting.end()) return "null";
  return fmt::format("{{\"address\": {}, \"daemon\": {}, \"since_unix_ms\": {}}}",
                     Quoted(found->second.address), Quoted(found->second.daemon),
                     found->second.since_unix_ms);
}

std::string NodesJson(const ClusterState& state,
                      const std::map<std::string, std::uint32_t>& levels) {
  std::string json = "[";
  for (const auto& node : state.nodes) {
    const std::uint16_t ordinal = state.slots->map.Find(node.id);
    const auto& rows = state.slots->map.rows;
    json += fmt::format(
        "{}{{\"id\": {}, \"address\": {}, \"domain\": {}, \"weight\": {}, \"state\": \"{}\", "
        "\"is_up\": {}, \"slots\": {}, \"level\": {}, \"waiting\": {}}}",
        json.size() > 1 ? ", " : "", Quoted(node.id), Quoted(node.address), Quoted(node.domain),
        node.weight, NameOf(node.state), node.is_up,
        ordinal == SlotMap::kNoNode ? 0 : std::ranges::count(rows, ordinal),
        levels.contains(node.id) ? std::to_string(levels.at(node.id)) : "null",
        WaitingJson(state, node.id));
  }
  return json + "]";
}

std::string RefusalsJson(const std::map<std::string, std::string>& refusals) {
  std::string json = "[";
  for (const auto& [node, why] : refusals)
    json += fmt::format("{}{{\"node\": {}, \"why\": {}}}", json.size() > 1 ? ", " : "",
                        Quoted(node), Quoted(why));
  return json + "]";
}

std::string ListJson(std::span<const std::string> texts) {
  std::string json = "[";
  for (const std::string& text : texts) json += (json.size() > 1 ? ", " : "") + Quoted(text);
  return json + "]";
}

// The extents in one slot, or on one node.
struct Content {
  std::uint64_t extent_count = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t lacking_count = 0;  // Extents with an owner that is down, or with too few owners,
  std::uint64_t alone_count = 0;    // and those that no node that is up has.
};

// With the nodes that are to hold a replica, for each slot.
std::vector<Content> ContentOfSlots(const cluster::View& view) {
  std::vector<Content> slots(kSlotCount);
  for (const auto& [id, wanted] : view.names.wanted()) {
    const auto owners = view.OwnersOf(wanted);
    const auto up = std::ranges::count_if(
        owners.nodes, [&](const std::string& owner) { return view.IsLive(owner); });
    Content& slot = slots[SlotOf(id)];
    ++slot.extent_count;
    slot.size_bytes += wanted.extent.size_bytes;
    const bool is_lacking = !owners.are_all || static_cast<std::size_t>(up) < owners.nodes.size();
    slot.lacking_count += is_lacking ? 1 : 0;
    slot.alone_count += view.IsInReach(wanted) ? 0 : 1;
  }
  return slots;
}

Result<std::string> DescribeSlots(const cluster::View& view) {
  if (!view.names.IsComplete())
    return Error{ErrorCode::kUnavailable, "this node does not know all names yet; try again"};
  const std::vector<Content> slots = ContentOfSlots(view);
  std::string json = fmt::format("{{\"map_version\": {}, \"moving\": {}, \"slots\": [",
                                 view.map_version(), view.slots.previous.has_value());
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
    std::string nodes;
    for (const std::uint16_t ordinal : view.slots.map.NodesOf(slot))
      nodes += (nodes.empty() ? "" : ", ") + Quoted(view.slots.map.nodes[ordinal].id);
    json += fmt::format(
        "{}{{\"nodes\": [{}], \"extents\": {}, \"bytes\": {}, \"lacking\": {}, \"alone\": {}}}",
        slot > 0 ? ", " : "", nodes, slots[slot].extent_count, slots[slot].size_bytes,
        slots[slot].lacking_count, slots[slot].alone_count);
  }
  return json + "]}";
}

Result<std::string> DescribePlan(const cluster::View& view, const cluster::PlannedChange& change) {
  const cluster::MovePlan plan = FFR_TRY(cluster::PlanMoves(view, change));
  std::string json = fmt::format("{{\"slot_places\": {}, \"too_few_domains\": {}, \"moves\": [",
                                 plan.slot_count, plan.is_short);
  for (const auto& move : plan.moves)
    json += fmt::format(
        "{}{{\"from\": {}, \"members\": {}, \"to\": {}, \"extents\": {}, \"bytes\": {}}}",
        json.ends_with('[') ? "" : ", ", Quoted(move.from), move.member_count, Quoted(move.to),
        move.extent_count, move.size_bytes);
  return json + "]}";
}

// Names with an extent that this node should hold, and that no node that answers has undamaged.
std::string DescribeLost(const cluster::View& view, const std::set<ExtentId>& unheld) {
  std::string json = "{\"names\": [";
  for (const auto& [text, name] : view.names.names()) {
    std::size_t count = 0;
    const auto note = [&](const ManifestExtent& extent) { count += unheld.contains(extent.id); };
    std::ranges::for_each(name.record.body, note);
    if (name.manifest) ForEachHeldExtent(*name.manifest, note);
    if (count > 0)
      json += fmt::format("{}{{\"name\": {}, \"extents\": {}}}", json.ends_with('[') ? "" : ", ",
                          Quoted(text), count);
  }
  return json + fmt::format("], \"extents\": {}}}", unheld.size());
}

void ShowNodes(const ClusterState& state, MetricsPage& page) {
  std::uint64_t up_count = 0, down_count = 0, waiting_count = 0;
  for (const auto& node : state.nodes) {
    if (node.state == net::MemberState::kWaiting)
      ++waiting_count;
    else if (node.state != net::MemberState::kOut)
      ++(node.is_up ? up_count : down_count);
  }
  page.Family("ffrecord_cluster_nodes", "Nodes of the cluster.");
  page.Row(Label("state", "up"), up_count);
  page.Row(Label("state", "down"), down_count);
  page.Row(Label("state", "waiting"), waiting_count);
}

}  // namespace

Result<std::string> StatusJson(ClusterService& service) {
  const auto status = FFR_TRY(service.status().GetStatus());
  const ClusterState& known = *status.state;
  const ExtentCounts& counts = status.extents;
  return fmt::format(
      "{{\"cluster\": \"{}\", \"node\": {}, \"leased\": {}, \"leading\": {}, \"leader\": {}, "
      "\"trouble\": {}, \"frozen\": {}, \"why_frozen\": {}, \"incarnation\": \"{}\", "
      "\"names_lost\": {}, \"may_lack_names\": {}, "
      "\"coordinator_silent_ms\": {}, \"from_cache\": {}, \"map_version\": {}, "
      "\"moving\": {}, \"replicas\": {}, \"names\": {}, \"incomplete\": {}, \"missing\": {}, "
      "\"missing_bytes\": {}, \"lacking\": {}, \"alone\": {}, \"unheld\": {}, "
      "\"damaged\": {}, \"healed\": {}, \"surplus\": {}, "
      "\"refused\": {}, \"room_bytes\": {}, \"kept_bytes\": {}, \"unexplained\": {}, "
      "\"adopting\": {}, \"adoption_trouble\": {}, "
      "\"open_uploads\": {}, \"tombstones\": {}, "
      "\"pulled\": {}, \"pulled_bytes\": {}, \"dropped\": {}, \"refusals\": {}, "
      "\"other_origins\": {}, \"level\": {}, \"nodes\": {}}}",
      Hex(known.cluster), Quoted(service.options().node), status.is_leased, status.is_leading,
      Quoted(status.leader), Quoted(status.trouble), status.is_frozen, Quoted(status.why_frozen),
      Hex(status.incarnation), status.lost_name_count, known.may_lack_names,
      status.silent_for ? status.silent_for->count() : 0, known.is_from_cache, known.map_version(),
      status.is_moving, +service.options().replicas, known.names->size(), status.incomplete_count,
      counts.missing_count, counts.missing_bytes, counts.lacking_count, counts.alone_count,
      status.unheld_count, service.extents().store().totals().bad_count,
      service.extents().healed().value(), counts.surplus_count, status.refused_count,
      service.extents().RoomBytes(), service.extents().KeptBytes(), counts.unexplained_count,
      status.adopting_count, Quoted(status.adoption_trouble), status.open_upload_count,
      status.tombstone_count, service.counters().pulled.value(),
      service.counters().pulled_bytes.value(), service.counters().dropped.value(),
      RefusalsJson(status.refusals), ListJson(status.other_origins), known.level,
      NodesJson(known, status.levels));
}

void ShowCluster(ClusterService& service, MetricsPage& page) {
  const auto found = service.status().GetStatus();
  if (!found) return;
  const NodeStatus& status = found.value();
  const ExtentCounts& extents = status.extents;
  page.Value("ffrecord_cluster_leased", "1 while the node holds its lease at the coordinator.",
             status.is_leased);
  page.Value("ffrecord_cluster_leading", "1 if the node leads the cluster.", status.is_leading);
  page.Value("ffrecord_cluster_stale", "1 while names and slot map are those of before the start.",
             status.state->is_from_cache);
  page.Value("ffrecord_cluster_coordinator_silent_seconds",
             "Time since the coordinator answered; 0 while it does.",
             status.silent_for ? status.silent_for->count() / 1000 : 0);
  page.Value("ffrecord_cluster_map_version", "Version of the slot map.",
             status.state->map_version());
  page.Value("ffrecord_cluster_moving", "1 while extents follow a change of the slot map.",
             status.is_moving);
  ShowNodes(*status.state, page);
  page.Value("ffrecord_cluster_frozen",
             "1 while nothing is removed, as the metadata was put back to an older state.",
             status.is_frozen);
  page.Value("ffrecord_cluster_names_lost",
             "Names that the node has known and that the older state lacks.",
             status.lost_name_count);
  page.Value("ffrecord_cluster_extents_missing", "Extents that the node should hold and does not.",
             extents.missing_count);
  page.Value("ffrecord_cluster_extents_missing_bytes", "Bytes of them.", extents.missing_bytes);
  page.Value("ffrecord_cluster_extents_unheld",
             "Missing extents that no node that answers holds undamaged.", status.unheld_count);
  page.Value("ffrecord_cluster_extents_surplus", "Extents that other nodes should hold instead.",
             extents.surplus_count);
  page.Value("ffrecord_cluster_extents_unexplained", "Extents that no record of the cluster names.",
             extents.unexplained_count);
  page.Value("ffrecord_cluster_names_adopting",
             "Names of its own that this node has not taken into the cluster yet.",
             status.adopting_count);
  page.Value("ffrecord_cluster_extents_refused", "Missing extents for which there is no room.",
             status.refused_count);
  page.Sums(service.metrics());
}

Result<std::string> SlotsJson(ClusterService& service) {
  return service.status().Describe(
      [](const cluster::ClusterNode& node) { return DescribeSlots(node.view()); });
}

Result<std::string> PlanJson(ClusterService& service, const cluster::PlannedChange& change) {
  return service.status().Describe(
      [&](const cluster::ClusterNode& node) { return DescribePlan(node.view(), change); });
}

Result<std::string> LostJson(ClusterService& service) {
  return service.status().Describe([](const cluster::ClusterNode& node) -> Result<std::string> {
    return DescribeLost(node.view(), node.replication().unheld());
  });
}

}  // namespace ffrecord::server
