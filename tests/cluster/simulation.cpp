#include "simulation.h"

#include <algorithm>
#include <utility>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/hex.h"
#include "sim_client.h"
#include "sim_node.h"

namespace ffrecord::test {

using namespace server::cluster;
using server::MemoryMetaStore;
using server::MetaStore;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr seconds kStart{1000};  // Virtual time begins here, for a time point of zero means never.
// Whatever a node has asked of its store has been answered by then.
constexpr seconds kLongestCall{15};

}  // namespace

Simulation::Simulation(const Options& options)
    : options_(options), random_(options.seed), now_(kStart) {
  loss_ = Chance(0.5) ? 0.0 : 0.001 * static_cast<double>(Random(50));
  lost_answers_ = Chance(0.5) ? 0.0 : 0.001 * static_cast<double>(Random(100));
  late_answers_ = Chance(0.5) ? 0.0 : 0.001 * static_cast<double>(Random(60));
  stalls_ = Chance(0.4) ? 0.0 : 0.001 * static_cast<double>(Random(80));
  provocations_ = Chance(0.4) ? 0.0 : 0.001 * static_cast<double>(Random(60));
  (void)state_.TryCommit({{}, {{std::string(kClusterKey), std::vector<std::byte>(16)}}, {}}, now_);
  PlanLevel();
  for (int i = 1; i <= options.node_count; ++i) {
    auto node = std::make_unique<Node>();
    node->id = "n" + std::to_string(i);
    AddNode(std::move(node));
  }
  for (int i = 0; i < options.client_count; ++i)
    clients_.push_back(std::make_unique<SimClient>(*this, i));
}

// Without a draw, so that seeds keep their runs: the cluster begins at this level, is raised to it,
// or stays below.
void Simulation::PlanLevel() {
  const auto raise = [this] {
    (void)state_.TryCommit(
        {{}, {{std::string(kLevelKey), LevelRecord{kFeatureLevel}.Encode()}}, {}}, now_);
  };
  if (options_.seed % 3 == 1) raise();
  if (options_.seed % 3 == 2) At(seconds(20), raise);
}

