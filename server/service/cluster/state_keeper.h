#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "libffrecord/net/protocol/cluster_messages.h"
#include "server/cluster/records.h"
#include "server/service/cluster/cluster_cache.h"
#include "server/service/cluster/cluster_state.h"
#include "server/service/cluster/task_threads.h"

namespace ffrecord::server {

// Saves on this node's disk what the node knows of its cluster, for its next start: the newest
// state alone, and again after a failure.
//
// Threads: one of its own writes; any thread may call, and none of the calls waits for the disk.
// Ownership: ClusterService owns it; it owns the cache, whose store outlives it.
class StateKeeper {
 public:
  // `node`: this node's id. `on_saved`: called on the thread that writes, after each saved state.
  StateKeeper(ClusterCache cache, std::string node, std::function<void()> on_saved)
      : cache_(std::move(cache)), node_(std::move(node)), on_saved_(std::move(on_saved)) {}
  ~StateKeeper() { Stop(); }
  StateKeeper(const StateKeeper&) = delete;
  StateKeeper& operator=(const StateKeeper&) = delete;
  void Stop() { thread_.Stop(); }  // Waits for what is being written; drops what has not begun.

  // The cluster that this node's data belongs to.
  void SaveId(const net::ClusterId& id);
  // The state, with the mark of the metadata that it was made from.
  void Save(ClusterStatePtr state, const cluster::HistoryMark& mark);
  // Tries again what has failed last.
  void Retry();
  // Other writes to this node's disk, in the order of all calls.
  void Post(TaskThreads::Task task) { thread_.Post(std::move(task)); }

  // Revision of the metadata up to which this node's disk has the names.
  std::uint64_t saved_revision() const noexcept { return saved_revision_; }

 private:
  struct Unsaved {
    std::optional<net::ClusterId> id;  // None: this node's disk has it.
    ClusterStatePtr state;             // Null: this node's disk has it.
    cluster::HistoryMark mark;
  };
  void Begin();
  // On the thread that writes:
  void Write();
  Result<void> TryWrite(const Unsaved& unsaved);
  void Note(const Result<void>& saved);

  ClusterCache cache_;  // The thread's.
  const std::string node_;
  const std::function<void()> on_saved_;
  std::string save_error_;  // The thread's; empty: the disk has what it should.
  std::atomic<bool> has_failed_{false};
  std::atomic<std::uint64_t> saved_revision_{0};
  mutable std::mutex mutex_;
  Unsaved unsaved_;
  TaskThreads thread_{1};  // Last: it uses all the others.
};

}  // namespace ffrecord::server
