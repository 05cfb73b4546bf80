// A node's knowledge of its cluster, counted.

#include <algorithm>
#include <chrono>
#include <string_view>

#include "server/cluster/removals.h"
#include "server/service/cluster/cluster_service.h"

namespace ffrecord::server {

// Counting a hundred thousand extents takes a tenth of a second, in which this thread does nothing
// else: so they are counted anew only after a change, however often somebody asks.
const ClusterService::ExtentCounts& ClusterService::CountExtents() {
  const cluster::View& view = node_.view();
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
  if (view.mirror.was_listed()) counts.unexplained_count = node_.Unexplained().size();
  return counts_.emplace(std::move(counts));
}

ClusterService::Status ClusterService::MakeStatus() {
  const cluster::View& view = node_.view();
  Status status;
  status.state = state();
  status.is_leased = is_leased();
  status.is_leading = node_.leader().is_leading();
  status.trouble = Trouble();
  if (status.trouble.empty()) status.trouble = node_.leader().trouble();
  if (const auto* const leader = view.mirror.Find(cluster::kLeaderKey)) {
    const auto* const text = reinterpret_cast<const char*>(leader->value.data());
    const std::string_view words(text, leader->value.size());
    status.leader = words.substr(0, words.find(' '));
  }
  status.incomplete_count = view.names.incomplete_count();
  status.extents = CountExtents();
  status.refused_count = node_.replication().refused_count();
  if (adoption_) {
    status.adopting_count = adoption_->left_count();
    status.adoption_trouble = adoption_->trouble();
  }
  for (const auto& [key, entry] : view.mirror.entries())
    if (key.starts_with(cluster::kUploadKeys)) ++status.open_upload_count;
  status.tombstone_count = view.tombstones.all().size();
  status.unheld_count = node_.replication().unheld().size();
  status.refusals = peers_.Refusals();
  status.is_frozen = view.continuity.is_frozen();
  if (status.is_frozen) {
    status.why_frozen = view.continuity.why();
    for (const auto& [text, name] : node_.TrustedNames()) {
      const auto* const found = view.names.Find(text);
      if (found == nullptr
              ? !cluster::WasRemovedSince(view, view.continuity.mark(), text, name.record)
              : found->record != name.record)
        ++status.lost_name_count;
    }
  }
  if (const auto* const key = view.mirror.Find(cluster::kHistoryKey))
    if (const auto record = cluster::HistoryRecord::Decode(key->value))
      status.incarnation = record.value().incarnation;
  for (const std::string& node : view.live)
    if (const auto* const key = view.mirror.Find(cluster::Key(cluster::kNodeKeys, node)))
      if (const auto record = cluster::NodeRecord::Decode(key->value)) {
        status.levels[node] = record.value().level;
        if (record.value().origins_hash.value_or(options_.origins_hash) != options_.origins_hash)
          status.other_origins.push_back(node);
      }
  status.is_moving = view.slots.previous.has_value();
  if (const auto silent = Now() - heard_; silent > options_.lease)
    status.silent_for = std::chrono::duration_cast<std::chrono::milliseconds>(
        heard_ == TimePoint{} ? Now() - started_ : silent);
  return status;
}

}  // namespace ffrecord::server
