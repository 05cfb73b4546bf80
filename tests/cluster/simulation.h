#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/cluster/cluster_node.h"
#include "server/metadata/memory_store.h"
#include "server/metadata/meta_state.h"
#include "sim_disk.h"

namespace ffrecord::test {

// A whole cluster in one thread: the machines of server/cluster, over a virtual clock, network,
// disks and metadata store, all driven by one seed. The same seed gives the same run, event by
// event.
//
// First faults and clients for a while; then everything heals, and must converge. What has to hold
// at all times is checked after each event that could break it. Faults never take the last good
// replica of anything published: whatever is lost is a bug.
class Simulation {
 public:
  using TimePoint = server::cluster::TimePoint;
  using Duration = TimePoint::duration;
  struct Options {
    std::uint64_t seed = 1;
    int node_count = 5;
    int client_count = 3;
    std::chrono::seconds trouble{40};  // How long there are faults and clients.
    std::chrono::seconds healing{60};  // Within which all must be as it should be, afterwards.
    // Once the clients have ended, the store is put back to an older state; an operator has the
    // cluster publish again what that lacks, and confirms it.
    bool is_restored = false;
    bool is_traced = false;  // Prints each event.
  };
  struct Counts {
    std::uint64_t events = 0, published = 0, removed = 0, refused = 0, unresolved = 0;
    std::uint64_t looks = 0, looks_refused = 0, over_upload_quota = 0;
    std::uint64_t faults = 0, pulls = 0, rebuilds = 0, lists = 0, drops = 0, map_changes = 0,
                  stalls = 0;
  };

  explicit Simulation(const Options& options);
  ~Simulation();

  // The first violation, or none.
  std::optional<std::string> Run();
  const Counts& counts() const { return counts_; }

 private:
  friend class SimClient;
  struct Node;
  using Act = std::function<void()>;
  template <class T>
  using Done = std::function<void(Result<T>)>;

  // --- The world's clockwork
  void At(Duration after, Act act);
  bool RunUntil(TimePoint end);  // False: a violation.
  void RunStore(Node& node);
  void RunStores();
  void Fail(const std::string& what);
  template <class... T>
  void Trace(const T&... what) const {
    if (options_.is_traced) ((std::cout << Milliseconds() << " ms: ") << ... << what) << "\n";
  }
  static constexpr std::chrono::seconds kLeaseTime{4};
  static constexpr std::chrono::seconds kUploadGrace{6};
  // Nodes rely on a promise for this long.
  static constexpr std::chrono::seconds kPromiseAge{10};
  std::int64_t Milliseconds() const;
  std::uint64_t Random(std::uint64_t below) { return below == 0 ? 0 : random_() % below; }
  bool Chance(double probability) {
    return static_cast<double>(random_() % 1'000'000) < probability * 1e6;
  }
  Duration Between(std::int64_t from_ms, std::int64_t to_ms);

  // --- Nodes
  void PlanLevel();
  void AddNode(std::unique_ptr<Node> node);
  void Start(Node& node);
  void Crash(Node& node);
  void Pause(Node& node, Duration time);
  void Resume(Node& node);
  // What a node's clock shows now; how long the world waits for a time of that clock.
  TimePoint Local(const Node& node) const;
  Duration UntilLocal(const Node& node, TimePoint time) const;
  // Runs `act` on the node unless it is down; once it goes on, if it is paused.
  template <class F>
  void On(Node& node, F act);
  void Step(Node& node, const server::cluster::Answer* answer);
  void CarryOutAll(Node& node, std::vector<server::cluster::Action> actions);
  void PlanWake(Node& node);
  void KeepMark(Node& node);
  void CarryOut(Node& node, server::cluster::Action action);
  Node* Find(const std::string& id);
  server::MemoryMetaStore::Trip NextTrip(const Node& node);

  // --- The network: a question to another node, whose answer comes once, or a time-out
  template <class T>
  void Ask(Node* from, const std::string& to, Duration patience,
           std::function<Result<T>(Node&)> ask, Done<T> done);
  void AskPublication(const std::string& to, server::cluster::Publication::Request request,
                      Done<std::uint64_t> done);
  // A client asks the node what the name stands for.
  void AskName(const std::string& to, const std::string& name);
  void CheckTold(const Node& node, const std::string& name, std::uint64_t asked_revision);
  void AskHoldingsOf(Node& node, const server::cluster::AskHoldings& question, Duration patience,
                     Done<server::cluster::Holdings> done);
  void AskKnownOf(Node& node, const server::cluster::AskKnown& question, Duration patience,
                  Done<server::cluster::Known> done);
  template <class Question>
  void AskFlags(Node& node, const Question& question, Duration patience,
                Done<server::cluster::Flags> done);
  bool IsCut(const Node* from, const Node& to) const;
  Duration Delay() { return Between(0, 4) + std::chrono::microseconds(Random(900)); }

