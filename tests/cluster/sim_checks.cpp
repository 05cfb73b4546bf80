// What has to hold in a simulated cluster: at all times, and once the faults have ended.

#include <algorithm>

#include "libffrecord/base/hex.h"
#include "server/cluster/quota_shares.h"
#include "sim_client.h"
#include "sim_node.h"
#include "simulation.h"

namespace ffrecord::test {

using namespace server::cluster;
using server::MetaStore;
using std::chrono::milliseconds;
using std::chrono::seconds;

std::size_t Simulation::GoodReplicas(const ManifestExtent& extent) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(nodes_, [&](const auto& node) { return node->disk.HasGood(extent); }));
}

NameTable::Wanted Simulation::WantedOf(const ExtentId& id) const {
  NameTable::Wanted wanted;
  for (const auto& [name, truth] : published_) {
    const auto extent = truth.extents.find(id);
    if (extent == truth.extents.end()) continue;
    wanted.extent = extent->second;
    ++wanted.name_count;
    const auto place = truth.places.find(id);
    const bool is_body = !truth.record.body.empty() && truth.record.body.front().id == id;
    if (place != truth.places.end())
      wanted.stripes.push_back(place->second);
    else
      wanted.replicas = std::max(
          wanted.replicas, is_body ? BodyReplicas(truth.record.replicas) : truth.record.replicas);
  }
  return wanted;
}

OwnerList Simulation::OwnersOf(const ExtentId& id) const {
  return server::cluster::OwnersOf(slots_, StripeTable(), WantedOf(id));
}

std::size_t Simulation::MembersHad(const StripePlace& place, const Node* but) const {
  const Stripe stripe = StripeOf(*place.manifest, place.stripe);
  std::size_t count = 0;
  for (std::size_t i = 0; i < stripe.members.size(); ++i)
    count +=
        i != place.member && std::ranges::any_of(nodes_,
                                                 [&](const auto& node) {
                                                   return node.get() != but &&
                                                          node->disk.HasGood(stripe.members[i]);
                                                 })
            ? 1
            : 0;
  return count;
}

bool Simulation::IsHad(const ManifestExtent& extent, const Node* but) const {
  const auto has_it = [&](const auto& node) {
    return node.get() != but && node->disk.HasGood(extent);
  };
  if (std::ranges::any_of(nodes_, has_it)) return true;
  return std::ranges::any_of(WantedOf(extent.id).stripes, [&](const StripePlace& place) {
    return MembersHad(place, but) >= place.data_count();
  });
}

// The store has changed: commit by commit.
void Simulation::NoteChanges() {
  if (state_.revision() == last_revision_) return;
  const auto events = state_.EventsSince("", last_revision_ + 1).value();
  last_revision_ = state_.revision();
  for (auto at = events.begin(); at != events.end();) {
    const auto end = std::find_if(
        at, events.end(), [&](const auto& event) { return event.revision != at->revision; });
    NoteCommit({at, end});
    at = end;
  }
}

void Simulation::NoteCommit(std::span<const MetaStore::Event> events) {
  bool is_leaders = false, changes_names = false, has_generation = false, changes_pending = false;
  const std::string leader = leader_;
  for (const auto& event : events) {
    Trace("  ", event.revision, event.value ? " put " : " del ", event.key);
    const bool is_tombstone = event.key.starts_with(kTombstoneKeys);
    changes_names |= event.key.starts_with(kDatasetKeys);
    has_generation |= event.key == kGenerationKey;
    changes_pending |= event.key.starts_with(kPendingKeys);
    is_leaders |= event.key == kSlotsKey || (is_tombstone && !event.value) ||
                  event.key.starts_with("deletes/upload-");
    NoteKey(event);
  }
  if (is_leaders && author_ != leader)
    Fail(author_ + " has changed " + events.front().key + " while '" + leader + "' leads");
  if (changes_names && !has_generation)
    Fail(events.front().key + " was changed without the generation");
  for (const auto& event : events)
    if (const auto name = NameIn(kDatasetKeys, event.key)) NoteName(*name, event);
  if (changes_names) CheckQuotas();
  if (changes_pending) CheckUploadQuotas();
  for (const auto& event : events)
    if (event.value && event.key.starts_with(kTombstoneKeys))
      CheckTombstone(event.key, tombstones_.at(event.key));
}

