#include "client/dataset/cluster.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "client/dataset/failures.h"
#include "libffrecord/base/back_off.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/base/patient_wait.h"
#include "libffrecord/base/process_threads.h"
#include "libffrecord/base/side_by_side.h"

namespace ffrecord::client {
namespace {

using std::chrono_literals::operator""ms;

// How long one node may take to send its map while there are others: in the first round, so that
// silent nodes do not delay it by much, and at most.
constexpr auto kMapTimeMin = 250ms;
constexpr auto kMapTime = 2'000ms;
// How long another one may take to find what one did not.
constexpr auto kOthersTime = 500ms;
// The same where the daemon that has answered does not know all addresses: it may be a stranger at
// one of them, and the others slow.
constexpr auto kStrangersTime = 3'000ms;
// Between two looks for a newer map: because a node spoke of one, or because something failed.
constexpr auto kNewerPause = 100ms;
constexpr auto kFailurePause = 1'000ms;

bool HasOwnNames(const net::Connection& connection) {
  return (connection.hello().capabilities & net::kCapabilityOwnNames) != 0;
}

// One try at one daemon, which ends as soon as it fails. `is_told`: the failure is what it says.
Result<void> TryAt(net::Session& session, const Cluster::Attempt& attempt, net::Deadline until,
                   bool& is_told, std::atomic<bool>* has_own_names = nullptr) {
  is_told = false;
  net::Session::Tries tries(session, net::Session::Tries::Until::kFirstFailure);
  FFR_TRY(tries.Begin(until));
  if (has_own_names != nullptr) *has_own_names = HasOwnNames(*tries.connection());
  auto done = attempt(*tries.connection(), until);
  is_told = tries.connection()->reusable() && !tries.connection()->retry_after();
  return tries.End(std::move(done));
}

Result<ClusterView> AskView(net::Connection& connection, const ClusterView* before,
                            const net::Location& seed, net::Deadline deadline) {
  const net::ClusterMap question{before == nullptr ? 0 : before->map.version};
  const auto reply = FFR_TRY(connection.Call(net::FrameType::kClusterMap, question.Encode(), {},
                                             deadline, "the map of its cluster"));
  auto decoded = FFR_TRY(net::ClusterMapReply::Decode(reply.body));
  return NextView(before, std::move(decoded), reply.payload, seed);
}

// Whether the trouble is of one node: its disk or its metadata. A quota is the cluster's.
bool IsOwnTrouble(const Error& error) { return IsIll(error) && error.system_errno != EDQUOT; }

// Whichever node it comes from.
bool SaysNothingNew(const ClusterView& fresh, const ClusterView& current) {
  net::ClusterMapReply reply = fresh.reply;
  reply.node = current.reply.node;
  return reply == current.reply;
}

// The daemons of an address, which are asked at once whether they are of a cluster.
class Asking {
 public:
  Asking(std::span<const net::Location> locations, const SessionOptions& options)
      : locations_(locations),
        options_(options),
        deadline_(net::Clock::now() + options.timeout),
        answers_(locations.size()) {}

  // As Cluster::Find; no view: they are of no cluster.
  Result<std::optional<ClusterView>> Run() {
    Patience& caller = Patience::OfThread();
    const auto caller_thread = std::this_thread::get_id();
    const Patience::GiveUp give_up = [&] {
      if (std::this_thread::get_id() == caller_thread && caller.IsOver()) is_over_ = true;
      return is_over_ || net::Clock::now().time_since_epoch().count() > others_end_;
    };
    std::atomic<std::size_t> next{0};
    static_cast<void>(SideBySide::Run(locations_.size(), [&](const SideBySide&) -> Result<void> {
      const Patience patience(give_up);
      for (std::size_t i; (i = next++) < locations_.size();) Note(i, Ask(locations_[i]));
      return {};
    }));
    return Decide();
  }

 private:
  using Answer = Result<std::optional<ClusterView>>;
  static constexpr auto kNever = net::Deadline::max().time_since_epoch().count();