  // --- What nodes do to disks
  Result<server::cluster::Body> ReadBody(Node& node, const ManifestExtent& extent);
  void Fetch(Node& node, server::cluster::FetchBody fetch, std::size_t next,
             Done<server::cluster::Body> done);
  void Pull(Node& node, server::cluster::PullExtent pull, std::size_t next, Done<void> done);
  void Rebuild(Node& node, const server::cluster::PullExtent& pull, const Done<void>& end);
  void WriteKnown(Node& node, const ManifestExtent& extent, const Done<void>& end);
  Result<void> Write(Node& node, const ManifestExtent& extent, server::cluster::Body bytes);
  void Drop(Node& node, const ExtentId& id);

  // --- Faults
  // Now that a node does something that others rest on: perhaps.
  void Provoke(Node& node);
  bool Stalls(const std::vector<server::cluster::Action>& actions);
  void Cut(const std::string& from, const std::string& to, Duration time);
  void EndLease(const Node& node);
  Node* LeadingNode();
  void PlanFault();
  void Heal();
  void Rot(Node& node);
  void FindOut(SimDisk::Replica& replica);
  void Wipe(Node& node);
  void SpareLast(const ExtentId& id);
  bool MayLose(const Node& node, const ExtentId& id);
  void ChangeMembers();
  void PutMember(const std::string& id, server::cluster::MemberRecord::State state);

  // --- An older state of the store (sim_restore.cpp)
  bool RunRestored();  // False: a violation.
  void PutBack();
  bool LacksKeysOf(const server::MetaState& newer) const;
  void GoOnFor(std::uint64_t revisions);
  bool AwaitIncarnation();
  void Rebuild();  // At some node that is up.
  void TakeRebuilt(Node& node);
  void ConfirmHistory();
  bool IsUnconfirmed() const;

  // --- What has to hold
  struct Truth {
    server::cluster::DatasetRecord record;
    DatasetManifest manifest;
    // Places of its extents in stripes.
    std::map<ExtentId, server::cluster::StripePlace> places = {};
    std::map<ExtentId, ManifestExtent> extents;  // With those of the manifest itself.
    std::uint64_t revision = 0;
  };
  const server::cluster::SlotsRecord& Slots() const { return slots_; }
  std::size_t GoodReplicas(const ManifestExtent& extent) const;
  // What the names want of an extent that is published, and the nodes that are to hold it.
  server::cluster::NameTable::Wanted WantedOf(const ExtentId& id) const;
  server::cluster::OwnerList OwnersOf(const ExtentId& id) const;
  // It is on a good disk, or can be computed: `but` and what lies there does not count.
  bool IsHad(const ManifestExtent& extent, const Node* but = nullptr) const;
  // Members of the stripe, but this one, that are good on other nodes than `but`.
  std::size_t MembersHad(const server::cluster::StripePlace& place, const Node* but) const;
  void NoteSharedWinner(const std::string& name, std::uint64_t attempt);
  void CheckPublished();
  void CheckLease(const Node& node);
  void CheckWriter(const Node& node);
  void CheckDecision(const Node& node, const ExtentId& id);
  void CheckDrop(const Node& node, const ExtentId& id);
  void CheckAnswer(const Node& node, const server::cluster::AskHoldings& question,
                   const server::cluster::Holdings& holdings);
  void NotePromises(const Node& node, const server::cluster::AskHoldings& question,
                    const server::cluster::Holdings& holdings);
  void CheckAnswer(const Node& node, const server::cluster::AskHeard& question,
                   const server::cluster::Flags& flags);
  void CheckAnswer(const Node&, const auto&, const server::cluster::Flags&) {}
  void NoteAnswer(const Node& node, const server::cluster::AskHeard& question,
                  const server::cluster::Flags& flags);
  void NoteAnswer(const Node&, const auto&, const server::cluster::Flags&) {}
  void CheckGivenUp(const Node& node, const server::MetaStore::Commit& commit);
  void CheckRefusal(const Node& node, const server::cluster::Publication::Request& request,
                    TimePoint asked_at, const Error& error);
  bool HoldsSince(const Node& node, const Node& other, const ManifestExtent& extent,
                  TimePoint since) const;
  void CheckStripeRefusal(const Node& node, const server::cluster::Publication::Request& request,
                          TimePoint asked_at, const Error& error);
  void CheckUploadRefusal(const server::cluster::Publication::Request& request, TimePoint asked_at,
                          const Error& error);
  void NoteChanges();
  void NoteCommit(std::span<const server::MetaStore::Event> events);
  void NoteKey(const server::MetaStore::Event& event);
  void NoteSlots(server::cluster::SlotsRecord slots);
  void NoteName(const std::string& name, const server::MetaStore::Event& event);
  // The clients' names have less room than they could use.
  static server::NameQuotas Quotas() { return {{"c", 14'000}, {"c0/", 4'000}}; }
  // Of what one client uploads, so that the names of another one meet their own.
  static server::NameQuotas UploadQuotas() { return {{"c", 12'000}, {"c1/", 3'000}}; }
  std::uint64_t SizeBelow(const std::string& prefix) const;
  std::uint64_t SharesOf(const std::string& prefix) const;
  void CheckQuotas();
  // Of what is uploaded and was never published.
  void CheckUploadQuotas();
  void CheckQuotaRefusal(const server::cluster::Publication::Request& request, TimePoint asked_at,
                         const Error& error);
  void CheckNewName(const std::string& name, const Truth& truth);
  void CheckNewStripes(const std::string& name, const Truth& truth);
  void CheckAttempt(const std::string& name, const Truth& truth, std::uint64_t old_revision);
  void CheckTombstone(const std::string& key, const server::cluster::TombstoneRecord& record);
  void CheckBuried(const std::string& key, const server::cluster::TombstoneRecord& record);
  bool IsRemoved(const ExtentId& id) const;
  bool IsNamedByTombstone(const ExtentId& id) const;
  bool IsConverged(std::string* why);

