#include "server/service/cluster/shown_state.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "libffrecord/format/slot_map.h"
#include "server/cluster/rebuild.h"

namespace ffrecord::server {

void ShownState::Begin(ClusterState state) {
  for (const auto& [text, name] : *state.names)
    if (name.manifest) ChangeName(text, nullptr, name.manifest);
  map_version_ = AdvertisedVersion(state);
  const std::lock_guard lock(mutex_);
  state_ = std::make_shared<const ClusterState>(std::move(state));
}

std::uint32_t ShownState::AdvertisedVersion(const ClusterState& state) const {
  const bool is_alone = options_.adopts && state.slots->map.Find(options_.node) == SlotMap::kNoNode;
  return is_alone ? 0 : state.map_version();
}

void ShownState::NoteLease(cluster::TimePoint now, const cluster::View& view) {
  const bool leased = view.lease.IsLeased(now);
  if (leased == is_leased_) return;
  is_leased_ = leased;
  spdlog::info("event={} node={}", leased ? "lease_held" : "lease_lost", options_.node);
}

void ShownState::NoteTrust(const cluster::Continuity& continuity) {
  if (continuity.is_frozen() == was_frozen_) return;
  was_frozen_ = continuity.is_frozen();
  if (was_frozen_)
    spdlog::error("event=metadata_put_back node={} why=\"{}\"", options_.node, continuity.why());
  else
    spdlog::info("event=metadata_trusted node={}", options_.node);
}

ClusterStatePtr ShownState::Refresh(cluster::TimePoint now, cluster::ClusterNode& node,
                                    const std::optional<net::ClusterId>& cluster) {
  const cluster::View& view = node.view();
  NoteLease(now, view);
  const bool has_names = view.names.change_count() != names_seen_;
  NoteTrust(view.continuity);
  if (!view.mirror.was_listed() || (view.mirror.revision() == revision_seen_ && !has_names &&
                                    view.continuity.mark() == mark_seen_))
    return nullptr;
  mark_seen_ = view.continuity.mark();
  names_seen_ = view.names.change_count();
  revision_seen_ = view.mirror.revision();
  const ClusterStatePtr before = state();
  const std::shared_ptr<ClusterState> after = Following(*before, node, has_names);
  after->cluster = cluster.value_or(before->cluster);
  if (after->names != before->names) ChangeReferences(*before->names, *after->names);
  map_version_ = AdvertisedVersion(*after);
  const std::lock_guard lock(mutex_);
  state_ = after;
  return after;
}

// The state after `before`, but for the cluster's id.
std::shared_ptr<ClusterState> ShownState::Following(const ClusterState& before,
                                                    cluster::ClusterNode& node,
                                                    bool has_names) const {
  const cluster::View& view = node.view();
  auto after = std::make_shared<ClusterState>();
  after->names = before.names;
  if (has_names || before.is_from_cache) {
    auto changed = node.TakeChangedNames();
    // Names that were known from before the start may be gone.
    if (before.is_from_cache)
      for (const auto& [text, name] : *before.names) changed.insert(text);
    after->names = NamesOf(view.names, *before.names, changed);
  }
  after->slots =
      before.slots->map == view.slots.map && before.slots->previous == view.slots.previous
          ? before.slots
          : std::make_shared<const cluster::SlotsRecord>(view.slots);
  after->nodes = NodesOf(view, before.nodes);
  after->waiting = WaitingOf(view, after->nodes);
  after->level = node.level();
  after->ancestors = view.continuity.ancestors();
  after->may_lack_names = cluster::MayLackNames(view);
  return after;
}

void ShownState::ChangeName(const std::string& name, const Manifest& before,
                            const Manifest& after) {
  references_.Change(name, before.get(), after.get());
  if (options_.on_name) options_.on_name(before, after);
}

void ShownState::ChangeReferences(const ClusterState::NameMap& before,
                                  const ClusterState::NameMap& after) {
  using Name = ClusterState::Name;
  const auto change = [&](const std::string& text, const Name* old, const Name* now) {
    const Manifest was = old == nullptr ? nullptr : old->manifest;
    const Manifest is = now == nullptr ? nullptr : now->manifest;
    if (was != is) ChangeName(text, was, is);
  };
  ClusterState::NameMap::ForEachDifference(before, after, change);
}

ClusterStatePtr ShownState::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

ShownState::Map ShownState::MapFor(std::uint32_t known_version) const {
  const ClusterStatePtr now = state();
  Map map;
  map.reply.version = now->map_version();
  map.reply.replicas = options_.replicas;
  map.reply.cluster = now->cluster;
  map.reply.node = options_.node;
  map.reply.nodes = now->nodes;
  for (const auto& [node, record] : now->waiting)
    map.reply.waiting.push_back({node, record.address, record.since_unix_ms, record.daemon});
  if (map.reply.version != 0 && map.reply.version != known_version)
    map.slots = EncodeSlotMap(now->slots->map);
  return map;
}

}  // namespace ffrecord::server
