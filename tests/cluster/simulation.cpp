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
  for (int i = 1; i <= options.node_count; ++i) {
    auto node = std::make_unique<Node>();
    node->id = "n" + std::to_string(i);
    nodes_.push_back(std::move(node));
    PutMember(nodes_.back()->id, MemberRecord::State::kIn);
    Start(*nodes_.back());
  }
  for (int i = 0; i < options.client_count; ++i)
    clients_.push_back(std::make_unique<SimClient>(*this, i));
}

// Stores answer all that is under way when they end: nobody must listen any more.
Simulation::~Simulation() {
  for (auto& node : nodes_) Crash(*node);
  old_stores_.clear();
}

std::optional<std::string> Simulation::Run() {
  for (auto& client : clients_) At(Between(500, 3000), [&client] { client->Begin(); });
  At(Between(1000, 5000), [this] { PlanFault(); });
  if (!RunUntil(now_ + options_.trouble)) return violation_;
  Heal();
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
  if (!node.store) return;
  node.store->Run(now_);
  node.store_wake = node.store->next().value_or(TimePoint::max());
}

// All stores see what one of them has changed.
void Simulation::RunStores() {
  for (const auto& node : nodes_)
    if (node->store_wake <= now_) RunStore(*node);
  std::erase_if(old_stores_, [this](const auto& old) { return old.silent_from < now_; });
  for (const auto& old : old_stores_) old.store->Run(now_);
  state_.ExpireLeases(now_);
  if (state_.revision() == last_revision_) return;
  NoteChanges();
  for (const auto& node : nodes_) RunStore(*node);
}

