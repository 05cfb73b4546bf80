#include "server/service/cluster/status_desk.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include "server/cluster/removals.h"
#include "server/service/cluster/await_answer.h"

namespace ffrecord::server {

using cluster::TimePoint;

Result<std::string> StatusDesk::Describe(
    const std::function<Result<std::string>(const cluster::ClusterNode&)>& describe) {
  return AwaitAnswer<std::string>([&](NodeMachines::Done<std::string> done) {
    const bool is_posted = machines_.Post([this, describe, done] {
      if (!machines_.is_enrolled()) return done(machines_.NotTakingPart());
      done(describe(machines_.node()));
    });
    if (!is_posted) done(NodeMachines::Stopped());
  });
}

Result<NodeStatus> StatusDesk::GetStatus() {
  return AwaitAnswer<NodeStatus>([&](NodeMachines::Done<NodeStatus> done) {
    if (!machines_.Post([this, done] { done(MakeStatus()); })) done(NodeMachines::Stopped());
  });
}

// Counting a hundred thousand extents takes a tenth of a second, in which this thread does nothing
// else: so they are counted anew only after a change, however often somebody asks.
const ExtentCounts& StatusDesk::CountExtents() {
  const cluster::View& view = machines_.view();
  // Before what it is of: a change meanwhile is seen the next time.
  ExtentCounts::Basis basis;
  basis.names_change = view.names.change_count();
  basis.revision = view.mirror.revision();
  basis.extents_change = view.extents.ChangeCount();
  basis.map_version = view.map_version();
  basis.was_listed = view.mirror.was_listed();
  basis.live = view.live;
  if (counts_ && counts_->basis == basis) return *counts_;
  ExtentCounts counts;
  counts.basis = std::move(basis);
  for (const auto& [id, wanted] : view.names.wanted()) {
    const auto owners = view.OwnersOf(wanted);
    const auto up_count = std::ranges::count_if(
        owners.nodes, [&](const std::string& owner) { return view.IsLive(owner); });
    const bool is_lacking =
        !owners.are_all || static_cast<std::size_t>(up_count) < owners.nodes.size();
    counts.lacking_count += is_lacking ? 1 : 0;
    counts.alone_count += up_count == 0 && !view.IsInReach(wanted) ? 1 : 0;
    const bool is_owner = std::ranges::find(owners.nodes, view.node) != owners.nodes.end();
    if (!is_owner || view.extents.Find(id)) continue;
    ++counts.missing_count;
    counts.missing_bytes += wanted.extent.size_bytes;
  }
  for (const ManifestExtent& extent : view.extents.All()) {
    const auto* const wanted = view.names.Find(extent.id);
    if (wanted != nullptr && !view.IsOwner(*wanted)) ++counts.surplus_count;
  }
  if (view.mirror.was_listed()) counts.unexplained_count = machines_.node().Unexplained().size();
  return counts_.emplace(std::move(counts));
}

NodeStatus StatusDesk::MakeStatus() {
  const cluster::View& view = machines_.view();
  const cluster::ClusterNode& node = machines_.node();
  NodeStatus status;
  status.state = shown_.state();
  status.is_leased = shown_.is_leased();
  status.is_leading = node.leader().is_leading();
  status.trouble = machines_.Trouble();
  if (status.trouble.empty()) status.trouble = node.leader().trouble();
  if (const auto* const leader = view.mirror.Find(cluster::kLeaderKey)) {
    const auto* const text = reinterpret_cast<const char*>(leader->value.data());
    const std::string_view words(text, leader->value.size());
    status.leader = words.substr(0, words.find(' '));
  }
  status.incomplete_count = view.names.incomplete_count();
  status.extents = CountExtents();
  status.refused_count = node.replication().refused_count();
  AddAdoption(status);
  for (const auto& [key, entry] : view.mirror.entries())
    if (key.starts_with(cluster::kUploadKeys)) ++status.open_upload_count;
  status.tombstone_count = view.tombstones.all().size();
  status.unheld_count = node.replication().unheld().size();
  status.refusals = peers_.Refusals();
  AddTrust(status);
  AddNodes(status);
  status.is_moving = view.slots.previous.has_value();
  AddSilence(status);
  return status;
}

void StatusDesk::AddAdoption(NodeStatus& status) const {
  if (adoption_ == nullptr) return;
  status.adopting_count = adoption_->left_count();
  status.adoption_trouble = adoption_->trouble();
}

void StatusDesk::AddTrust(NodeStatus& status) const {
  const cluster::View& view = machines_.view();
  if (const auto* const key = view.mirror.Find(cluster::kHistoryKey))
    if (const auto record = cluster::HistoryRecord::Decode(key->value))
      status.incarnation = record.value().incarnation;
  status.is_frozen = view.continuity.is_frozen();
  if (!status.is_frozen) return;
  status.why_frozen = view.continuity.why();
  for (const auto& [text, name] : machines_.node().TrustedNames()) {
    const auto* const found = view.names.Find(text);
    if (found == nullptr
            ? !cluster::WasRemovedSince(view, view.continuity.mark(), text, name.record)
            : found->record != name.record)
      ++status.lost_name_count;
  }
}

void StatusDesk::AddNodes(NodeStatus& status) const {
  const cluster::View& view = machines_.view();
  for (const std::string& node : view.live)
    if (const auto* const key = view.mirror.Find(cluster::Key(cluster::kNodeKeys, node)))
      if (const auto record = cluster::NodeRecord::Decode(key->value)) {
        status.levels[node] = record.value().level;
        if (record.value().origins_hash.value_or(options_.origins_hash) != options_.origins_hash)
          status.other_origins.push_back(node);
      }
}

void StatusDesk::AddSilence(NodeStatus& status) const {
  const TimePoint heard = carrier_.heard();
  const auto silent = Clock::now() - heard;
  if (silent <= options_.lease) return;
  status.silent_for = std::chrono::duration_cast<std::chrono::milliseconds>(
      heard == TimePoint{} ? Clock::now() - started_ : silent);
}

}  // namespace ffrecord::server