  Answer Ask(const net::Location& location) const {
    std::optional<ClusterView> view;
    const auto ask = [&](net::Connection& connection) -> Result<void> {
      const net::HelloReply& hello = connection.hello();
      if ((hello.capabilities & net::kCapabilityCluster) != 0) {
        view = FFR_TRY(AskView(connection, nullptr, location, deadline_));
        view->has_own_names = HasOwnNames(connection);
      } else if (hello.identity && locations_.size() > 1) {
        return Error{ErrorCode::kUnavailable, location.address.ToString() +
                                                  " is not yet a node of its cluster, which its "
                                                  "`status` explains"};
      }
      return {};
    };
    const auto session = net::Session::Get(location, options_);
    FFR_TRY(session->Run(ask, deadline_));
    // From now on only the nodes are asked, each over a session that makes sure which one it is.
    if (view) session->CloseIdle([](const net::Connection&) { return true; });
    return view;
  }

  void Note(std::size_t i, Answer answer) {
    const std::lock_guard lock(mutex_);
    if (!answer) {
      // Whatever is not a daemon's absence says more than that.
      if (IsAway(error_)) error_.code = answer.error().code;
      error_.message += (error_.message.empty() ? "" : "; ") + answer.error().message;
      return;
    }
    answers_[i] = std::move(answer).value();
    if (Vouches(*answers_[i]) || HasMost(*answers_[i])) is_over_ = true;
    const auto end = net::Clock::now() + (IsOfAll(*answers_[i]) ? kOthersTime : kStrangersTime);
    others_end_ = std::min(others_end_.load(), end.time_since_epoch().count());
  }

  // The node that it names at this address; null: none.
  static const net::ClusterMapReply::Node* NodeAt(const ClusterView& view,
                                                  const net::Location& location) {
    const auto& nodes = view.reply.nodes;
    const auto node =
        std::ranges::find(nodes, location.address.ToString(), &net::ClusterMapReply::Node::address);
    return node == nodes.end() ? nullptr : &*node;
  }
  // All addresses are those of its nodes.
  bool IsOfAll(const std::optional<ClusterView>& view) const {
    return view && std::ranges::all_of(locations_, [&](const net::Location& location) {
             return NodeAt(*view, location) != nullptr;
           });
  }
  // And most of these are up: no other cluster can say so.
  bool Vouches(const std::optional<ClusterView>& view) const {
    return IsOfAll(view) && IsMost(static_cast<std::size_t>(std::ranges::count_if(
                                locations_, [&](const net::Location& location) {
                                  return NodeAt(*view, location)->is_up;
                                })));
  }

  bool IsMost(std::size_t count) const { return 2 * count > locations_.size(); }
  // Most daemons are of the same cluster, or of none as this one.
  bool HasMost(const std::optional<ClusterView>& view) const {
    return IsMost(static_cast<std::size_t>(std::ranges::count_if(
        answers_, [&](const auto& other) { return other && IsOneWith(*other, view); })));
  }
  static bool IsOneWith(const std::optional<ClusterView>& one,
                        const std::optional<ClusterView>& other) {
    return one.has_value() == other.has_value() &&
           (!one || one->reply.cluster == other->reply.cluster);
  }

  // Decides among the nodes that have answered.
  Answer Decide() {
    const std::optional<ClusterView>* chosen = nullptr;
    std::size_t first = answers_.size(), other = answers_.size();  // That disagree.
    for (std::size_t i = 0; i < answers_.size(); ++i) {
      if (!answers_[i]) continue;
      if (first == answers_.size()) first = i;
      if (!IsOneWith(*answers_[first], *answers_[i])) other = i;
    }
    if (first == answers_.size()) return std::move(error_);
    for (const auto& answer : answers_)
      if (answer && (other == answers_.size() || Vouches(*answer) || HasMost(*answer)))
        if (chosen == nullptr || IsNewer(*answer, *chosen)) chosen = &*answer;
    if (chosen != nullptr) return *chosen;
    return Error{ErrorCode::kConflict, WhoIs(first) + ", and " + WhoIs(other) +
                                           ": correct the address, or stop the daemon that is not "
                                           "yours"};
  }
  static bool IsNewer(const std::optional<ClusterView>& one,
                      const std::optional<ClusterView>& other) {
    return one && other && one->reply.version > other->reply.version;
  }
  std::string WhoIs(std::size_t i) const {
    const std::string where = locations_[i].address.ToString();
    const auto& view = *answers_[i];
    if (!view) return where + " is a daemon of no cluster";
    return where + " is a node of cluster " + Hex(view->reply.cluster);
  }

