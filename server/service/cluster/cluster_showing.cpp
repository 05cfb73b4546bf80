// Publishes the node's view of the cluster, and saves it.

#include <spdlog/spdlog.h>

#include <optional>
#include <string>
#include <utility>

#include "server/cluster/rebuild.h"
#include "server/service/cluster/cluster_service.h"

namespace ffrecord::server {

std::uint32_t ClusterService::AdvertisedVersion(const ClusterState& state) const {
  const bool is_alone = options_.adopt && state.slots->map.Find(options_.node) == SlotMap::kNoNode;
  return is_alone ? 0 : state.map_version();
}

// Makes what others see be what the machines know.
void ClusterService::Refresh(TimePoint now) {
  const cluster::View& view = node_.view();
  if (const bool leased = view.lease.IsLeased(now); leased != is_leased_) {
    is_leased_ = leased;
    spdlog::info("event={} node={}", leased ? "lease_held" : "lease_lost", options_.node);
  }
  const bool has_names = view.names.change_count() != names_seen_;
  if (view.continuity.is_frozen() != was_frozen_) {
    was_frozen_ = view.continuity.is_frozen();
    if (was_frozen_)
      spdlog::error("event=metadata_put_back node={} why=\"{}\"", options_.node,
                    view.continuity.why());
    else
      spdlog::info("event=metadata_trusted node={}", options_.node);
  }
  if (!view.mirror.was_listed() || (view.mirror.revision() == revision_seen_ && !has_names &&
                                    view.continuity.mark() == mark_seen_))
    return;
  mark_seen_ = view.continuity.mark();
  names_seen_ = view.names.change_count();
  revision_seen_ = view.mirror.revision();
  const ClusterStatePtr before = state();
  auto after = std::make_shared<ClusterState>();
  after->names = before->names;
  if (has_names || before->is_from_cache) {
    auto changed = node_.TakeChangedNames();
    // Names that were known from before the start may be gone.
    if (before->is_from_cache)
      for (const auto& [text, name] : *before->names) changed.insert(text);
    after->names = NamesOf(view.names, *before->names, changed);
  }
  after->slots =
      before->slots->map == view.slots.map && before->slots->previous == view.slots.previous
          ? before->slots
          : std::make_shared<const cluster::SlotsRecord>(view.slots);
  after->nodes = NodesOf(view, before->nodes);
  after->waiting = WaitingOf(view, after->nodes);
  after->cluster = enrolment_->cluster().value_or(before->cluster);
  after->level = node_.level();
  after->ancestors = view.continuity.ancestors();
  after->may_lack_names = cluster::MayLackNames(view);
  if (after->names != before->names) ChangeReferences(*before->names, *after->names);
  map_version_ = AdvertisedVersion(*after);
  {
    const std::lock_guard lock(state_mutex_);
    state_ = after;
  }
  // While nobody has confirmed the metadata, the disk has what was trusted last.
  if (!view.continuity.is_frozen()) Keep(after);
}

// The newest alone: one that was overtaken is not written.
void ClusterService::Keep(ClusterStatePtr after) {
  {
    const std::lock_guard lock(state_mutex_);
    unsaved_state_ = std::move(after);
    unsaved_mark_ = mark_seen_;
  }
  keeper_.Post([this] { SaveKept(); });
}

// If the disk is full, each upkeep tries again.
void ClusterService::SaveKept() {
  std::optional<net::ClusterId> id;
  ClusterStatePtr state;
  cluster::HistoryMark mark;
  {
    const std::lock_guard lock(state_mutex_);
    id = unsaved_id_;
    state = unsaved_state_;
    mark = unsaved_mark_;
  }
  Result<void> saved;
  if (id) saved = cache_.WriteId(*id, options_.node);
  if (saved && state) saved = cache_.Save(*state);
  // Last: a mark says that the names up to it are there.
  if (saved && state) saved = cache_.WriteMark(mark);
  const std::string why = saved ? "" : saved.error().message;
  if (!why.empty() && why != save_error_)
    spdlog::error("event=cluster_not_saved error=\"{}\"", why);
  if (why.empty() && !save_error_.empty()) spdlog::info("event=cluster_saved");
  save_error_ = why;
  is_unsaved_ = !saved;
  if (!saved) return;
  {
    const std::lock_guard lock(state_mutex_);
    if (unsaved_id_ == id) unsaved_id_.reset();
    if (unsaved_state_ == state) unsaved_state_.reset();
  }
  if (state) inbox_->Post([this, mark] { kept_revision_ = mark.revision; });
}

void ClusterService::ChangeName(const std::string& name, const Manifest& before,
                                const Manifest& after) {
  references_.Change(name, before.get(), after.get());
  stripe_reads_.Change(before, after);
  if (options_.on_name) options_.on_name(before.get(), after.get());
}

void ClusterService::ChangeReferences(const ClusterState::NameMap& before,
                                      const ClusterState::NameMap& after) {
  using Name = ClusterState::Name;
  const auto change = [&](const std::string& text, const Name* old, const Name* now) {
    const Manifest was = old == nullptr ? nullptr : old->manifest;
    const Manifest is = now == nullptr ? nullptr : now->manifest;
    if (was != is) ChangeName(text, was, is);
  };
  ClusterState::NameMap::ForEachDifference(before, after, change);
}

ClusterStatePtr ClusterService::state() const {
  const std::lock_guard lock(state_mutex_);
  return state_;
}

}  // namespace ffrecord::server
