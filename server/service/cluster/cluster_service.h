#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/cluster_messages.h"
#include "libffrecord/net/protocol/metadata_messages.h"
#include "server/cluster/cluster_node.h"
#include "server/metadata/blocking_store.h"
#include "server/metadata/meta_store.h"
#include "server/service/catalog/extent_references.h"
#include "server/service/cluster/action_carrier.h"
#include "server/service/cluster/adoption.h"
#include "server/service/cluster/adoption_driver.h"
#include "server/service/cluster/client_desk.h"
#include "server/service/cluster/cluster_cache.h"
#include "server/service/cluster/cluster_options.h"
#include "server/service/cluster/cluster_state.h"
#include "server/service/cluster/extent_holders.h"
#include "server/service/cluster/extent_mover.h"
#include "server/service/cluster/metadata_desk.h"
#include "server/service/cluster/node_extents.h"
#include "server/service/cluster/node_loop.h"
#include "server/service/cluster/node_machines.h"
#include "server/service/cluster/operator_desk.h"
#include "server/service/cluster/peer_ranges.h"
#include "server/service/cluster/peers.h"
#include "server/service/cluster/shown_state.h"
#include "server/service/cluster/state_keeper.h"
#include "server/service/cluster/status_desk.h"
#include "server/service/cluster/stripe_doctor.h"
#include "server/service/cluster/stripe_reads.h"
#include "server/service/metrics.h"

namespace ffrecord::server {

// One daemon's part in a cluster: makes the rooms of a node, wires them, and gives callers the room
// that they need. It runs the machines of `server/cluster` in real time, carries out the actions
// that they want, and puts requests and questions of others to them.
//
// Threads: Start() and Stop() belong to one thread, all other calls may come from any. One thread
// (NodeLoop) owns the machines; it never waits for a disk, for the store or for another node. A
// `done` is called once, on that thread or on the caller's, by its deadline or when the service
// stops; it must not block. Ownership: it owns all rooms and the store, and borrows the extents and
// the daemon's own store.
class ClusterService {
 public:
  template <class T>
  using Done = std::function<void(Result<T>)>;
  using Options = ClusterOptions;

  // `store` is the cluster's, and nobody else's; `extents` and `home` are this daemon's, and
  // outlive the service. Fails with kConflict if `home` has names that this daemon published
  // outside of a cluster, unless they are to be adopted, or all have been and it is final now; with
  // kConflict if it is that of another node; and as `home` and Adoption::Open.
  static Result<std::unique_ptr<ClusterService>> Start(const Options& options,
                                                       std::shared_ptr<MetaStore> store,
                                                       ExtentStore& extents, BlockingStore& home);
  ~ClusterService() { Stop(); }
  ClusterService(const ClusterService&) = delete;
  ClusterService& operator=(const ClusterService&) = delete;

  // Answers all that is open, gives the lease back, closes the store, and joins. Idempotent;
  // belongs to one thread.
  void Stop();

  // --- Rooms ---

  ClientDesk& clients() noexcept { return clients_; }
  OperatorDesk& operators() noexcept { return operators_; }
  MetadataDesk& metadata() noexcept { return metadata_; }
  StatusDesk& status() noexcept { return status_; }
  NodeExtents& extents() noexcept { return extents_; }
  StripeReads& stripe_reads() noexcept { return stripe_reads_; }
  // The adoption of the daemon's own names; null: it does not adopt.
  const Adoption* adoption() const noexcept { return adoption_.get(); }

  // --- The state for readers ---

  const Options& options() const noexcept { return options_; }
  ClusterStatePtr state() const { return shown_.state(); }
  const ExtentReferences& references() const noexcept { return shown_.references(); }
  bool is_leased() const noexcept { return shown_.is_leased(); }
  const std::atomic<std::uint32_t>& map_version() const noexcept { return shown_.map_version(); }
  // It adopts, and no slot map that it knows has it: to clients it is the daemon that it was, for
  // by such a map they would look for its extents at other nodes.
  bool is_alone() const noexcept { return adoption_ != nullptr && map_version() == 0; }
  using Map = ShownState::Map;
  Map MapFor(std::uint32_t known_version) const { return shown_.MapFor(known_version); }
  net::NodeIdentity Identity() const { return shown_.Identity(); }
  bool IsPreferredOwner(const ExtentId& id, std::size_t replicas) const {
    return holders_.IsPreferredOwner(id, replicas);
  }
  // The extents of other nodes, for a plan. Borrows the service.
  std::shared_ptr<PeerRanges> MakePeerRanges() const;

  // --- Requests of connections, by the rooms that answer them ---

  void SetMember(const net::SetMember& request, Done<void> done) {
    operators_.SetMember(request, std::move(done));
  }
  void RaiseLevel(std::uint32_t level, Done<std::uint32_t> done) {
    operators_.RaiseLevel(level, std::move(done));
  }
  void ListMetadata(const net::MetadataList& request, Done<net::MetadataListReply> done) {
    metadata_.ListMetadata(request, std::move(done));
  }
  void PutMetadata(const net::MetadataPut& request, Done<void> done) {
    metadata_.PutMetadata(request, std::move(done));
  }
  void WorkOnHistory(const net::MetadataHistory& request, Done<std::string> done) {
    metadata_.WorkOnHistory(request, std::move(done));
  }
  // Another node's question.
  template <class Question>
  void Ask(Question question, Done<NodeMachines::AnswerTo<Question>> done) {
    machines_.Ask(std::move(question), std::move(done));
  }

  const ExtentMover::Counters& counters() const noexcept { return mover_.counters(); }
  // The metrics: these counters and those of the service's parts.
  const MetricSet& metrics() const noexcept { return metrics_; }

 private:
  // The state of this node's disk from before the start.
  struct Known {
    ClusterCache cache;
    ClusterState state;
    cluster::HistoryMark mark;
    std::unique_ptr<Adoption> adoption;
  };
  ClusterService(const Options& options, std::shared_ptr<MetaStore> store, ExtentStore& extents,
                 Known known);
  void AddMetrics();

  // A room borrows those before it. Two calls lead back, to rooms that are made later: of the
  // machines to the carrier, and of the mover to the clients' desk.
  const Options options_;
  std::shared_ptr<MetaStore> store_;  // Null once it has stopped.
  const std::unique_ptr<Adoption> adoption_;
  NodeExtents extents_;
  const std::shared_ptr<ServiceInbox> inbox_ = std::make_shared<ServiceInbox>();
  ShownState shown_;
  StateKeeper keeper_;
  Peers peers_;
  StripeDoctor doctor_;
  StripeReads stripe_reads_;
  ExtentHolders holders_;
  ExtentMover mover_;
  NodeMachines machines_;
  ActionCarrier carrier_;
  ClientDesk clients_;
  OperatorDesk operators_;
  MetadataDesk metadata_;
  StatusDesk status_;
  const std::unique_ptr<AdoptionDriver> driver_;  // Null: it does not adopt.
  NodeLoop loop_;
  MetricSet metrics_;
};

}  // namespace ffrecord::server
