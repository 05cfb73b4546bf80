// The store of a simulated cluster is put back to an older state, behind its back.

#include <algorithm>

#include "libffrecord/base/hex.h"
#include "sim_node.h"
#include "simulation.h"

namespace ffrecord::test {

using namespace server::cluster;
namespace cluster = server::cluster;
using server::MetaStore;
using std::chrono::seconds;

namespace {

// By then each request of a client has ended, and what was removed may be gone from all disks.
constexpr seconds kClientsEnd{60};
// Of faults, while nobody has confirmed the older state.
constexpr seconds kUnconfirmed{20};
constexpr seconds kNoticed{20};

}  // namespace

// The names are looked at only as the mark moves: they are of its revision.
void Simulation::KeepMark(Node& node) {
  const HistoryMark& mark = node.machine->view().continuity.mark();
  if (!options_.is_restored || mark == node.mark) return;
  node.mark = mark;
  node.known = node.machine->TrustedNames();
}

bool Simulation::RunRestored() {
  are_clients_over_ = true;
  if (!RunUntil(now_ + kClientsEnd)) return false;
  PutBack();
  if (!RunUntil(now_ + kUnconfirmed)) return false;
  Heal();
  if (!AwaitIncarnation()) return !violation_;
  if (!RunUntil(now_ + seconds(2))) return false;
  Rebuild();
  if (!RunUntil(now_ + seconds(2))) return false;
  CheckPublished();
  ConfirmHistory();
  return !violation_;
}

void Simulation::PutBack() {
  Trace("the store is put back from ", state_.revision(), " to ", snapshot_->revision());
  for (const auto& [node, lease] : leases_) ended_by_force_[lease.lease] = now_;
  // The older state may have a lease again whose key is gone: until its node looks, it renews it.
  for (const auto& node : nodes_)
    if (node->machine) ended_by_force_[node->machine->view().lease.lease()] = now_;
  // Up to this time: what nodes ask when their watches break is of now.
  for (auto& node : nodes_) RunStore(*node);
  const std::uint64_t gap = state_.revision() - snapshot_->revision();
  const bool goes_on = LacksKeysOf(state_) && Random(2) == 0;
  state_.PutBack(*snapshot_, now_);
  if (goes_on) GoOnFor(Random(2 * gap + 1));
  last_revision_ = store_revision_ = state_.revision();
  put_back_at_ = now_;
  was_put_back_ = true;
  leader_.clear();
  leases_.clear();
  open_uploads_.clear();
  tombstones_.clear();
  slots_ = {};
  const auto keys = state_.List({"", "", 100'000, 0});
  for (const auto& entry : keys.value().entries)
    if (!entry.key.starts_with(kDatasetKeys)) NoteKey({entry.key, entry.value, entry.mod_revision});
  for (auto& node : nodes_) {
    if (!node->store) continue;
    node->store->BreakWatches();
    node->store_wake = now_;
  }
}

// The older state lacks something that nodes have to tell it by.
bool Simulation::LacksKeysOf(const server::MetaState& newer) const {
  const auto keys = newer.List({"", "", 100'000, 0});
  return std::ranges::any_of(keys.value().entries, [&](const MetaStore::KeyValue& key) {
    return AnchorOf(key).revision > snapshot_->revision();
  });
}

// As when leases have ended before any node looks: the store has so many more revisions.
void Simulation::GoOnFor(std::uint64_t revisions) {
  const std::string key = Key(kNodeKeys, "gone");
  for (std::uint64_t i = 0; i < revisions; ++i) (void)state_.TryCommit({{}, {{key, {}}}, {}}, now_);
  (void)state_.TryCommit({{}, {}, {key}}, now_);
}

bool Simulation::IsUnconfirmed() const {
  const auto key = state_.Get(kHistoryKey);
  return key && !HistoryRecord::Decode(key->value).value().is_confirmed;
}

// False: nothing had changed since the older state, or nobody has noticed, which is a violation.
bool Simulation::AwaitIncarnation() {
  const TimePoint end = now_ + kNoticed;
  while (!IsUnconfirmed() && now_ < end)
    if (!RunUntil(now_ + seconds(1))) return false;
  if (IsUnconfirmed()) return true;
  Fail("nobody has noticed that the store was put back");
  return false;
}

// The operator asks some node, until it has done it.
void Simulation::Rebuild() {
  is_rebuilding_ = true;
  for (int tries = 0; tries < 5 && !rebuilt_; ++tries) {
    Node& node = *nodes_[Random(nodes_.size())];
    cluster::Rebuild::Request request;
    request.publishes = request.removes_returned = true;
    request.deadline = Local(node) + seconds(20);
    (void)node.machine->Begin(request);
    Step(node, nullptr);
    for (int i = 0; i < 25 && !rebuilt_; ++i)
      if (!RunUntil(now_ + seconds(1))) return;
  }
  is_rebuilding_ = false;
  if (!rebuilt_) return Fail("the names could not be published again");
  // Every node that has seen what was acknowledged is up: so all of it is there again.
  for (const auto& [name, truth] : published_) {
    const auto key = state_.Get(Key(kDatasetKeys, name));
    if (!key || key->value != truth.record.Encode())
      return Fail("LOST: " + name + " was published and is not there after a rebuild");
  }
  const auto names = state_.List({std::string(kDatasetKeys), "", 10'000, 0});
  for (const auto& entry : names.value().entries)
    if (!published_.contains(*NameIn(kDatasetKeys, entry.key)))
      Fail(entry.key + " was removed and is there after a rebuild");
}

void Simulation::TakeRebuilt(Node& node) {
  for (auto& rebuilt : node.machine->TakeRebuilt())
    if (rebuilt.result) rebuilt_ = std::move(rebuilt.result).value();
}

void Simulation::ConfirmHistory() {
  const auto key = state_.Get(kHistoryKey);
  auto record = HistoryRecord::Decode(key->value).value();
  record.Confirm(key->mod_revision);
  (void)state_.TryCommit({{}, {{std::string(kHistoryKey), record.Encode()}}, {}}, now_);
  put_back_at_.reset();
}

}  // namespace ffrecord::test