void Simulation::AddNode(std::unique_ptr<Node> node) {
  // A lease allows for a sixteenth between two clocks.
  node->drift_ppm = static_cast<std::int64_t>(Random(60'000)) - 30'000;
  node->clock_offset = seconds(Random(100'000));
  nodes_.push_back(std::move(node));
  PutMember(nodes_.back()->id, MemberRecord::State::kIn);
  Start(*nodes_.back());
}

// Stores answer all that is under way when they end: nobody must listen any more.
Simulation::~Simulation() {
  for (auto& node : nodes_) Crash(*node);
  old_stores_.clear();
}

std::optional<std::string> Simulation::Run() {
  for (auto& client : clients_) At(Between(500, 3000), [&client] { client->Begin(); });
  At(Between(1000, 5000), [this] { PlanFault(); });
  if (options_.is_restored)
    At(Between(8'000, 38'000), [this] { snapshot_ = std::make_unique<server::MetaState>(state_); });
  if (!RunUntil(now_ + options_.trouble)) return violation_;
  if (options_.is_restored && !RunRestored()) return violation_;
  if (!is_healing_) Heal();
  At(seconds(12), [this] { clients_.front()->Probe(); });
  // In steps: what has converged early need not be watched until the end.
  std::string why;
  const TimePoint end = now_ + options_.healing;
  while (now_ < end) {
    if (!RunUntil(now_ + seconds(2))) return violation_;
    if (IsConverged(&why)) break;
  }
  CheckPublished();
  if (!IsConverged(&why)) return "not converged after the faults have ended: " + why;
  for (auto& client : clients_) client->Check(published_);
  return violation_;
}

// --- The world's clockwork ----------------------------------------------------------------------

Simulation::Duration Simulation::Between(std::int64_t from_ms, std::int64_t to_ms) {
  return milliseconds(
      from_ms + static_cast<std::int64_t>(Random(static_cast<std::uint64_t>(to_ms - from_ms + 1))));
}

void Simulation::At(Duration after, Act act) {
  events_.push_back({now_ + after, next_event_++, std::move(act)});
  std::ranges::push_heap(events_, IsLater);
}

void Simulation::Fail(const std::string& what) {
  if (!violation_) violation_ = what;
}

std::int64_t Simulation::Milliseconds() const {
  return std::chrono::duration_cast<milliseconds>(now_.time_since_epoch() - kStart).count();
}

void Simulation::RunStore(Node& node) {
  // Its own callbacks come here as well.
  if (!node.store || node.is_store_running) return;
  node.is_store_running = true;
  author_ = node.owner;
  node.store->Run(now_);
  node.is_store_running = false;
  node.store_wake = node.store->next().value_or(TimePoint::max());
  NoteChanges();
  author_.clear();
}

// All stores see what one of them has changed.
void Simulation::RunStores() {
  NoteChanges();
  const std::uint64_t before = store_revision_;
  for (const auto& node : nodes_)
    if (node->store_wake <= now_) RunStore(*node);
  std::erase_if(old_stores_, [this](const auto& old) { return old.silent_from < now_; });
  for (const auto& old : old_stores_) {
    author_ = old.owner;
    old.store->Run(now_);
    NoteChanges();
    author_.clear();
  }
  state_.ExpireLeases(now_);
  NoteChanges();
  store_revision_ = last_revision_;
  if (before == store_revision_) return;
  for (const auto& node : nodes_) RunStore(*node);
}

bool Simulation::RunUntil(TimePoint end) {
  while (!violation_) {
    TimePoint next = state_.next_expiry().value_or(TimePoint::max());
    if (!events_.empty()) next = std::min(next, events_.front().at);
    for (const auto& node : nodes_) next = std::min(next, node->store_wake);
    for (const auto& old : old_stores_)
      next = std::min(next, old.store->next().value_or(TimePoint::max()));
    if (state_.revision() != store_revision_) next = now_;
    if (next > end) break;
    now_ = std::max(now_, next);
    RunStores();
    if (!events_.empty() && events_.front().at <= now_) {
      std::ranges::pop_heap(events_, IsLater);
      const Act act = std::move(events_.back().act);
      events_.pop_back();
      ++counts_.events;
      act();
    }
  }
  now_ = std::max(now_, end);
  return !violation_;
}

// --- Nodes --------------------------------------------------------------------------------------

Simulation::Node* Simulation::Find(const std::string& id) {
  const auto found = std::ranges::find(nodes_, id, [](const auto& node) { return node->id; });
  return found == nodes_.end() ? nullptr : found->get();
}

MemoryMetaStore::Trip Simulation::NextTrip(const Node& node) {
  MemoryMetaStore::Trip trip;
  trip.there = Delay();
  trip.back = Delay();
  if (is_healing_) return trip;
  // A request may come late, also when its sender has given it up.
  if (Chance(0.02)) trip.there += Between(0, 3'000);
  if (Chance(0.002)) trip.there += Between(3'000, 9'000);
  // So may an answer, or what a watch tells: then a node knows nothing of what follows.
  if (Chance(late_answers_ / 2)) trip.back += Between(0, 3'000);
  if (!cuts_.empty() && cuts_.contains({node.id, "meta"})) {
    trip.loses_request = Chance(0.5);
    trip.is_refused = !trip.loses_request;
  } else {
    trip.loses_answer = Chance(lost_answers_);
  }
  return trip;
}

void Simulation::Start(Node& node) {
  Trace(node.id, " starts");
  ++node.incarnation;
  node.is_up = true;
  node.store = std::make_unique<MemoryMetaStore>(
      state_, MemoryMetaStore::Options{[this, &node] { return NextTrip(node); }, now_});
  ClusterNode::Options options;
  options.lease.node = node.id;
  options.lease.record.epoch = random_();
  options.lease.record.level = kFeatureLevel;
  node.owner = node.id + " " + Hex(options.lease.record.epoch);
  options.lease.ttl = kLeaseTime;
  options.leader.row_size = 3;
  options.leader.down_grace = seconds(8);
  options.leader.upload_grace = kUploadGrace;
  options.mark = node.mark;
  options.known = node.known;
  node.machine = std::make_unique<ClusterNode>(options, node.disk);
  Step(node, nullptr);
}

void Simulation::Crash(Node& node) {
  if (!node.is_up) return;
  Trace(node.id, " crashes");
  ++node.incarnation;
  node.is_up = false;
  node.paused_until = {};
  node.wake_planned = {};  // Its next process would wait for that one.
  node.held.clear();
  node.requests.clear();
  node.machine.reset();
  node.disk.Crash();
  node.store_wake = TimePoint::max();
  old_stores_.push_back({std::move(node.store), now_ + kLongestCall, node.owner});
}

void Simulation::Pause(Node& node, Duration time) {
  if (!node.is_up || now_ < node.paused_until) return;
  Trace(node.id, " pauses");
  node.paused_until = now_ + time;
  At(time, [this, &node] { Resume(node); });
}

// Until it pauses again.
void Simulation::Resume(Node& node) {
  while (!node.held.empty() && now_ >= node.paused_until) {
    const Act act = std::move(node.held.front());
    node.held.pop_front();
    act();
  }
}

TimePoint Simulation::Local(const Node& node) const {
  const Duration world = now_ - TimePoint(kStart);
  return TimePoint(kStart) + node.clock_offset + world + world * node.drift_ppm / 1'000'000;
}

Simulation::Duration Simulation::UntilLocal(const Node& node, TimePoint time) const {
  const Duration local = time - Local(node);
  return local - local * node.drift_ppm / (1'000'000 + node.drift_ppm) +
         std::chrono::nanoseconds(1);
}

void Simulation::Step(Node& node, const Answer* answer) {
  RunStore(node);  // What it asks for now is asked for now.
  NoteChanges();
  const TimePoint local = Local(node);
  auto actions = answer ? node.machine->Step(local, *answer) : node.machine->Step(local);
  CheckLease(node);
  KeepMark(node);
  // Drops come first: from now on those extents are not held.
  std::stable_partition(actions.begin(), actions.end(), [](const Action& action) {
    return std::holds_alternative<DropExtent>(action.call);
  });
  for (const Action& action : actions) {
    if (const auto* const drop = std::get_if<DropExtent>(&action.call))
      CheckDecision(node, drop->id);
    if (const auto* const commit = std::get_if<MetaStore::Commit>(&action.call))
      CheckGivenUp(node, *commit);
  }
  if (Stalls(actions)) {  // Between what it has decided and what it does.
    ++counts_.stalls;
    Pause(node, Between(100, 8'000));
    node.held.push_front([this, &node, actions] { CarryOutAll(node, actions); });
  } else {
    CarryOutAll(node, std::move(actions));
  }
  PlanWake(node);
}

void Simulation::CarryOutAll(Node& node, std::vector<Action> actions) {
  RunStore(node);
  if (!actions.empty()) node.store_wake = now_;
  for (Action& action : actions) CarryOut(node, std::move(action));
  for (const auto& finished : node.machine->TakeFinished()) {
    const auto request = node.requests.extract(finished.request);
    if (!request.empty()) request.mapped()(finished.result);
  }
  TakeRebuilt(node);
}

void Simulation::PlanWake(Node& node) {
  const TimePoint next = node.machine->wake();
  if (next == TimePoint::max()) return;
  const TimePoint wake = now_ + std::max<Duration>(UntilLocal(node, next), milliseconds(1));
  if (wake >= node.wake_planned && node.wake_planned > now_) return;
  node.wake_planned = wake;
  At(wake - now_, [this, &node, wake, incarnation = node.incarnation] {
    if (node.wake_planned != wake || node.incarnation != incarnation) return;
    node.wake_planned = {};
    On(node, [this, &node] { Step(node, nullptr); });
  });
}

void Simulation::CarryOut(Node& node, Action action) {
  MetaStore& store = *node.store;
  const CallId id = action.id;
  // Answers reach the node that asked, and no later start of it.
  const auto reply = [this, &node, id, incarnation = node.incarnation](auto result) {
    if (node.incarnation != incarnation) return;
    On(node, [this, &node, answer = std::make_shared<const Answer>(Answer{id, std::move(result)})] {
      Step(node, answer.get());
    });
  };
  const bool is_endless = action.deadline == TimePoint::max();
  const Duration patience = is_endless ? Duration::max() : UntilLocal(node, action.deadline);
  const TimePoint deadline = is_endless ? TimePoint::max() : now_ + patience;
  std::visit(
      [&](auto& call) {
        using T = std::decay_t<decltype(call)>;
        if constexpr (std::is_same_v<T, GetKey>) {
          store.Get(call.key, deadline, reply);
        } else if constexpr (std::is_same_v<T, MetaStore::ListRequest>) {
          store.List(call, deadline, reply);
        } else if constexpr (std::is_same_v<T, MetaStore::Commit>) {
          Provoke(node);
          store.TryCommit(call, deadline, reply);
        } else if constexpr (std::is_same_v<T, GrantLease>) {
          store.GrantLease(call.ttl, deadline, reply);
        } else if constexpr (std::is_same_v<T, KeepLease>) {
          store.KeepLease(call.lease, deadline, reply);
        } else if constexpr (std::is_same_v<T, RevokeLease>) {
          store.RevokeLease(call.lease, deadline, reply);
        } else if constexpr (std::is_same_v<T, WatchKeys>) {
          node.watches[id] = store.Watch(call.prefix, call.from_revision, reply);
        } else if constexpr (std::is_same_v<T, EndWatch>) {
          store.StopWatch(node.watches[call.watch]);
        } else if constexpr (std::is_same_v<T, AskHoldings>) {
          AskHoldingsOf(node, call, patience, reply);
        } else if constexpr (std::is_same_v<T, AskKnown>) {
          AskKnownOf(node, call, patience, reply);
        } else if constexpr (std::is_same_v<T, FetchBody>) {
          Fetch(node, std::move(call), 0, reply);
        } else if constexpr (std::is_same_v<T, StoreBody>) {
          Ask<void>(
              &node, call.node, patience,
              [this, call](Node& other) { return Write(other, call.extent, call.bytes); }, reply);
        } else if constexpr (std::is_same_v<T, PullExtent>) {
          node.disk.pulling.push_back(call.extent.id);
          Pull(node, std::move(call), 0, reply);
        } else if constexpr (std::is_same_v<T, DropExtent>) {
          Drop(node, call.id);
        } else {
          AskFlags(node, call, patience, reply);
        }
      },
      action.call);
}

}  // namespace ffrecord::test
