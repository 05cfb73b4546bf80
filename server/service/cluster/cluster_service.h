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
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/protocol/cluster_messages.h"
#include "libffrecord/net/protocol/metadata_messages.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/transport/tls/tls.h"
#include "server/cluster/cluster_node.h"
#include "server/cluster/unanswered_commits.h"
#include "server/metadata/meta_store.h"
#include "server/service/access/tokens.h"
#include "server/service/catalog/extent_references.h"
#include "server/service/cluster/adoption.h"
#include "server/service/cluster/cluster_cache.h"
#include "server/service/cluster/cluster_state.h"
#include "server/service/cluster/enrolment.h"
#include "server/service/cluster/node_extents.h"
#include "server/service/cluster/peer_ranges.h"
#include "server/service/cluster/peers.h"
#include "server/service/cluster/service_inbox.h"
#include "server/service/cluster/stripe_reads.h"
#include "server/service/metrics.h"

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
    std::string daemon;     // Its id, for operators who are to let it in.
    std::string domain;
    std::uint32_t weight = 1;
    std::uint32_t feature_level = cluster::kFeatureLevel;  // That this program knows.
    std::uint8_t replicas = 2;                             // Replicas of each published extent.
    bool approves_members = false;  // While it leads, new nodes join without an operator.
    // Hash of `origins`; must be equal on all nodes.
    std::uint64_t origins_hash = 0;
    std::chrono::milliseconds lease{10'000};
    std::chrono::milliseconds down_grace{600'000};
    std::chrono::milliseconds upload_grace{600'000};
    // How long the extents of a removed name stay, for those who read them.
    std::chrono::milliseconds delete_grace{86'400'000};
    // Takes the names into the cluster that the daemon published before it joined.
    bool adopt = false;
    // At which this node copies extents that it lacks; 0: as fast as it goes.
    std::uint64_t pull_bytes_per_s = 0;
    PullClock pull_clock = {};
    const TokenKeys* token_keys = nullptr;  // Outlives the service. Null: nobody shows a token.
    net::TlsFiles tls = {};                 // As the daemon serves; without a certificate: no TLS.
    // Told when a name has come to stand for other files; null: for nothing. Must not block.
    std::function<void(const DatasetManifest* before, const DatasetManifest* after)> on_name = {};
    // Whether files of names may lie at that address; empty: at none. Fails for people.
    std::function<Result<void>(const std::string& address)> check_origin = {};
  };

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

  // The metadata that a node has kept for its next start.
  struct Kept {
    cluster::HistoryMark mark;
    std::vector<std::uint64_t> ancestors;
    cluster::KnownNames names;
  };
  const Options& options() const noexcept { return options_; }
  ClusterStatePtr state() const;
  const ExtentReferences& references() const noexcept { return references_; }
  // The adoption of the daemon's own names; null: it does not adopt.
  const Adoption* adoption() const noexcept { return adoption_.get(); }
  NodeExtents& extents() noexcept { return extents_; }
  StripeReads& stripe_reads() noexcept { return stripe_reads_; }
  // Whether this node is the one, among the owners of the extent that are up, that readers with a
  // hint ask. `replicas`: of the extents of its name; 0: as many as the cluster has.
  bool IsPreferredOwner(const ExtentId& id, std::size_t replicas) const;
  // The extents of other nodes, for a plan. Borrows the service.
  std::shared_ptr<PeerRanges> MakePeerRanges() const;
  // The machines believe in this node's lease.
  bool is_leased() const noexcept { return is_leased_.load(std::memory_order_relaxed); }
  // Version of the slot map; for the headers of frames.
  const std::atomic<std::uint32_t>& map_version() const noexcept { return map_version_; }

  // It adopts, and no slot map that it knows has it: to clients it is the daemon that it was, for
  // by such a map they would look for its extents at other nodes.
  bool is_alone() const noexcept { return adoption_ != nullptr && map_version_ == 0; }

  // For clients.
  struct Map {
    net::ClusterMapReply reply;
    std::vector<std::byte> slots;  // Empty: as known.
  };
  Map MapFor(std::uint32_t known_version) const;
  net::NodeIdentity Identity() const { return {state()->cluster, options_.node}; }
  void SetMember(const net::SetMember& request, Done<void> done);
  // To 0: to the highest that all nodes know. Tells the level that the cluster has. Fails with
  // kConflict if not all nodes are known to know it, kInvalidArgument if it is below the present
  // one.
  void RaiseLevel(std::uint32_t level, Done<std::uint32_t> done);
  void Publish(cluster::Publication::Request request, Done<std::uint64_t> done);
  // This node's table shows all that was published and removed before the call: the coordinator was
  // asked after it. Fails with kUnavailable at once while this node has no lease: others can tell.
  void CatchUp(std::string name, std::chrono::milliseconds patience, Done<void> done);
  // A place for an extent whose upload is on record, or none if it is sealed here already. `owner`:
  // the prefix below which its client may publish it. Fails with kIo (EDQUOT) if what is uploaded
  // and not published passes one of `quotas` with it.
  void BeginPut(const net::PutBegin& begin, const std::string& owner, const NameQuotas& quotas,
                Done<std::optional<NewExtent>> done);
  // Whether that extent may be sealed here now. Waits for the service's thread.
  Result<void> CheckSeal(const net::PutSeal& seal);

  // For operators. The keys as they are in the store.
  void ListMetadata(const net::MetadataList& request, Done<net::MetadataListReply> done);
  // Fails with kConflict if the store has metadata of the cluster already, or parts of another
  // backup.
  void PutMetadata(const net::MetadataPut& request, Done<void> done);
  // A JSON object. A rebuild also founds the cluster again if the store has nothing of it.
  void WorkOnHistory(const net::MetadataHistory& request, Done<std::string> done);

  // Other nodes' questions.
  void Ask(cluster::AskHoldings question, Done<cluster::Holdings> done);
  void Ask(cluster::AskHeard question, Done<cluster::Flags> done);
  void Ask(cluster::AskBuried question, Done<cluster::Flags> done);
  void Ask(cluster::AskFilled question, Done<cluster::Flags> done);
  void Ask(cluster::AskKnown question, Done<cluster::Known> done);

  // Counts of the extents that names refer to, and of those on this node.
  struct ExtentCounts {
    std::uint64_t missing_bytes = 0;
    std::uint64_t missing_count = 0;  // Extents that should be here and are not,
    std::uint64_t surplus_count = 0;  // and those that are here for others.
    std::uint64_t unexplained_count = 0;
    std::uint64_t lacking_count = 0;  // Counted over all nodes: an owner is down,
    std::uint64_t alone_count = 0;    // or all of them are.
    // The state that they were counted from. As long as it is the same, so are they.
    struct Basis {
      std::uint64_t names_change = 0;
      std::uint64_t revision = 0;  // Revision of the metadata.
      std::uint64_t extents_change = 0;
      std::uint32_t map_version = 0;
      bool was_listed = false;
      std::set<std::string> live;

      bool operator==(const Basis&) const = default;
    };
    Basis basis;
  };
  // Counts of the work of repair since the start.
  struct Counters {
    Counter pulled, pulled_bytes, rebuilt, dropped;
  };
  const Counters& counters() const noexcept { return counters_; }
  // The metrics: these counters and those of the service's parts.
  const MetricSet& metrics() const noexcept { return metrics_; }
  // The status for operators.
  struct Status {
    bool is_leased = false;
    bool is_leading = false;
    std::string leader;  // Its node; empty: none is known.
    std::string
        trouble;  // Why this node does not take part, or no map is made; empty: all is well.
    // Names whose files this node does not know yet: of their extents it counts nothing.
    std::uint64_t incomplete_count = 0;
    ExtentCounts extents;
    std::uint64_t adopting_count = 0;  // Own names that are not in the cluster yet,
    std::string adoption_trouble;      // and why one of them is not.
    std::uint64_t refused_count = 0;   // Extents for which there was no room.
    std::uint64_t open_upload_count = 0;
    std::uint64_t tombstone_count = 0;
    std::uint64_t unheld_count = 0;  // Missing here, and no node that answers has them.
    std::optional<std::chrono::milliseconds> silent_for;  // The coordinator; none: it answers.
    bool is_moving = false;                               // The map has changed and data moves.
    std::map<std::string, std::string> refusals;          // As of Peers.
    // Nothing is dropped: the metadata was put back to an older state, and nobody has confirmed it.
    bool is_frozen = false;
    std::string why_frozen;
    std::uint64_t incarnation = 0;      // Incarnation of the metadata.
    std::uint64_t lost_name_count = 0;  // That this node has known, and that are not there.
    // The highest feature level that each node knows which is up.
    std::map<std::string, std::uint32_t> levels;
    // Nodes that are up and may fetch files from other places than this one.
    std::vector<std::string> other_origins;
    ClusterStatePtr state;
  };
  // The result of `describe` for the state of the machines. Waits for the service's thread, which
  // calls it and does nothing else meanwhile. Fails with kUnavailable while this node does not take
  // part or once the service stops, and as `describe`.
  Result<std::string> Describe(
      const std::function<Result<std::string>(const cluster::ClusterNode&)>& describe);
  // Waits for the service's thread, which looks at every extent if something has changed. Fails
  // with kUnavailable once the service stops.
  Result<Status> GetStatus();

 private:
  using TimePoint = cluster::TimePoint;
  struct Waiter {
    std::function<bool()> is_reached;
    TimePoint deadline;
    Done<void> done;
  };

  ClusterService(const Options& options, std::shared_ptr<MetaStore> store, ExtentStore& extents,
                 ClusterCache cache, Kept kept);

  // --- On the service's thread (cluster_service.cpp) ---
  void Run();
  TimePoint Wake() const;
  void StepAll(TimePoint now);
  void Enrol(const std::optional<net::ClusterId>& known);
  void Refresh(TimePoint now);
  // The version of the map that clients receive. While this daemon adopts, none without it: by that
  // they would look for its extents at other nodes alone.
  std::uint32_t AdvertisedVersion(const ClusterState& state) const;
  void NoteTrouble();
  using Manifest = std::shared_ptr<const DatasetManifest>;
  void ChangeName(const std::string& name, const Manifest& before, const Manifest& after);
  void ChangeReferences(const ClusterState::NameMap& before, const ClusterState::NameMap& after);
  void Keep(ClusterStatePtr after);
  void SaveKept();  // By the keeper.

  // --- Stripes (cluster_stripes.cpp). They wait for other nodes ---
  static std::string OwnerOf(const ClusterState& known, const cluster::StripePlace& place);
  std::vector<std::string> HoldersUp(const ClusterState& known, const cluster::StripePlace& place,
                                     const ExtentId& id) const;
  // `is_paced`: no faster than all pulls may be.
  Result<std::vector<std::byte>> Rebuild(const cluster::StripePart& part, TimePoint deadline,
                                         bool is_paced);
  Result<void> BringMember(const ManifestExtent& extent, const cluster::StripePlace& place);

  void AnswerFinished();
  void AnswerWaiters(TimePoint now);
  void AnswerAll();
  void GiveLeaseBack();
  void SweepDropped();
  template <class T, class Question>
  void AskNode(Question question, Done<T> done);
  Result<std::optional<NewExtent>> Place(const net::PutBegin& begin) const;
  Result<void> MayTake(std::uint64_t upload) const;
  void AwaitName(std::uint64_t revision, std::string name, TimePoint deadline, Done<void> done);
  // A change by an operator, until it is answered.
  struct Change {
    template <class T>
    Change(TimePoint by, Done<T> done)
        : deadline(by), refuse([done](Error refusal) { done(std::move(refusal)); }) {}
    void Refuse(Error refusal) const { refuse(unanswered.Explain(std::move(refusal))); }

    const TimePoint deadline;
    const std::function<void(Error)> refuse;
    cluster::UnansweredCommits unanswered;
  };
  using ChangePtr = std::shared_ptr<Change>;
  void BeginChange(const ChangePtr& change, std::function<void()> begin);
  // Then `made` is called; or `again`, to look and decide anew, if it lost or had no answer.
  void CommitChange(const ChangePtr& change, MetaStore::Commit commit, std::function<void()> made,
                    std::function<void()> again);
  void AwaitOutcome(const ChangePtr& change, const MetaStore::Outcome& outcome,
                    const std::function<void()>& made, const std::function<void()>& again);
  void WriteMember(const net::SetMember& request, const ChangePtr& change, const Done<void>& done);
  Result<void> CheckChange(const std::string& node, const cluster::MemberRecord& member,
                           cluster::MemberRecord::State state) const;
  Result<std::uint32_t> FindCommonLevel() const;
  void BeginToRaise(std::uint32_t level, const ChangePtr& change, const Done<std::uint32_t>& done);
  void WriteLevel(std::uint32_t level, const ChangePtr& change, const Done<std::uint32_t>& done);
  Result<std::vector<MetaStore::Compare>> FindReplacements(const std::string& node) const;
  const ExtentCounts& CountExtents();
  Status MakeStatus();
  // Why this node takes no part in its cluster; empty: it does.
  std::string Trouble() const;
  void AwaitKept(std::uint64_t revision, TimePoint deadline, Done<void> done);

  // --- What operators do with the metadata (cluster_history.cpp) ---
  void PutInto(const MetaStore::Page& first, const net::MetadataPut& request, Done<void> done);
  void CommitPage(std::uint64_t restore_revision, std::uint64_t revision,
                  const net::MetadataPut& request, Done<void> done);
  static bool HasKey(const MetaStore::Commit& commit, std::string_view key);
  cluster::HistoryRecord RestoredHistory(const cluster::HistoryRecord& older,
                                         std::uint64_t base_revision) const;
  void BeginAnew();
  MetaStore::Commit FoundingKeys(std::uint64_t restored, std::uint64_t revision) const;
  bool AllMembersLive() const;
  void BeginRebuild(const net::MetadataHistory& request, TimePoint deadline,
                    Done<std::string> done);
  void AnswerRebuilt();
  void ConfirmHistory(std::uint64_t incarnation, TimePoint deadline, Done<std::string> done);
  Error NotTakingPart() const;
  static TimePoint Now() { return Clock::now(); }
  static Error Stopped() { return {ErrorCode::kUnavailable, "the daemon stops"}; }

  void Take(const cluster::Answer& answer);

  // --- Adopting (cluster_adopting.cpp) ---
  bool MayAdopt() const;
  void Adopt(TimePoint now);
  void BeginAdopting(const Adoption::Name& name);
  void PublishAdopted(const Adoption::Name& name);
  bool WasAdopted(const Adoption::Name& name) const;
  void EndAdopting(const Adoption::Name& name, const Result<void>& outcome);

  // --- Carrying out (cluster_actions.cpp) ---
  struct Carrier;
  void Carry(std::vector<cluster::Action> actions);
  // Posts the answer to the service's thread. Any thread.
  void Deliver(cluster::CallId id, cluster::Reply reply);

  const Options options_;
  std::shared_ptr<MetaStore> store_;  // Null once it has stopped.
  NodeExtents extents_;
  ExtentReferences references_;  // Changes on the service's thread.
  std::unique_ptr<Adoption> adoption_;

  mutable std::mutex state_mutex_;
  ClusterStatePtr state_ = std::make_shared<const ClusterState>();
  std::optional<net::ClusterId> unsaved_id_;  // None: this node's disk has it.
  ClusterStatePtr unsaved_state_;             // Null: this node's disk has it.
  cluster::HistoryMark unsaved_mark_;
  std::atomic<std::uint32_t> map_version_{0};
  std::atomic<bool> is_leased_{false};
  std::atomic<bool> is_taking_back_{false};
  std::atomic<bool> is_unsaved_{false};  // The keeper has failed, and is to try again.
  std::atomic<bool> is_metadata_trusted_{
      false};  // The metadata is trusted, as far as the machines know.
  Counters counters_;
  MetricSet metrics_;

  // The service's thread's:
  cluster::ClusterNode node_;
  std::unique_ptr<Enrolment> enrolment_;
  cluster::Outbox enrolment_out_{cluster::CallId{1} << 63};
  bool was_enrolled_ = false;     // The machines run, also while it enrols anew.
  std::uint64_t names_seen_ = 0;  // Change counts of what state_ shows.
  std::uint64_t revision_seen_ = 0;
  cluster::HistoryMark mark_seen_;
  std::uint64_t kept_revision_ = 0;  // To which this node's disk has the names.
  bool was_frozen_ = false;
  TimePoint may_found_until_{};  // An operator wants a rebuild: also of a store that has nothing.
  const TimePoint started_ = Clock::now();
  TimePoint heard_{};  // The store answered last.
  std::string logged_reason_;
  TimePoint upkeep_next_{};
  TimePoint refused_next_{};
  std::optional<ExtentCounts> counts_;  // The last ones; none: nobody has asked.
  std::map<cluster::ClusterNode::RequestId, std::function<void(Result<std::uint64_t>)>> requests_;
  std::map<cluster::ClusterNode::RequestId, Done<std::string>> rebuilds_;
  std::list<Waiter> waiters_;
  std::map<cluster::CallId, MetaStore::WatchId> watches_;

  ClusterCache cache_;      // The keeper's, once it runs.
  std::string save_error_;  // The keeper's; empty: the disk has what it should.
  const std::shared_ptr<ServiceInbox> inbox_;
  TaskThreads keeper_{1};  // Writes to this node's disk meanwhile.
  // Removes the files of what was dropped of one disk; null: of none.
  struct Sweeper {
    explicit Sweeper(const Disk* of) : disk(of) {}
    const Disk* const disk;
    std::atomic<bool> is_running{false};
    TaskThreads thread{1};
  };
  std::vector<std::unique_ptr<Sweeper>> sweepers_;
  Peers peers_;
  StripeReads stripe_reads_;
  std::thread thread_;
};

}  // namespace ffrecord::server
