#include "server/service/cluster/state_keeper.h"

#include <spdlog/spdlog.h>

namespace ffrecord::server {

void StateKeeper::SaveId(const net::ClusterId& id) {
  {
    const std::lock_guard lock(mutex_);
    unsaved_.id = id;
  }
  Begin();
}

// The newest alone: one that was overtaken is not written.
void StateKeeper::Save(ClusterStatePtr state, const cluster::HistoryMark& mark) {
  {
    const std::lock_guard lock(mutex_);
    unsaved_.state = std::move(state);
    unsaved_.mark = mark;
  }
  Begin();
}

void StateKeeper::Retry() {
  if (has_failed_.exchange(false)) Begin();
}

void StateKeeper::Begin() {
  thread_.Post([this] { Write(); });
}

void StateKeeper::Write() {
  Unsaved unsaved;
  {
    const std::lock_guard lock(mutex_);
    unsaved = unsaved_;
  }
  const auto saved = TryWrite(unsaved);
  Note(saved);
  has_failed_ = !saved;
  if (!saved) return;
  {
    const std::lock_guard lock(mutex_);
    if (unsaved_.id == unsaved.id) unsaved_.id.reset();
    if (unsaved_.state == unsaved.state) unsaved_.state.reset();
  }
  if (!unsaved.state) return;
  saved_revision_ = unsaved.mark.revision;
  on_saved_();
}

Result<void> StateKeeper::TryWrite(const Unsaved& unsaved) {
  if (unsaved.id) FFR_TRY(cache_.WriteId(*unsaved.id, node_));
  if (!unsaved.state) return {};
  FFR_TRY(cache_.Save(*unsaved.state));
  // Last: a mark says that the names up to it are there.
  return cache_.WriteMark(unsaved.mark);
}

void StateKeeper::Note(const Result<void>& saved) {
  const std::string why = saved ? "" : saved.error().message;
  if (!why.empty() && why != save_error_)
    spdlog::error("event=cluster_not_saved error=\"{}\"", why);
  if (why.empty() && !save_error_.empty()) spdlog::info("event=cluster_saved");
  save_error_ = why;
}

}  // namespace ffrecord::server
