#include "client/dataset/cluster.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "client/dataset/failures.h"
#include "client/dataset/find_view.h"
#include "libffrecord/base/back_off.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/base/patient_wait.h"
#include "libffrecord/base/process_threads.h"

namespace ffrecord::client {
namespace {

using std::chrono_literals::operator""ms;

// How long one node may take to send its map while there are others: in the first round, so that
// silent nodes do not delay it by much, and at most.
constexpr auto kMapTimeMin = 250ms;
constexpr auto kMapTime = 2'000ms;
// How long another one may take to find what one did not.
constexpr auto kOthersTime = 500ms;
// Between two looks for a newer map: because a node spoke of one, or because something failed.
constexpr auto kNewerPause = 100ms;
constexpr auto kFailurePause = 1'000ms;

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

// Whether the trouble is of one node: its disk or its metadata.
bool IsOwnTrouble(const Error& error) { return IsIll(error) && !IsOfQuota(error); }

// Whichever node it comes from.
bool SaysNothingNew(const ClusterView& fresh, const ClusterView& current) {
  net::ClusterMapReply reply = fresh.reply;
  reply.node = current.reply.node;
  return reply == current.reply;
}

}  // namespace

Result<std::shared_ptr<Cluster>> Cluster::Find(std::span<const net::Location> locations,
                                               const SessionOptions& options) {
  auto view = FFR_TRY(FindView(locations, options));
  if (view)
    return std::make_shared<Cluster>(*std::move(view), options,
                                     std::vector(locations.begin(), locations.end()));
  if (locations.size() == 1) return OfOneDaemon(locations.front(), options);
  std::string addresses;
  for (const net::Location& location : locations)
    addresses += (addresses.empty() ? "" : ", ") + location.address.ToString();
  return Error{ErrorCode::kInvalidArgument,
               addresses +
                   ": an address of several daemons is that of a cluster, and these are of no "
                   "cluster; name one of them, or make them nodes of one, which keeps replicas "
                   "(ffrecordd --cluster)"};
}

std::shared_ptr<Cluster> Cluster::OfOneDaemon(const net::Location& location,
                                              const SessionOptions& options) {
  return std::make_shared<Cluster>(ViewOfOneDaemon(location), options, std::vector{location});
}

std::string Cluster::peer() const {
  return std::string(net::Location::kScheme) + view()->places.front().location.address.ToString();
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
  if (is_one_daemon()) return;
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
  if (is_one_daemon())
    return SessionAt(first_view_->places.front())
        ->Run([&](net::Connection& connection) { return attempt(connection, deadline); }, deadline);
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

Result<std::shared_ptr<Cluster>> ClusterFinder::Find() {
  {
    const std::lock_guard lock(mutex_);
    if (found_ != nullptr) return found_;
  }
  auto found = FFR_TRY(Cluster::Find(locations_, options_));
  const std::lock_guard lock(mutex_);
  if (found_ == nullptr) found_ = std::move(found);
  return found_;
}

}  // namespace ffrecord::client