void Simulation::NoteKey(const MetaStore::Event& event) {
  const std::string& key = event.key;
  if (key == kSlotsKey) NoteSlots(SlotsRecord::Decode(event.value.value()).value());
  if (key.starts_with(kQuotaKeys) && event.value)
    quota_shares_[key] = QuotaShare::Decode(*event.value).value().size_bytes;
  if (key == kLeaderKey) {
    leader_.clear();
    if (event.value)
      for (const std::byte byte : *event.value) leader_.push_back(static_cast<char>(byte));
  }
  if (const auto upload = UploadOfKey(key)) {
    if (event.value)
      open_uploads_.try_emplace(*upload, now_);
    else
      open_uploads_.erase(*upload);
  }
  if (const auto text = NameIn(kPendingKeys, key)) {
    ExtentId id{};
    if (!FromHex(*text, id)) Fail(key + " names no extent");
    if (event.value)
      pending_[id] = PendingRecord::Decode(*event.value).value();
    else
      pending_.erase(id);
  }
  if (const auto node = NameIn(kNodeKeys, key)) {
    leases_.erase(*node);
    if (event.value) leases_[*node] = {NodeRecord::Decode(*event.value).value().lease, now_};
  }
  if (!key.starts_with(kTombstoneKeys)) return;
  if (event.value) {
    tombstones_[key] = TombstoneRecord::Decode(*event.value).value();
  } else {
    const auto old = tombstones_.extract(key);
    if (!old.empty()) CheckBuried(key, old.mapped());
  }
}

void Simulation::NoteSlots(SlotsRecord slots) {
  if (slots.map.version != slots_.map.version) {
    ++counts_.map_changes;
    last_map_change_ = now_;
    if (slots.map.version != slots_.map.version + 1 && !was_put_back_)
      Fail("the slot map has skipped a version");
    Trace("slot map ", slots.map.version, " of ", slots.map.nodes.size(), " nodes");
    slot_history_[slots.map.version] = {slots.map, std::nullopt};
  }
  slots_ = std::move(slots);
}

void Simulation::NoteName(const std::string& name, const MetaStore::Event& event) {
  if (is_rebuilding_) {
    if (const auto known = published_.find(name); known != published_.end())
      known->second.revision = event.revision;
    return;
  }
  const auto old = published_.extract(name);
  if (event.value) {
    Truth truth;
    truth.record = DatasetRecord::Decode(*event.value).value();
    truth.revision = event.revision;
    truth.manifest = DecodeDatasetManifest(manifests_.at(truth.record.attempt)).value();
    for (const ManifestExtent& extent : truth.record.body) truth.extents[extent.id] = extent;
    ForEachHeldExtent(truth.manifest,
                      [&](const ManifestExtent& extent) { truth.extents[extent.id] = extent; });
    ForEachMember(std::make_shared<const DatasetManifest>(truth.manifest),
                  [&](const ManifestExtent& extent, const StripePlace& place) {
                    truth.places.insert_or_assign(extent.id, place);
                  });
    for (const auto& [id, extent] : truth.extents) {
      ever_published_.insert(id);
      Reference& reference = referenced_[id];
      if (reference.name_count > 0 && reference.extent != extent)
        Fail("extent " + Hex(id) + " is published with two contents");
      reference.extent = extent;
      ++reference.name_count;
    }
    const Truth& now = published_.emplace(name, std::move(truth)).first->second;
    CheckNewName(name, now);
    CheckAttempt(name, now, old.empty() ? 0 : old.mapped().revision);
  }
  if (old.empty()) return;
  for (const auto& [id, extent] : old.mapped().extents)
    if (--referenced_.at(id).name_count == 0) {
      referenced_.erase(id);
      unreferenced_[id] = now_;
    }
}

std::uint64_t Simulation::SizeBelow(const std::string& prefix) const {
  std::uint64_t size_bytes = 0;
  for (const auto& [name, truth] : published_)
    if (name.starts_with(prefix)) size_bytes += truth.record.size_bytes;
  return size_bytes;
}

