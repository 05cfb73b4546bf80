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
    bool is_traced = false;            // Prints each event.
  };
  struct Counts {
    std::uint64_t events = 0, published = 0, removed = 0, refused = 0, unresolved = 0;
    std::uint64_t faults = 0, pulls = 0, drops = 0, map_changes = 0;
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
  std::int64_t Milliseconds() const;
  std::uint64_t Random(std::uint64_t below) { return below == 0 ? 0 : random_() % below; }
  bool Chance(double probability) {
    return static_cast<double>(random_() % 1'000'000) < probability * 1e6;
  }
  Duration Between(std::int64_t from_ms, std::int64_t to_ms);

  // --- Nodes
  void Start(Node& node);
  void Crash(Node& node);
  void Pause(Node& node, Duration time);
  // Runs `act` on the node unless it is down; once it goes on, if it is paused.
  template <class F>
  void On(Node& node, F act);
  void Step(Node& node, const server::cluster::Answer* answer);
  void CarryOut(Node& node, server::cluster::Action action);
  Node* Find(const std::string& id);
  server::MemoryMetaStore::Trip NextTrip(const Node& node);

  // --- The network: a question to another node, whose answer comes once, or a time-out
  template <class T>
  void Ask(Node* from, const std::string& to, Duration patience,
           std::function<Result<T>(Node&)> ask, Done<T> done);
  void AskPublication(const std::string& to, server::cluster::Publication::Request request,
                      Done<std::uint64_t> done);
  bool IsCut(const Node* from, const Node& to) const;
  Duration Delay() { return Between(0, 4) + std::chrono::microseconds(Random(900)); }

  // --- What nodes do to disks
  Result<server::cluster::Body> ReadBody(Node& node, const ManifestExtent& extent);
  void Fetch(Node& node, server::cluster::FetchBody fetch, std::size_t next,
             Done<server::cluster::Body> done);
  void Pull(Node& node, server::cluster::PullExtent pull, std::size_t next, Done<void> done);
  Result<void> Write(Node& node, const ManifestExtent& extent, server::cluster::Body bytes);
  void Drop(Node& node, const ExtentId& id);

  // --- Faults
  void PlanFault();
  void Heal();
  void Rot(Node& node);
  void Wipe(Node& node);
  bool MayLose(const Node& node, const ExtentId& id);
  void ChangeMembers();
  void PutMember(const std::string& id, server::cluster::MemberRecord::State state);

  // --- What has to hold
  struct Truth {
    server::cluster::DatasetRecord record;
    DatasetManifest manifest;
    std::set<ExtentId> extents;  // With those of the manifest itself.
    std::uint64_t revision = 0;
  };
  const server::cluster::SlotsRecord& Slots() const { return slots_; }
  std::size_t GoodReplicas(const ExtentId& id) const;
  std::size_t WantedReplicas(const ExtentId& id) const;
  void NoteSharedWinner(const std::string& name, std::uint64_t attempt);
  void CheckPublished();
  void CheckLeases();
  void CheckDrop(const Node& node, const ExtentId& id);
  void NoteChanges();
  void NoteCommit(std::span<const server::MetaStore::Event> events);
  void NoteSlots(server::cluster::SlotsRecord slots);
  void NoteName(const std::string& name, const server::MetaStore::Event& event);
  void CheckNewName(const std::string& name, const Truth& truth);
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
  };
  std::vector<OldStore> old_stores_;
  std::set<std::pair<std::string, std::string>>
      cuts_;  // From, to; "" is clients, "meta" the store.
  double loss_ = 0, lost_answers_ = 0;
  bool is_healing_ = false;
  TimePoint last_loss_{};
  std::uint64_t last_revision_ = 0;
  server::cluster::SlotsRecord slots_;  // As the store has them.
  // Manifests by attempt, as clients made them; extents that no name refers to any more, since
  // when.
  std::map<std::uint64_t, server::cluster::Body> manifests_;
  std::map<ExtentId, TimePoint> unreferenced_;
  std::map<ExtentId, std::uint32_t> referenced_;  // By how many names.
  std::map<std::string, Truth> published_;
  std::map<std::string, std::uint64_t> shared_winners_;  // Attempt, by name.
  std::vector<std::unique_ptr<class SimClient>> clients_;
};

}  // namespace ffrecord::test
