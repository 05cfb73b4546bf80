#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/cluster_messages.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/transport/tls/tls.h"
#include "server/cluster/cluster_node.h"
#include "server/metadata/meta_store.h"
#include "server/service/access/tokens.h"
#include "server/service/catalog/extent_references.h"
#include "server/service/cluster/cluster_cache.h"
#include "server/service/cluster/cluster_state.h"
#include "server/service/cluster/enrolment.h"
#include "server/service/cluster/node_extents.h"
#include "server/service/cluster/peers.h"
#include "server/service/cluster/service_inbox.h"

namespace ffrecord::server {

// One daemon's part in a cluster: runs its machines (ClusterNode) in real time, carries out what
// they want, and puts questions and requests of others to them.
//
// One thread owns the machines; it never waits for a disk, for the store or for another node. All
// calls may come from any thread. A `done` is called once, on the service's thread or on the
// caller's, by its deadline or when the service stops; it must not block.
class ClusterService {
 public:
  template <class T>
  using Done = std::function<void(Result<T>)>;

  struct Options {
    std::string node;       // Id; also of its member.
    std::string advertise;  // host:port at which others reach this daemon.
    std::string domain;
    std::uint32_t weight = 1;
    std::uint8_t replicas = 2;  // Of what is published.
    std::chrono::milliseconds lease{10'000};
    std::chrono::milliseconds down_grace{600'000};
    std::chrono::milliseconds upload_grace{600'000};
    // How long the extents of a removed name stay, for those who read them.
    std::chrono::milliseconds delete_grace{86'400'000};
    const TokenKeys* token_keys = nullptr;  // Outlives the service. Null: nobody shows a token.
    net::TlsFiles tls = {};                 // As the daemon serves; without a certificate: no TLS.
  };

  // `store` is the cluster's, `extents` and `home` are this daemon's; both outlive the service.
  // Fails with kConflict if `home` has names that this daemon has published by itself, and as
  // `home`.
  static Result<std::unique_ptr<ClusterService>> Start(const Options& options,
                                                       std::shared_ptr<MetaStore> store,
                                                       ExtentStore& extents, BlockingStore& home);
  ~ClusterService() { Stop(); }
  ClusterService(const ClusterService&) = delete;
  ClusterService& operator=(const ClusterService&) = delete;

  // Answers all that is open, gives the lease back, and joins. Idempotent; belongs to one thread.
  void Stop();

  const Options& options() const noexcept { return options_; }
  ClusterStatePtr state() const;
  const ExtentReferences& references() const noexcept { return references_; }
  NodeExtents& extents() noexcept { return extents_; }
  // The machines believe in this node's lease.
  bool is_leased() const noexcept { return is_leased_.load(std::memory_order_relaxed); }
  // Of the slot map; for the headers of frames.
  const std::atomic<std::uint32_t>& map_version() const noexcept { return map_version_; }

  // For clients.
  struct Map {
    net::ClusterMapReply reply;
    std::vector<std::byte> slots;  // Empty: as known.
  };
  Map MapFor(std::uint32_t known_version) const;
  void SetMember(const net::SetMember& request, Done<void> done);
  void Publish(cluster::Publication::Request request, Done<std::uint64_t> done);
  // This node's table shows all that was published and removed before the call.
  void CatchUp(std::string name, std::chrono::milliseconds patience, Done<void> done);
  // A place for an extent whose upload is on record, or none if it is sealed here already.
  void BeginPut(const net::PutBegin& begin, Done<std::optional<NewExtent>> done);
  // Whether that extent may be sealed here now. Waits for the service's thread.
  Result<void> CheckSeal(const net::PutSeal& seal);

  // Other nodes' questions.
  void Ask(cluster::AskHoldings question, Done<cluster::Holdings> done);
  void Ask(cluster::AskHeard question, Done<cluster::Flags> done);
  void Ask(cluster::AskBuried question, Done<cluster::Flags> done);
  void Ask(cluster::AskFilled question, Done<cluster::Flags> done);

  // What operators look at.
  struct Status {
    bool is_leased = false;
    bool is_leading = false;
    std::string leader;  // Its node; empty: none is known.
    std::string
        trouble;  // Why this node does not take part, or no map is made; empty: all is well.
    std::uint64_t missing_count = 0;  // Extents that should be here and are not,
    std::uint64_t surplus_count = 0;  // and those that are here for others.
    std::uint64_t unexplained_count = 0;
    std::uint64_t refused_count = 0;  // For which there was no room.
    std::uint64_t open_upload_count = 0;
    std::uint64_t tombstone_count = 0;
    std::uint64_t pulled_count = 0;  // Since the start, and their bytes.
    std::uint64_t pulled_bytes = 0;
    std::uint64_t dropped_count = 0;
    std::optional<std::chrono::milliseconds> silent_for;  // The coordinator; none: it answers.
    bool is_moving = false;                               // The map has changed and data moves.
    ClusterStatePtr state;
  };
  // Waits for the service's thread; what it counts takes a look at every extent. Fails with
  // kUnavailable once the service stops.
  Result<Status> GetStatus();

 private:
  using TimePoint = cluster::TimePoint;
  struct Waiter {
    std::function<bool()> is_reached;
    TimePoint deadline;
    Done<void> done;
  };

  ClusterService(const Options& options, std::shared_ptr<MetaStore> store, ExtentStore& extents,
                 BlockingStore& home);

  // --- On the service's thread (cluster_service.cpp) ---
  void Run();
  TimePoint Wake() const;
  void StepAll(TimePoint now);
  void Refresh(TimePoint now);
  void NoteTrouble();
  void ChangeReferences(const ClusterState::NameMap& before, const ClusterState::NameMap& after);
  void AnswerFinished();
  void AnswerWaiters(TimePoint now);
  void AnswerAll();
  template <class T, class Question>
  void AskNode(Question question, Done<T> done);
  Result<std::optional<NewExtent>> Place(const net::PutBegin& begin) const;
  Result<void> MayTake(std::uint64_t upload) const;
  void AwaitName(std::uint64_t revision, std::string name, TimePoint deadline, Done<void> done);
  void WriteMember(const net::SetMember& request, TimePoint deadline, Done<void> done);
  Status MakeStatus() const;
  Error NotTakingPart() const;

  void Take(const cluster::Answer& answer);

  // --- Carrying out (cluster_actions.cpp) ---
  struct Carrier;
  void Carry(std::vector<cluster::Action> actions);
  // Posts the answer to the service's thread. Any thread.
  void Deliver(cluster::CallId id, cluster::Reply reply);

  const Options options_;
  const std::shared_ptr<MetaStore> store_;
  NodeExtents extents_;
  ExtentReferences references_;  // Changes on the service's thread.

  mutable std::mutex state_mutex_;
  ClusterStatePtr state_ = std::make_shared<const ClusterState>();
  std::atomic<std::uint32_t> map_version_{0};
  std::atomic<bool> is_leased_{false};
  std::atomic<bool> is_sweeping_{false};
  std::atomic<std::uint64_t> pulled_count_{0}, pulled_bytes_{0}, dropped_count_{0};

  // The service's thread's:
  cluster::ClusterNode node_;
  std::unique_ptr<Enrolment> enrolment_;
  cluster::Outbox enrolment_out_;
  std::uint64_t names_seen_ = 0;  // Change counts of what state_ shows.
  std::uint64_t revision_seen_ = 0;
  const TimePoint started_ = TimePoint::clock::now();
  TimePoint heard_{};  // The store answered last.
  std::string told_trouble_;
  TimePoint upkeep_next_{};
  std::map<cluster::ClusterNode::RequestId, std::function<void(Result<std::uint64_t>)>> requests_;
  std::list<Waiter> waiters_;
  std::map<cluster::CallId, MetaStore::WatchId> watches_;

  ClusterCache cache_;  // The keeper's, once it runs.
  const std::shared_ptr<ServiceInbox> inbox_;
  TaskThreads keeper_{1};  // Of what is written to this node's disk meanwhile.
  Peers peers_;
  std::thread thread_;
};

}  // namespace ffrecord::server
