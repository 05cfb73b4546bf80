// What has to hold in a simulated cluster: at all times, and once the faults have ended.

#include <algorithm>

#include "libffrecord/base/hex.h"
#include "sim_client.h"
#include "sim_node.h"
#include "simulation.h"

namespace ffrecord::test {

using namespace server::cluster;
using server::MetaStore;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

std::set<ExtentId> ExtentsOf(const DatasetRecord& record, const DatasetManifest& manifest) {
  std::set<ExtentId> ids;
  for (const ManifestExtent& extent : record.body) ids.insert(extent.id);
  for (const ManifestFile& file : manifest.files)
    for (const ManifestExtent& extent : file.extents) ids.insert(extent.id);
  return ids;
}

}  // namespace

std::map<std::string, Simulation::Truth> Simulation::Published() {
  std::map<std::string, Truth> published;
  const auto page = state_.List({std::string(kDatasetKeys), "", 100'000, 0}).value();
  for (const auto& entry : page.entries) {
    auto record = DatasetRecord::Decode(entry.value);
    if (!record) {
      Fail(entry.key + " cannot be read");
      continue;
    }
    Truth truth{std::move(record).value(), {}, entry.mod_revision};
    truth.manifest = DecodeDatasetManifest(manifests_.at(truth.record.attempt)).value();
    published.emplace(*NameIn(kDatasetKeys, entry.key), std::move(truth));
  }
  return published;
}

SlotsRecord Simulation::Slots() {
  const auto entry = state_.Get(std::string(kSlotsKey));
  return entry ? SlotsRecord::Decode(entry->value).value() : SlotsRecord{};
}

std::size_t Simulation::GoodReplicas(const ExtentId& id) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(nodes_, [&](const auto& node) { return node->disk.HasGood(id); }));
}

// The store has changed.
void Simulation::NoteChanges() {
  if (const auto events = state_.EventsSince("", last_revision_ + 1); options_.is_traced && events)
    for (const auto& event : *events)
      Trace("  " + std::to_string(event.revision) + (event.value ? " put " : " del ") + event.key);
  last_revision_ = state_.revision();
  const auto slots = Slots();
  if (slots.map.version != last_map_version_) {
    ++counts_.map_changes;
    if (slots.map.version != last_map_version_ + 1) Fail("the slot map has skipped a version");
    last_map_version_ = slots.map.version;
    Trace("slot map " + std::to_string(last_map_version_) + " of " +
          std::to_string(slots.map.nodes.size()) + " nodes");
  }
  const auto before = std::exchange(published_, Published());
  std::set<ExtentId> referenced;
  for (const auto& [name, truth] : published_)
    referenced.merge(ExtentsOf(truth.record, truth.manifest));
  for (const ExtentId& id : referenced_)
    if (!referenced.contains(id)) unreferenced_[id] = now_;
  for (const ExtentId& id : referenced)
    if (unreferenced_.contains(id)) Fail("extent " + Hex(id) + " is published again");
  referenced_ = std::move(referenced);
  for (const auto& [name, truth] : published_) {
    const auto old = before.find(name);
    if (old != before.end() && old->second.revision == truth.revision) continue;
    Trace("published: " + name);
    // It was promised that so many hold it: but for a loss just now, they do.
    if (now_ - last_loss_ < seconds(15)) continue;
    for (const ExtentId& id : ExtentsOf(truth.record, truth.manifest))
      if (GoodReplicas(id) < truth.record.replicas)
        Fail(name + " was published with " + std::to_string(GoodReplicas(id)) + " replicas of " +
             Hex(id) + " instead of " + std::to_string(+truth.record.replicas));
  }
  CheckPublished();
  CheckLeases();
}

// All clients create the same names: one of them wins each, for good.
void Simulation::NoteSharedWinner(const std::string& name, std::uint64_t attempt) {
  const auto [winner, is_first] = shared_winners_.emplace(name, attempt);
  if (winner->second != attempt) Fail(name + " was acknowledged to two clients");
  const auto found = published_.find(name);
  if (found == published_.end() || found->second.record.attempt != attempt)
    Fail(name + " was acknowledged and is another's");
}