  const Options options_;
  std::mt19937_64 random_;
  TimePoint now_;
  struct Event {
    TimePoint at;
    std::uint64_t number = 0;  // Those of one time happen in the order in which they were planned.
    Act act;
  };
  static bool IsLater(const Event& one, const Event& other) {
    return one.at != other.at ? one.at > other.at : one.number > other.number;
  }
  std::vector<Event> events_;  // A heap, the next event first.
  std::uint64_t next_event_ = 0;
  std::optional<std::string> violation_;
  Counts counts_;

  server::MetaState state_;
  std::vector<std::unique_ptr<Node>> nodes_;
  // Of nodes that have crashed: what they sent may still arrive.
  struct OldStore {
    std::unique_ptr<server::MemoryMetaStore> store;
    TimePoint silent_from;
    std::string owner;
  };
  std::vector<OldStore> old_stores_;
  std::set<std::pair<std::string, std::string>>
      cuts_;  // From, to; "" is clients, "meta" the store.
  double loss_ = 0, lost_answers_ = 0, late_answers_ = 0, stalls_ = 0, provocations_ = 0;
  bool is_healing_ = false, are_clients_over_ = false;
  std::unique_ptr<server::MetaState> snapshot_;
  std::optional<TimePoint> put_back_at_;  // None: not, or all is confirmed.
  bool was_put_back_ = false;
  std::optional<server::cluster::Rebuild::Report> rebuilt_;
  bool is_rebuilding_ = false;  // Names that change are those of the truth again.
  TimePoint last_loss_{}, last_map_change_{}, last_name_change_{};
  std::uint64_t last_revision_ = 0;     // Up to which commits have been looked at,
  std::uint64_t store_revision_ = 0;    // and up to which all watches know of them.
  server::cluster::SlotsRecord slots_;  // As the store has them.
  // Manifests by attempt, as clients made them; extents that no name refers to any more, since
  // when.
  std::map<std::uint64_t, server::cluster::Body> manifests_;
  std::map<ExtentId, TimePoint> unreferenced_;
  struct Reference {
    ManifestExtent extent;
    std::uint32_t name_count = 0;
  };
  std::map<ExtentId, Reference> referenced_;
  std::map<std::string, Truth> published_;
  // The store's keys, as of the commit that is looked at; who made it, and who led before it.
  std::string author_, leader_;
  std::map<std::uint64_t, TimePoint> open_uploads_;  // Since when.
  std::map<ExtentId, server::cluster::PendingRecord> pending_;
  std::set<ExtentId> ever_published_;
  std::map<std::string, server::cluster::TombstoneRecord> tombstones_;
  std::map<std::uint32_t, server::cluster::SlotsRecord> slot_history_;  // By version.
  struct LeaseKey {
    server::MetaStore::LeaseId lease = 0;
    TimePoint since;
  };
  std::map<std::string, LeaseKey> leases_;  // By node.
  std::map<server::MetaStore::LeaseId, TimePoint> ended_by_force_;
  // What clients have asked for, by attempt; the attempts that have had their effect.
  struct Intent {
    server::cluster::Publication::Mode mode{};
    std::uint64_t expected_revision = 0;
  };
  std::map<std::uint64_t, Intent> intents_;
  std::set<std::uint64_t> effective_;
  // What nodes were told, by who asked: promises of owners, and that an upload goes on.
  struct Promise {
    std::uint32_t version = 0;
    TimePoint at;
  };
  std::map<std::pair<std::string, ExtentId>, std::map<std::string, Promise>> promises_;
  std::map<std::pair<std::string, std::uint64_t>, TimePoint> heard_;
  std::map<std::string, std::uint64_t> shared_winners_;  // Attempt, by name.
  std::map<std::string, std::uint64_t> quota_shares_;    // Bytes, by key.
  std::vector<std::unique_ptr<class SimClient>> clients_;
};

}  // namespace ffrecord::test