std::uint64_t Simulation::SharesOf(const std::string& prefix) const {
  std::uint64_t size_bytes = 0;
  for (std::uint32_t i = 0; i < kShareCount; ++i) {
    const auto share = quota_shares_.find(ShareKeys{kQuotaKeys, prefix}.KeyOf(i));
    if (share != quota_shares_.end()) size_bytes += share->second;
  }
  return size_bytes;
}

// What shares have is promised: another name may take it without looking at the names. The names
// that a rebuild adds take none.
void Simulation::CheckQuotas() {
  last_name_change_ = now_;
  for (const auto& [prefix, quota_bytes] : Quotas()) {
    const std::uint64_t size_bytes = SizeBelow(prefix);
    const std::uint64_t promised_bytes = was_put_back_ ? 0 : SharesOf(prefix);
    if (size_bytes + promised_bytes > quota_bytes)
      Fail("the names below " + prefix + " have " + std::to_string(size_bytes) +
           " bytes, and their shares " + std::to_string(promised_bytes) + ", of " +
           std::to_string(quota_bytes));
  }
}

// What all were told when the question was asked is what its answer rests on, or later.
void Simulation::CheckTold(const Node& node, const std::string& name,
                           std::uint64_t asked_revision) {
  const View& view = node.machine->view();
  if (view.mirror.revision() < asked_revision)
    Fail(node.id + " told of names as of " + std::to_string(view.mirror.revision()) +
         ", and was asked at " + std::to_string(asked_revision));
  const NameTable::Name* const found = view.names.Find(name);
  if (found != nullptr && !found->manifest)
    Fail(node.id + " told of " + name + " without its list of files");
  const auto truth = published_.find(name);
  if (truth == published_.end() || truth->second.revision > asked_revision) return;
  if (found == nullptr || found->revision != truth->second.revision)
    Fail(node.id + " told another " + name + " than the one that was there when it was asked");
}

void Simulation::CheckUploadQuotas() {
  if (was_put_back_) return;
  for (const auto& [prefix, quota_bytes] : UploadQuotas()) {
    std::uint64_t size_bytes = 0;
    for (const auto& [id, pending] : pending_)
      if (pending.owner.starts_with(prefix) && open_uploads_.contains(UploadOf(id)) &&
          !ever_published_.contains(id))
        size_bytes += pending.size_bytes;
    if (size_bytes > quota_bytes)
      Fail("uploads below " + prefix + " have " + std::to_string(size_bytes) + " bytes of " +
           std::to_string(quota_bytes));
  }
}

void Simulation::CheckNewName(const std::string& name, const Truth& truth) {
  Trace("published: ", name);
  for (const auto& [id, extent] : truth.extents) {
    if (IsRemoved(id)) Fail(name + " was published with " + Hex(id) + ", which a tombstone names");
    if (!IsHad(extent)) Fail("LOST: extent " + Hex(id) + " is published and nowhere");
    const std::ptrdiff_t held_min = truth.places.contains(id) ? 1 : truth.record.replicas;
    // It was promised that so many hold it: but for a loss just now, they do, or believe so.
    const auto count = std::ranges::count_if(nodes_, [&wanted = extent](const auto& node) {
      return node->disk.Find(wanted.id) == wanted;
    });
    if (now_ - last_loss_ >= seconds(15) && count < held_min)
      Fail(name + " was published with " + std::to_string(count) + " replicas of " + Hex(id) +
           " instead of " + std::to_string(held_min));
  }
  CheckNewStripes(name, truth);
}

// Each member of a stripe is on a node of its own, or could be. One that another name has already
// may be moving: a node can have one member still and another already.
void Simulation::CheckNewStripes(const std::string& name, const Truth& truth) {
  if (now_ - last_loss_ < seconds(15)) return;
  for (const Stripe& stripe : StripesOf(truth.manifest)) {
    if (referenced_.at(stripe.members.front().id).name_count > 1) continue;
    std::set<std::string> holders;
    for (const ManifestExtent& member : stripe.members)
      for (const auto& node : nodes_)
        if (node->disk.Find(member.id) == member) holders.insert(node->id);
    if (holders.size() < stripe.members.size())
      Fail(name + " was published with the " + std::to_string(stripe.members.size()) +
           " members of a stripe on " + std::to_string(holders.size()) + " nodes");
  }
}