void Simulation::CheckPublished() {
  for (const ExtentId& id : referenced_)
    if (GoodReplicas(id) == 0) Fail("LOST: extent " + Hex(id) + " is published and nowhere");
}

// Who believes in its lease has it.
void Simulation::CheckLeases() {
  for (const auto& node : nodes_) {
    if (!node->is_up || now_ < node->paused_until) continue;
    const auto& lease = node->machine->view().lease;
    const auto entry = state_.Get(Key(kNodeKeys, node->id));
    // The store has ended the lease by force, which no holder can know.
    if (lease.IsLeased(now_) && !entry) continue;
    if (lease.IsLeased(now_) && NodeRecord::Decode(entry->value).value().epoch != lease.epoch())
      Fail(node->id + " believes in a lease that another start of it has");
  }
}

void Simulation::CheckDrop(const Node& node, const ExtentId& id) {
  if (referenced_.contains(id) && GoodReplicas(id) == 0)
    Fail("LOST: " + node.id + " drops the last replica of " + Hex(id));
  const auto gone = unreferenced_.find(id);
  // One in excess may go at any time: the node does not know yet that the name is gone.
  const bool is_excess = node.machine->view().names.Find(id) != nullptr;
  if (gone != unreferenced_.end() && !is_excess && now_ - gone->second < SimClient::kGrace)
    Fail(node.id + " drops " + Hex(id) + " before its grace is over");
  if (!node.machine->view().lease.IsLeased(now_))
    Fail(node.id + " drops " + Hex(id) + " without a lease");
}

bool Simulation::IsConverged(std::string* why) {
  const auto is_not = [&](std::string reason) {
    *why = std::move(reason);
    return false;
  };
  const auto slots = Slots();
  if (slots.map.row_size == 0) return is_not("there is no slot map");
  if (slots.previous) {
    std::string unfilled;
    for (const auto& node : nodes_)
      if (!node->machine->replication().IsFilled(node->machine->view(), slots.map.version))
        unfilled += " " + node->id + (node->machine->view().names.IsComplete() ? "" : " (names)");
    return is_not("the previous slot map is still kept; not filled:" + unfilled);
  }
  if (!state_.Get(std::string(kLeaderKey))) return is_not("nobody leads");
  const auto count = [&](std::string_view prefix) {
    return state_.List({std::string(prefix), "", 10, 0}).value().entries.size();
  };
  if (count(kTombstoneKeys) > 0) return is_not("tombstones are left");
  if (count(kUploadKeys) > 0) return is_not("uploads are left open");
  std::map<ExtentId, std::size_t> wanted;
  for (const auto& [name, truth] : published_) {
    for (const ManifestExtent& extent : truth.record.body)
      wanted[extent.id] =
          std::max<std::size_t>(wanted[extent.id], BodyReplicas(truth.record.replicas));
    for (const ManifestFile& file : truth.manifest.files)
      for (const ManifestExtent& extent : file.extents)
        wanted[extent.id] = std::max<std::size_t>(wanted[extent.id], truth.record.replicas);
  }
  for (const auto& [id, replicas] : wanted) {
    const auto owners = slots.OwnersOf(id, replicas);
    for (const auto& node : nodes_) {
      const bool is_owner = std::ranges::find(owners, node->id) != owners.end();
      if (is_owner && !node->disk.HasGood(id))
        return is_not(node->id + " lacks " + Hex(id) + ", of which it is an owner");
      if (!is_owner && node->disk.replicas.contains(id) && owners.size() >= replicas)
        return is_not(node->id + " has " + Hex(id) + ", of which it is no owner");
    }
  }
  for (const auto& node : nodes_) {
    for (const auto& [id, replica] : node->disk.replicas)
      if (!wanted.contains(id))
        return is_not(node->id + " has " + Hex(id) + ", which is garbage" +
                      (node->machine->view().names.Find(id) ? " and believed to be wanted" : ""));
    if (!node->machine->view().lease.IsLeased(now_)) return is_not(node->id + " has no lease");
  }
  return true;
}

}  // namespace ffrecord::test
