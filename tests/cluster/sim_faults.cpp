// What goes wrong in a simulated cluster. Everything is drawn from the seed.

#include <algorithm>
#include <utility>

#include "libffrecord/base/hex.h"
#include "sim_node.h"
#include "simulation.h"

namespace ffrecord::test {

using namespace server::cluster;
using server::MetaStore;
using std::chrono::milliseconds;
using std::chrono::seconds;

void Simulation::PlanFault() {
  if (is_healing_) return;
  ++counts_.faults;
  Node& node = *nodes_[Random(nodes_.size())];
  Node& other = *nodes_[Random(nodes_.size())];
  const auto cut = [this](const std::string& from, const std::string& to) {
    Cut(from, to, Between(300, 15'000));
  };
  switch (Random(14)) {
    case 0:
    case 1:
      if (!node.is_up) break;
      Crash(node);
      At(Between(200, 20'000), [this, &node] {
        if (!node.is_up && !is_healing_) Start(node);
      });
      break;
    case 2:
    case 3:
      Pause(node, Between(200, 10'000));
      break;
    case 4:
      cut(node.id, other.id);
      break;
    case 5:
      cut(node.id, other.id);
      cut(other.id, node.id);
      break;
    case 6:
      cut(node.id, "meta");
      if (!node.store) break;
      node.store->BreakWatches();
      node.store_wake = now_;
      break;
    case 7:
      Trace("the store forgets what was before ", state_.revision());
      state_.CompactTo(state_.revision());
      break;
    case 8:
      if (Random(4) == 0) EndLease(node);
      break;
    case 9:
      Rot(node);
      break;
    case 10:
      Wipe(node);
      break;
    case 11:
      ChangeMembers();
      break;
    case 12:
      if (Node* const leading = LeadingNode()) EndLease(*leading);
      break;
    case 13:
      if (Node* const leading = LeadingNode()) Pause(*leading, Between(3'500, 9'000));
      break;
  }
  At(Between(300, 6'000), [this] { PlanFault(); });
}

void Simulation::Cut(const std::string& from, const std::string& to, Duration time) {
  Trace("cut from ", from, " to ", to);
  cuts_.emplace(from, to);
  At(time, [this, from, to] { cuts_.erase({from, to}); });
}

// The store believes a lease to be over before its time, as after a jump of its clock.
void Simulation::EndLease(const Node& node) {
  const auto found = leases_.find(node.id);
  if (found == leases_.end()) return;
  Trace(node.id, " loses its lease");
  ended_by_force_[found->second.lease] = now_;
  state_.RevokeLease(found->second.lease);
}

Simulation::Node* Simulation::LeadingNode() {
  const auto found =
      std::ranges::find_if(nodes_, [&](const auto& node) { return node->owner == leader_; });
  return found == nodes_.end() ? nullptr : found->get();
}

void Simulation::Provoke(Node& node) {
  if (is_healing_ || !Chance(provocations_)) return;
  Node& other = *nodes_[Random(nodes_.size())];
  const Duration time = Between(100, 7'000);
  switch (Random(8)) {
    case 0:
      // Not now: it walks over nodes.
      At(Between(0, 20), [this] { ChangeMembers(); });
      break;
    case 1:
    case 2:
      Cut(node.id, other.id, time);
      break;
    case 3:
      Cut(other.id, node.id, time);
      break;
    case 4:
      Cut(node.id, "meta", time);
      break;
    case 5:
    case 6:
      if (&other != &node) Pause(other, time);
      break;
    case 7:
      At(Between(0, 20), [this, &node] { EndLease(node); });
      break;
  }
}

// The process stops before it carries out what it has decided.
bool Simulation::Stalls(const std::vector<Action>& actions) {
  const bool is_important = std::ranges::any_of(actions, [](const Action& action) {
    return std::holds_alternative<MetaStore::Commit>(action.call) ||
           std::holds_alternative<DropExtent>(action.call);
  });
  return is_important && !is_healing_ && Chance(stalls_);
}

// One loss at a time, and never the last good replica that is where it belongs: the cluster
// promises no more than that. A node that pauses may have decided before to drop its own.
bool Simulation::MayLose(const Node& node, const ExtentId& id) {
  // What is not published yet: its client may have counted on it already.
  if (!referenced_.contains(id)) return unreferenced_.contains(id);
  const auto is_safe = [&](const ExtentId& other_id) {
    const auto owners = OwnersOf(other_id).nodes;
    return std::ranges::any_of(nodes_, [&](const auto& other) {
      return other.get() != &node && now_ >= other->paused_until &&
             other->disk.HasGood(referenced_.at(other_id).extent) &&
             std::ranges::find(owners, other->id) != owners.end();
    });
  };
  // Nor too many members of a stripe.
  const auto can_be_computed = [&](const StripePlace& place) {
    std::size_t count = 0;
    for (const ManifestExtent& member : StripeOf(*place.manifest, place.stripe).members)
      if (member.id != id && is_safe(member.id)) ++count;
    return count >= place.data_count();
  };
  return is_safe(id) || std::ranges::any_of(WantedOf(id).stripes, can_be_computed);
}

void Simulation::Rot(Node& node) {
  if (was_put_back_ || now_ - last_loss_ < seconds(15) || node.disk.replicas.empty()) return;
  auto at = node.disk.replicas.begin();
  std::advance(at, static_cast<std::ptrdiff_t>(Random(node.disk.replicas.size())));
  if (!MayLose(node, at->first)) return;
  Trace(node.id, ": ", Hex(at->first), " rots");
  last_loss_ = now_;
  at->second.is_rotten = true;
  // The scrubber comes by at some time.
  const ExtentId id = at->first;
  At(Between(500, 20'000), [this, &node, id] {
    const auto found = node.disk.replicas.find(id);
    if (found != node.disk.replicas.end()) FindOut(found->second);
  });
}

// Until then others count on it: it is lost now.
void Simulation::FindOut(SimDisk::Replica& replica) {
  if (!replica.is_rotten || std::exchange(replica.is_known_bad, true)) return;
  last_loss_ = replica.known_since = now_;
}

// A name may ask for one replica where there were more, or its one owner change, and keep the one
// that rots: then a fault took the last one, which faults do not. Its node may have found that out
// since it promised to keep it.
void Simulation::SpareLast(const ExtentId& id) {
  if (const auto wanted = WantedOf(id); wanted.replicas != 1 || !wanted.stripes.empty()) return;
  const auto owners = Slots().OwnersOf(id, 1);
  if (owners.empty()) return;
  SimDisk& disk = Find(owners.front())->disk;
  const auto found = disk.replicas.find(id);
  if (found == disk.replicas.end()) return;
  SimDisk::Replica& last = found->second;
  if (!last.is_known_bad || now_ - last.known_since <= kPromiseAge)
    last.is_rotten = last.is_known_bad = false;
}

void Simulation::Wipe(Node& node) {
  if (was_put_back_ || now_ - last_loss_ < seconds(15)) return;
  for (const auto& [id, replica] : node.disk.replicas)
    if (!MayLose(node, id)) return;
  Crash(node);
  Trace(node.id, " is wiped");
  last_loss_ = now_;
  node.disk.replicas.clear();
  At(Between(200, 3'000), [this, &node] {
    if (!node.is_up && !is_healing_) Start(node);
  });
}

void Simulation::PutMember(const std::string& id, MemberRecord::State state) {
  MemberRecord record;
  record.state = state;
  record.domain = "d-" + id;
  (void)state_.TryCommit({{}, {{Key(kMemberKeys, id), record.Encode()}}, {}}, now_);
}

// An operator adds a node, drains one, or takes one back.
void Simulation::ChangeMembers() {
  if (is_healing_) return;
  if (nodes_.size() < static_cast<std::size_t>(options_.node_count) + 2 && Chance(0.4)) {
    auto node = std::make_unique<Node>();
    node->id = "n" + std::to_string(nodes_.size() + 1);
    return AddNode(std::move(node));
  }
  const std::string& id = nodes_[Random(nodes_.size())]->id;
  const auto entry = state_.Get(Key(kMemberKeys, id));
  if (!entry) return;  // The store was put back to before it joined.
  const auto record = MemberRecord::Decode(entry->value);
  const bool is_in = record.value().state == MemberRecord::State::kIn;
  Trace(id, (is_in ? " is drained" : " is in again"));
  PutMember(id, is_in ? MemberRecord::State::kDraining : MemberRecord::State::kIn);
}

void Simulation::Heal() {
  Trace("everything heals");
  is_healing_ = true;
  cuts_.clear();
  for (auto& node : nodes_) {
    if (!node->is_up) Start(*node);
    node->paused_until = now_;
    Resume(*node);
    for (auto& [id, replica] : node->disk.replicas) FindOut(replica);
  }
  // Nodes that a store that was put back does not have join again.
  for (auto& node : nodes_)
    if (!state_.Get(Key(kMemberKeys, node->id))) PutMember(node->id, MemberRecord::State::kIn);
  // Enough nodes for what was published.
  const auto is_in = [&](const std::string& id) {
    const auto entry = state_.Get(Key(kMemberKeys, id));
    return MemberRecord::Decode(entry->value).value().state == MemberRecord::State::kIn;
  };
  auto in_count = std::ranges::count_if(nodes_, [&](const auto& node) { return is_in(node->id); });
  for (auto& node : nodes_) {
    if (in_count >= 3) break;
    if (is_in(node->id)) continue;
    PutMember(node->id, MemberRecord::State::kIn);
    ++in_count;
  }
}

}  // namespace ffrecord::test