// An attempt has its effect once, and only on what its client meant.
void Simulation::CheckAttempt(const std::string& name, const Truth& truth,
                              std::uint64_t old_revision) {
  const std::uint64_t attempt = truth.record.attempt;
  const Intent& intent = intents_.at(attempt);
  using Mode = Publication::Mode;
  if (!effective_.insert(attempt).second) Fail(name + " was published twice by one attempt");
  if (open_uploads_.contains(attempt)) Fail(name + " was published and its attempt is still open");
  if (intent.mode == Mode::kCreate && old_revision != 0)
    Fail(name + " was created though it was there");
  if (intent.mode == Mode::kSwap && old_revision != intent.expected_revision)
    Fail(name + " was replaced though it was another than expected");
}

bool Simulation::IsRemoved(const ExtentId& id) const {
  return std::ranges::any_of(tombstones_,
                             [&](const auto& entry) { return Contains(entry.second.runs, id); });
}

bool Simulation::IsNamedByTombstone(const ExtentId& id) const {
  return std::ranges::any_of(tombstones_,
                             [&](const auto& entry) { return entry.second.Names(id); });
}

// What a name refers to is in no list of what may go.
void Simulation::CheckTombstone(const std::string& key, const TombstoneRecord& record) {
  for (const auto& [id, reference] : referenced_)
    if (Contains(record.runs, id)) Fail(key + " names " + Hex(id) + ", which is published");
}

// It is gone, and so must be what it named: nothing else would ever drop that.
void Simulation::CheckBuried(const std::string& key, const TombstoneRecord& record) {
  for (const auto& node : nodes_)
    for (const auto& [id, replica] : node->disk.replicas)
      if (record.Names(id) && !referenced_.contains(id) && !IsNamedByTombstone(id) &&
          !open_uploads_.contains(UploadOf(id)))
        Fail(key + " was taken away and " + node->id + " still has " + Hex(id));
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
  for (const auto& [id, reference] : referenced_)
    if (!IsHad(reference.extent)) Fail("LOST: extent " + Hex(id) + " is published and nowhere");
}

bool Simulation::IsConverged(std::string* why) {
  const auto is_not = [&](std::string reason) {
    *why = std::move(reason);
    return false;
  };
  const auto& slots = Slots();
  if (slots.map.row_size == 0) return is_not("there is no slot map");
  if (!clients_.front()->has_probed()) return is_not("a name could not be published and removed");
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
  if (count(kPendingKeys) > 0) return is_not("extents are left pending");
  for (const auto& [id, reference] : referenced_) {
    const auto [owners, are_all] = OwnersOf(id);
    for (const auto& node : nodes_) {
      const bool is_owner = std::ranges::find(owners, node->id) != owners.end();
      if (is_owner && !node->disk.HasGood(reference.extent))
        return is_not(node->id + " lacks " + Hex(id) + ", of which it is an owner");
      if (!is_owner && node->disk.replicas.contains(id) && are_all)
        return is_not(node->id + " has " + Hex(id) + ", of which it is no owner");
    }
  }
  for (const auto& node : nodes_) {
    for (const auto& [id, replica] : node->disk.replicas)
      if (!referenced_.contains(id) && !was_put_back_)  // What no record explains is kept.
        return is_not(node->id + " has " + Hex(id) + ", which is garbage" +
                      (node->machine->view().names.Find(id) ? " and believed to be wanted" : ""));
    if (!node->machine->view().lease.IsLeased(Local(*node)))
      return is_not(node->id + " has no lease");
    for (const auto& [name, truth] : published_) {
      const auto* const known = node->machine->view().names.Find(name);
      if (!known || !known->manifest || *known->manifest != truth.manifest)
        return is_not(node->id + " does not know the manifest of " + name);
    }
    const auto& entries = node->machine->view().mirror.entries();
    const auto all = state_.List({"", "", 100'000, 0}).value().entries;
    const bool is_same = std::ranges::equal(
        entries, all, [](const auto& one, const auto& other) { return one.second == other; });
    if (!is_same) return is_not(node->id + " does not know the keys of the store");
  }
  return true;
}

}  // namespace ffrecord::test
