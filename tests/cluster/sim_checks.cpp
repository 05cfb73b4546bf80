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

std::size_t Simulation::GoodReplicas(const ExtentId& id) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(nodes_, [&](const auto& node) { return node->disk.HasGood(id); }));
}

// The most that a name asks for.
std::size_t Simulation::WantedReplicas(const ExtentId& id) const {
  std::size_t replicas = 0;
  for (const auto& [name, truth] : published_) {
    if (!truth.extents.contains(id)) continue;
    const bool is_body = truth.record.body.front().id == id;
    replicas = std::max<std::size_t>(
        replicas, is_body ? BodyReplicas(truth.record.replicas) : truth.record.replicas);
  }
  return replicas;
}

// The store has changed: commit by commit.
void Simulation::NoteChanges() {
  const auto events = state_.EventsSince("", last_revision_ + 1).value();
  last_revision_ = state_.revision();
  for (auto at = events.begin(); at != events.end();) {
    const auto end = std::find_if(
        at, events.end(), [&](const auto& event) { return event.revision != at->revision; });
    NoteCommit({at, end});
    at = end;
  }
  CheckLeases();
}

void Simulation::NoteCommit(std::span<const MetaStore::Event> events) {
  for (const auto& event : events) {
    Trace("  ", event.revision, event.value ? " put " : " del ", event.key);
    if (event.key == kSlotsKey) NoteSlots(SlotsRecord::Decode(event.value.value()).value());
    if (const auto name = NameIn(kDatasetKeys, event.key)) NoteName(*name, event);
  }
}

void Simulation::NoteSlots(SlotsRecord slots) {
  if (slots.map.version != slots_.map.version) {
    ++counts_.map_changes;
    if (slots.map.version != slots_.map.version + 1) Fail("the slot map has skipped a version");
    Trace("slot map ", slots.map.version, " of ", slots.map.nodes.size(), " nodes");
  }
  slots_ = std::move(slots);
}

void Simulation::NoteName(const std::string& name, const MetaStore::Event& event) {
  const auto old = published_.extract(name);
  if (event.value) {
    Truth truth{DatasetRecord::Decode(*event.value).value(), {}, {}, event.revision};
    truth.manifest = DecodeDatasetManifest(manifests_.at(truth.record.attempt)).value();
    for (const ManifestExtent& extent : truth.record.body) truth.extents.insert(extent.id);
    for (const ManifestFile& file : truth.manifest.files)
      for (const ManifestExtent& extent : file.extents) truth.extents.insert(extent.id);
    for (const ExtentId& id : truth.extents) ++referenced_[id];
    CheckNewName(name, published_.emplace(name, std::move(truth)).first->second);
  }
  if (old.empty()) return;
  for (const ExtentId& id : old.mapped().extents)
    if (--referenced_.at(id) == 0) {
      referenced_.erase(id);
      unreferenced_[id] = now_;
    }
}

void Simulation::CheckNewName(const std::string& name, const Truth& truth) {
  Trace("published: ", name);
  for (const ExtentId& id : truth.extents) {
    if (unreferenced_.contains(id)) Fail("extent " + Hex(id) + " is published again");
    const std::size_t count = GoodReplicas(id);
    if (count == 0) Fail("LOST: extent " + Hex(id) + " is published and nowhere");
    // It was promised that so many hold it: but for a loss just now, they do.
    if (now_ - last_loss_ >= seconds(15) && count < truth.record.replicas)
      Fail(name + " was published with " + std::to_string(count) + " replicas of " + Hex(id) +
           " instead of " + std::to_string(+truth.record.replicas));
  }
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
  for (const auto& [id, count] : referenced_)
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
  const auto& slots = Slots();
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
  for (const auto& [id, name_count] : referenced_) {
    const std::size_t replicas = WantedReplicas(id);
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
      if (!referenced_.contains(id))
        return is_not(node->id + " has " + Hex(id) + ", which is garbage" +
                      (node->machine->view().names.Find(id) ? " and believed to be wanted" : ""));
    if (!node->machine->view().lease.IsLeased(now_)) return is_not(node->id + " has no lease");
  }
  return true;
}

}  // namespace ffrecord::test