bool Simulation::RunUntil(TimePoint end) {
  while (!violation_) {
    TimePoint next = state_.next_expiry().value_or(TimePoint::max());
    if (!events_.empty()) next = std::min(next, events_.front().at);
    for (const auto& node : nodes_) next = std::min(next, node->store_wake);
    for (const auto& old : old_stores_)
      next = std::min(next, old.store->next().value_or(TimePoint::max()));
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
  if (Chance(0.02)) trip.there += Between(0, 3000);  // A request may come late.
  if (cuts_.contains({node.id, "meta"})) {
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
  options.lease.ttl = seconds(4);
  options.leader.row_size = 3;
  options.leader.down_grace = seconds(8);
  options.leader.upload_grace = seconds(9);
  node.machine = std::make_unique<ClusterNode>(options, node.disk);
  Step(node, nullptr);
}

void Simulation::Crash(Node& node) {
  if (!node.is_up) return;
  Trace(node.id, " crashes");
  ++node.incarnation;
  node.is_up = false;
  node.paused_until = {};
  node.held.clear();
  node.requests.clear();
  node.machine.reset();
  node.disk.Crash();
  node.store_wake = TimePoint::max();
  old_stores_.push_back({std::move(node.store), now_ + kLongestCall});
}

void Simulation::Pause(Node& node, Duration time) {
  Trace(node.id, " pauses");
  node.paused_until = now_ + time;
  At(time, [this, &node] {
    if (now_ < node.paused_until) return;
    const auto held = std::exchange(node.held, {});
    for (const Act& act : held) act();
  });
}

template <class F>
void Simulation::On(Node& node, F act) {
  if (!node.is_up) return;
  if (now_ < node.paused_until)
    node.held.emplace_back(std::move(act));  // A crash forgets it.
  else
    act();
}

void Simulation::Step(Node& node, const Answer* answer) {
  auto actions = answer ? node.machine->Step(now_, *answer) : node.machine->Step(now_);
  // Drops come first: from now on those extents are not held.
  std::stable_partition(actions.begin(), actions.end(), [](const Action& action) {
    return std::holds_alternative<DropExtent>(action.call);
  });
  for (Action& action : actions) CarryOut(node, std::move(action));
  if (!actions.empty()) node.store_wake = now_;
  for (const auto& finished : node.machine->TakeFinished()) {
    const auto request = node.requests.extract(finished.request);
    if (!request.empty()) request.mapped()(finished.result);
  }
  const TimePoint wake = std::max(node.machine->wake(), now_ + milliseconds(1));
  if (wake < node.wake_planned || node.wake_planned <= now_) {
    node.wake_planned = wake;
    if (wake == TimePoint::max()) return;
    const std::uint64_t incarnation = node.incarnation;
    At(wake - now_, [this, &node, wake, incarnation] {
      if (node.wake_planned != wake || node.incarnation != incarnation) return;
      node.wake_planned = {};
      On(node, [this, &node] { Step(node, nullptr); });
    });
  }
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
  const TimePoint deadline = action.deadline;
  const Duration patience = deadline - now_;
  const auto flags = [&](auto question) {
    const std::string to = question.node;
    Ask<Flags>(
        &node, to, patience,
        [this, question](Node& other) {
          return Result<Flags>(other.machine->OnAsk(now_, question));
        },
        reply);
  };
  std::visit(
      [&](auto& call) {
        using T = std::decay_t<decltype(call)>;
        if constexpr (std::is_same_v<T, GetKey>) {
          store.Get(call.key, deadline, reply);
        } else if constexpr (std::is_same_v<T, MetaStore::ListRequest>) {
          store.List(call, deadline, reply);
        } else if constexpr (std::is_same_v<T, MetaStore::Commit>) {
          store.TryCommit(call, deadline, reply);
        } else if constexpr (std::is_same_v<T, GrantLease>) {
          store.GrantLease(call.ttl, deadline, reply);
        } else if constexpr (std::is_same_v<T, KeepLease>) {
          store.KeepLease(call.lease, deadline, reply);
        } else if constexpr (std::is_same_v<T, RevokeLease>) {
          store.RevokeLease(call.lease, deadline, reply);
        } else if constexpr (std::is_same_v<T, WatchKeys>) {
          store.Watch(call.prefix, call.from_revision, reply);
        } else if constexpr (std::is_same_v<T, AskHoldings>) {
          Ask<Holdings>(
              &node, call.node, patience,
              [this, call](Node& other) {
                return Result<Holdings>(other.machine->OnAsk(now_, call));
              },
              reply);
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
          flags(std::move(call));
        }
      },
      action.call);
}

// --- The network --------------------------------------------------------------------------------

bool Simulation::IsCut(const Node* from, const Node& to) const {
  return cuts_.contains({from ? from->id : "", to.id});
}

template <class T>
void Simulation::Ask(Node* from, const std::string& to, Duration patience,
                     std::function<Result<T>(Node&)> ask, Done<T> done) {
  auto state = std::make_shared<Done<T>>(std::move(done));
  const auto finish = [state](Result<T> result) {
    if (*state) std::exchange(*state, nullptr)(std::move(result));
  };
  At(std::max(patience, Duration(0)), [finish] {
    finish(Error{ErrorCode::kDeadlineExceeded, "no answer"});
  });
  Node* const node = Find(to);
  if (node == nullptr || IsCut(from, *node) || Chance(is_healing_ ? 0 : loss_)) return;
  At(Delay(), [this, from, node, finish, ask = std::move(ask)] {
    if (!node->is_up) return finish(Error{ErrorCode::kUnavailable, "the node is down"});
    On(*node, [this, from, node, finish, ask] {
      auto result = ask(*node);
      const bool is_lost = from != nullptr && IsCut(node, *from);
      if (is_lost || Chance(is_healing_ ? 0 : loss_)) return;
      At(Delay(), [finish, result = std::move(result)] { finish(result); });
    });
  });
}

// --- Disks --------------------------------------------------------------------------------------

Result<Body> Simulation::ReadBody(Node& node, const ManifestExtent& extent) {
  const auto found = node.disk.replicas.find(extent.id);
  if (!node.disk.Find(extent.id)) return Error{ErrorCode::kNotFound, "not here"};
  if (found->second.is_rotten) {
    found->second.is_known_bad = true;
    return Error{ErrorCode::kCorruption, "rotten"};
  }
  return found->second.bytes;
}

void Simulation::Fetch(Node& node, FetchBody fetch, std::size_t next, Done<Body> done) {
  if (next == 0)
    if (auto own = ReadBody(node, fetch.extents.front())) return done(std::move(own));
  if (next == fetch.nodes.size()) return done(Error{ErrorCode::kUnavailable, "nobody has it"});
  const ManifestExtent extent = fetch.extents.front();
  const std::string from = fetch.nodes[next];
  const std::uint64_t incarnation = node.incarnation;
  Ask<Body>(
      &node, from, seconds(1), [this, extent](Node& other) { return ReadBody(other, extent); },
      [this, &node, fetch = std::move(fetch), next, done, incarnation](Result<Body> body) {
        if (!node.is_up || node.incarnation != incarnation) return;
        if (body) return done(std::move(body));
        Fetch(node, fetch, next + 1, done);
      });
}

void Simulation::Pull(Node& node, PullExtent pull, std::size_t next, Done<void> done) {
  const ManifestExtent extent = pull.extent;
  const auto end = [&node, extent, done](Result<void> result) {
    std::erase(node.disk.pulling, extent.id);
    done(std::move(result));
  };
  if (next == pull.nodes.size()) return end(Error{ErrorCode::kUnavailable, "nobody has it"});
  const std::string from = pull.nodes[next];
  const std::uint64_t incarnation = node.incarnation;
  Ask<Body>(
      &node, from, seconds(3), [this, extent](Node& other) { return ReadBody(other, extent); },
      [this, &node, pull = std::move(pull), next, done, end, extent,
       incarnation](Result<Body> body) {
        if (!node.is_up || node.incarnation != incarnation) return;
        if (!body) return Pull(node, pull, next + 1, done);
        // The bytes arrive, and are written.
        At(Between(1, 400), [this, &node, end, extent, incarnation, bytes = body.value()] {
          if (!node.is_up || node.incarnation != incarnation) return;
          On(node, [this, &node, end, extent, bytes] {
            // An id is free again once its old file is gone.
            if (const auto old = node.disk.replicas.find(extent.id);
                old != node.disk.replicas.end() && old->second.is_dropping)
              return end(Error{ErrorCode::kConflict, "it is being dropped"});
            ++counts_.pulls;
            Trace(node.id, " has pulled ", Hex(extent.id));
            node.disk.replicas.insert_or_assign(extent.id, SimDisk::Replica{extent, bytes});
            end({});
          });
        });
      });
}

// An extent of an upload: taken only while that is open. An answer means that it is durable.
Result<void> Simulation::Write(Node& node, const ManifestExtent& extent, Body bytes) {
  const std::uint64_t upload = UploadOf(extent.id);
  if (!node.machine->TakesUpload(now_, upload))
    return Error{ErrorCode::kUnavailable, "that upload is not open here"};
  node.disk.heard[upload] = now_;
  const auto found = node.disk.replicas.find(extent.id);
  if (found != node.disk.replicas.end() && !found->second.is_known_bad) {
    if (found->second.is_dropping) return Error{ErrorCode::kUnavailable, "it is being dropped"};
    return {};
  }
  Trace(node.id, " takes ", Hex(extent.id));
  node.disk.replicas.insert_or_assign(extent.id, SimDisk::Replica{extent, std::move(bytes)});
  return {};
}

void Simulation::Drop(Node& node, const ExtentId& id) {
  const auto found = node.disk.replicas.find(id);
  if (found == node.disk.replicas.end() || found->second.is_dropping) return;
  Trace(node.id, " drops ", Hex(id));
  ++counts_.drops;
  found->second.is_dropping = true;
  CheckDrop(node, id);
  // Unlinked once readers have gone.
  const std::uint64_t incarnation = node.incarnation;
  At(Between(0, 2000), [&node, id, incarnation] {
    if (node.is_up && node.incarnation == incarnation) node.disk.replicas.erase(id);
  });
}

// --- For clients --------------------------------------------------------------------------------

// The answer comes when the request has finished, if the node has not crashed by then.
void Simulation::AskPublication(const std::string& to, Publication::Request request,
                                Done<std::uint64_t> done) {
  auto state = std::make_shared<Done<std::uint64_t>>(std::move(done));
  const auto finish = [state](Result<std::uint64_t> result) {
    if (*state) std::exchange(*state, nullptr)(std::move(result));
  };
  At(request.deadline - now_ + seconds(2), [finish] {
    finish(Error{ErrorCode::kDeadlineExceeded, "no answer"});
  });
  Node* const node = Find(to);
  if (IsCut(nullptr, *node) || Chance(is_healing_ ? 0 : loss_)) return;
  At(Delay(), [this, node, finish, request = std::move(request)] {
    if (!node->is_up) return finish(Error{ErrorCode::kUnavailable, "the node is down"});
    On(*node, [this, node, finish, request] {
      const auto id = node->machine->Begin(request);
      node->requests[id] = [this, finish](Result<std::uint64_t> result) {
        if (Chance(is_healing_ ? 0 : loss_)) return;
        At(Delay(), [finish, result = std::move(result)] { finish(result); });
      };
      Step(*node, nullptr);
    });
  });
}

template void Simulation::Ask<void>(Node*, const std::string&, Duration,
                                    std::function<Result<void>(Node&)>, Done<void>);

}  // namespace ffrecord::test
