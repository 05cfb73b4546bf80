#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

#include "client/dataset/cluster_view.h"
#include "libffrecord/base/per_process.h"
#include "libffrecord/net/rpc/location.h"
#include "libffrecord/net/rpc/session.h"

namespace ffrecord::client {

// The daemons behind an address, as a client sees them: a map of the nodes of a cluster, which is
// fetched again where it has become old, and calls that any node answers. A single daemon is a
// cluster of one node, whose map is made here and stays.
//
// Thread-safe; a forked child may go on using it. Owns a thread while it fetches a map in the
// background.
class Cluster {
 public:
  // The cluster of the daemons at `locations`, or the one daemon there. Most of the addresses must
  // be accounted for, by nodes that answer or by the view of one of them: a few quick answers say
  // nothing of daemons that are silent, which are waited for (ClusterVote). Waits at most
  // `options.timeout`, and fails as a call to the daemons does; with kUnavailable if too few of
  // them answer; with kInvalidArgument if they are several single daemons; or with
  // kConflict, naming both, if they are of two clusters and neither has most of the addresses.
  static Result<std::shared_ptr<Cluster>> Find(std::span<const net::Location> locations,
                                               const SessionOptions& options);
  // The single daemon at `location`. Asks nobody.
  static std::shared_ptr<Cluster> OfOneDaemon(const net::Location& location,
                                              const SessionOptions& options);
  // For Find(). `seeds`: by which it was found.
  Cluster(ClusterView view, const SessionOptions& options, std::vector<net::Location> seeds = {});
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;
  ~Cluster();

  // A single daemon: it keeps the only replica of what it has, and has no origins.
  bool is_one_daemon() const noexcept { return first_view_->map.version == 0; }
  // The place of the first node, for messages.
  std::string peer() const;

  // The newest view. Never waits.
  std::shared_ptr<const ClusterView> view() const;
  // A node has said that its map has this version. One that is newer than the view's is fetched in
  // the background. Never waits.
  void NoteVersion(std::uint32_t version);
  // A node does not answer, or nodes do not have what they should: looks whether there is a newer
  // map or another address, in the background, now and then. Never waits.
  void NoteFailure();
  // Fetches the view anew, and waits for it. Where no node answers at the addresses that are known,
  // those are asked by which the cluster was found: their names may stand for other hosts by now.
  Result<void> Refresh(net::Deadline deadline);

  // Runs `attempt` at a single daemon as Session::Run() does. In a cluster: at the node that
  // answered last, and at the next ones while they fail with
  // kUnavailable or kDeadlineExceeded, until `deadline`. An attempt must end by the time that it is
  // given, at most `answer_time` from its begin: a node that is silent for so long is given up. An
  // attempt that has failed may have had its effect.
  //
  // Nodes hear of a new name one after the other. kAsksAll: one that is not found at a node may be
  // known to the next, and is not there only if no node that answers knows it. A node's own trouble
  // (kIo but for a quota, kCorruption) is not the cluster's answer: the call fails so only if no
  // node succeeds. kIsOfAll: what an answer does not name is not there.
  //
  // While the node by which the cluster was found has names of its own that the others do not have
  // yet, as a daemon that is adopted, it alone can say that something is not there.
  using Attempt = std::function<Result<void>(net::Connection&, net::Deadline)>;
  enum class Absence : std::uint8_t { kIsAnAnswer, kAsksAll, kIsOfAll };
  Result<void> Run(const Attempt& attempt, net::Deadline deadline,
                   std::chrono::milliseconds answer_time,
                   Absence absence = Absence::kIsAnAnswer) const;

  std::shared_ptr<net::Session> SessionAt(const ClusterView::Place& place) const {
    return net::Session::Get(place.location, options_);
  }
  const SessionOptions& options() const noexcept { return options_; }
  // By the choice of its user (Location).
  bool accepts_old_names() const noexcept {
    return !seeds_.empty() && seeds_.front().accepts_old_names;
  }

 private:
  // The state in one process.
  struct State {
    std::mutex mutex;
    std::shared_ptr<const ClusterView> view;  // Null: first_view_.
    std::optional<pthread_t> thread;          // Fetches, or has.
    std::atomic<bool> is_fetching{false};
    std::atomic<bool> is_over{false};
    net::Deadline fetched_at{};  // When that was last begun.
  };
  // One attempt at each node, until one has an answer, or else why none has. `told`: what a node
  // has said last that could not do it now, in this round or one before.
  struct Round {
    bool has_answer;
    Result<void> done;
  };
  Round TryEach(const Attempt& attempt, net::Deadline deadline,
                std::chrono::milliseconds answer_time, Absence absence,
                std::optional<Error>& told) const;
  static void* Fetch(void* self);
  void FetchSoon(net::Deadline::duration pause);
  bool AskSeeds(const Attempt& attempt, net::Deadline deadline,
                std::chrono::milliseconds answer_time) const;
  void Take(ClusterView view);

  const std::shared_ptr<const ClusterView> first_view_;
  const SessionOptions options_;
  const std::vector<net::Location> seeds_;
  // Place of the node that answered last. At first the one that the view came from.
  mutable std::atomic<std::size_t> last_place_{0};
  const std::string own_node_;                      // That node,
  mutable std::atomic<bool> has_own_names_{false};  // and whether it has, as it said last.
  std::atomic<std::uint32_t> version_;              // Version of the newest view.
  mutable PerProcess<State> state_;
};

// Runs Cluster::Find() at the first Find(). Thread-safe.
class ClusterFinder {
 public:
  ClusterFinder(std::vector<net::Location> locations, const SessionOptions& options)
      : locations_(std::move(locations)), options_(options) {}

  // Fails as Cluster::Find, until it has once succeeded.
  Result<std::shared_ptr<Cluster>> Find();

 private:
  const std::vector<net::Location> locations_;
  const SessionOptions options_;
  std::mutex mutex_;
  std::shared_ptr<Cluster> found_;
};

}  // namespace ffrecord::client