  const std::span<const net::Location> locations_;
  const SessionOptions& options_;
  const net::Deadline deadline_;
  std::atomic<bool> is_over_{false};
  std::atomic<net::Deadline::rep> others_end_{kNever};  // Since the clock's beginning.
  std::mutex mutex_;
  std::vector<std::optional<std::optional<ClusterView>>> answers_;  // By location.
  Error error_{ErrorCode::kUnavailable, ""};
};

}  // namespace

Result<std::shared_ptr<Cluster>> Cluster::Find(std::span<const net::Location> locations,
                                               const SessionOptions& options) {
  auto view = FFR_TRY(Asking(locations, options).Run());
  if (!view) return std::shared_ptr<Cluster>();
  return std::make_shared<Cluster>(*std::move(view), options,
                                   std::vector(locations.begin(), locations.end()));
}

Cluster::Cluster(ClusterView view, const SessionOptions& options, std::vector<net::Location> seeds)
    : first_view_(std::make_shared<const ClusterView>(std::move(view))),
      options_(options),
      seeds_(std::move(seeds)),
      own_node_(first_view_->reply.node),
      version_(first_view_->map.version),
      state_([] { return new State; }) {
  // A daemon that is being adopted has names that others do not list yet.
  const auto& places = first_view_->places;
  const auto asked = std::ranges::find(places, first_view_->reply.node, &ClusterView::Place::node);
  if (asked == places.end()) return;
  last_place_ = static_cast<std::size_t>(asked - places.begin());
  has_own_names_ = first_view_->has_own_names;
}

Cluster::~Cluster() {
  State& state = state_.Get();
  state.is_over = true;
  if (state.thread) ::pthread_join(*state.thread, nullptr);
}

std::shared_ptr<const ClusterView> Cluster::view() const {
  State& state = state_.Get();
  const std::lock_guard lock(state.mutex);
  return state.view != nullptr ? state.view : first_view_;
}

void Cluster::NoteVersion(std::uint32_t version) {
  if (version > version_.load(std::memory_order_relaxed)) FetchSoon(kNewerPause);
}

void Cluster::NoteFailure() { FetchSoon(kFailurePause); }

void Cluster::FetchSoon(net::Deadline::duration pause) {
  State& state = state_.Get();
  if (state.is_fetching) return;
  const std::lock_guard lock(state.mutex);
  const auto now = net::Clock::now();
  if (state.is_fetching || now < state.fetched_at + pause) return;
  state.fetched_at = now;
  // The one before has nothing left to do.
  if (state.thread) ::pthread_join(*std::exchange(state.thread, std::nullopt), nullptr);
  pthread_t thread{};
  state.is_fetching = true;
  if (StartQuietThread(thread, &Cluster::Fetch, this))
    state.thread = thread;
  else
    state.is_fetching = false;
}

void* Cluster::Fetch(void* self) {
  auto& cluster = *static_cast<Cluster*>(self);
  State& state = cluster.state_.Get();
  const Patience::GiveUp give_up = [&] { return state.is_over.load(); };
  const Patience patience(give_up);
  static_cast<void>(cluster.Refresh(net::Clock::now() + cluster.options_.timeout));
  state.is_fetching = false;
  return nullptr;
}

Result<void> Cluster::Refresh(net::Deadline deadline) {
  std::optional<ClusterView> fresh;
  const Attempt ask = [&](net::Connection& connection, net::Deadline until) -> Result<void> {
    const auto before = view();
    fresh = FFR_TRY(AskView(connection, before.get(), before->places.front().location, until));
    return {};
  };
  BackOff backoff(BackOff::kOfDaemons);
  std::optional<Error> told;
  for (auto time = kMapTimeMin;; time = std::min(2 * time, kMapTime)) {
    auto [has_answer, done] = TryEach(ask, deadline, time, Absence::kIsAnAnswer, told);
    if (!has_answer && AskSeeds(ask, deadline, time)) done = {};
    if (done) {
      Take(*std::move(fresh));
      return {};
    }
    const auto next = net::Clock::now() + backoff.Next();
    if (has_answer || next >= deadline || Patience::OfThread().IsOver()) return done;
    SleepPatiently(next);
  }
}

// Asks the daemons at the addresses that the user gave. NextView() refuses the answer of another
// cluster.
bool Cluster::AskSeeds(const Attempt& attempt, net::Deadline deadline,
                       std::chrono::milliseconds answer_time) const {
  return std::ranges::any_of(seeds_, [&](const net::Location& seed) {
    const auto session = net::Session::Get(seed, options_);
    const auto until = std::min<net::Deadline>(deadline, net::Clock::now() + answer_time);
    bool is_told = false;
    const bool has_answered{TryAt(*session, attempt, until, is_told)};
    session->CloseIdle([](const net::Connection&) { return true; });
    return has_answered;
  });
}

// Views of several calls may come in any order; an older map never takes the place of a newer one.
// A view that says nothing new leaves the old one, and with it all that readers have computed from
// it.
void Cluster::Take(ClusterView fresh) {
  State& state = state_.Get();
  const std::lock_guard lock(state.mutex);
  const ClusterView& current = state.view != nullptr ? *state.view : *first_view_;
  if (fresh.map.version < current.map.version || fresh.places.size() < current.places.size() ||
      SaysNothingNew(fresh, current))
    return;
  version_ = fresh.map.version;
  state.view = std::make_shared<const ClusterView>(std::move(fresh));
}

Result<void> Cluster::Run(const Attempt& attempt, net::Deadline deadline,
                          std::chrono::milliseconds answer_time, Absence absence) const {
  std::optional<BackOff> backoff;
  std::optional<Error> told;  // The last error of a node that could not do it now.
  for (;;) {
    auto [has_answer, done] = TryEach(attempt, deadline, answer_time, absence, told);
    if (has_answer) return done;
    if (!backoff) backoff.emplace(BackOff::kOfDaemons);
    const auto next = net::Clock::now() + backoff->Next();
    if (next >= deadline || Patience::OfThread().IsOver()) {
      Error error = std::move(done).error();
      error.message += " (all " + std::to_string(view()->places.size()) +
                       " nodes of the cluster were tried until the timeout)";
      return error;
    }
    SleepPatiently(next);
  }
}

Cluster::Round Cluster::TryEach(const Attempt& attempt, net::Deadline deadline,
                                std::chrono::milliseconds answer_time, Absence absence,
                                std::optional<Error>& told) const {
  const auto places = view()->places;
  std::optional<Error> last;
  std::optional<Error> unknown;  // Whatever is not the name's absence says more than that.
  std::optional<Error> denied;
  std::size_t denied_count = 0, asked_count = 0;
  bool has_own_answered = !has_own_names_;
  const std::size_t first = last_place_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::size_t place = (first + i) % places.size();
    const bool is_own = places[place].node == own_node_;
    if (absence == Absence::kIsOfAll && has_own_names_ && !is_own) continue;
    ++asked_count;
    const bool hurries = unknown && absence == Absence::kAsksAll;
    const auto share = hurries ? std::min(kOthersTime, answer_time) : answer_time;
    const auto until = std::min(deadline, net::Clock::now() + share);
    bool is_told = false;
    auto done = TryAt(*SessionAt(places[place]), attempt, until, is_told,
                      is_own ? &has_own_names_ : nullptr);
    if (is_own && (done || !IsAway(done.error()))) has_own_answered = true;
    if (!done && done.error().code == ErrorCode::kDenied) {
      // Perhaps the certificate or the keys of this node alone are wrong.
      denied = std::move(done).error();
      ++denied_count;
    } else if (done || !IsAway(done.error())) {
      const bool is_ill = !done && IsOwnTrouble(done.error());
      if (!is_ill && (!unknown || IsOwnTrouble(*unknown)))
        last_place_.store(place, std::memory_order_relaxed);
      const bool is_unknown =
          !done && done.error().code == ErrorCode::kNotFound && absence == Absence::kAsksAll;
      if (!is_ill && !is_unknown) return {true, std::move(done)};
      if (!unknown || is_ill) unknown = std::move(done).error();
    } else {
      last = std::move(done).error();
      if (is_told) told = last;
    }
    if (net::Clock::now() >= deadline || Patience::OfThread().IsOver()) break;
  }
  if (unknown && unknown->code == ErrorCode::kNotFound && !has_own_answered)
    return {false, Error{ErrorCode::kUnavailable,
                         unknown->message + "; but node " + own_node_ +
                             " has names that the others do not have yet, and does not answer: " +
                             (last ? last->message : "it was not asked")}};
  if (unknown) return {true, *std::move(unknown)};
  if (denied_count == asked_count) return {true, *std::move(denied)};
  // That a node had no time left to answer says less than what another one answered before.
  return {false, denied ? *std::move(denied) : told ? *told : *std::move(last)};
}

}  // namespace ffrecord::client
