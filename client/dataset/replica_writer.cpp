#include "client/dataset/replica_writer.h"

#include <algorithm>
#include <list>
#include <utility>

#include "client/dataset/failures.h"
#include "libffrecord/base/back_off.h"
#include "libffrecord/base/patience.h"
#include "libffrecord/base/patient_wait.h"

namespace ffrecord::client {
namespace {

using std::chrono_literals::operator""ms;

// How long a node may take to be connected to while there are others.
constexpr auto kConnectTime = 2'000ms;

// Another node may do better. One that denies may have a wrong certificate or wrong keys.
bool MayDoElsewhere(const Error& error) {
  if (IsOfQuota(error)) return false;
  return IsAway(error) || error.code == ErrorCode::kIo || error.code == ErrorCode::kDenied;
}

}  // namespace

// The progress of one extent.
struct ReplicaWriter::Progress {
  const SourcedExtent& extent;
  net::Deadline deadline;
  const StripeSpot* spot;         // Null: it has replicas, so many,
  std::size_t replicas;           // or 0 for those of the cluster.
  std::set<std::string> domains;  // That have it.
  std::set<net::NodeIndex> tried;
  // Why nodes do not have it: what each has said last, or else what became of the last try.
  struct Failure {
    Error error;
    bool is_told = false;
  };
  std::map<net::NodeIndex, Failure> failures;
  std::uint64_t xxh3 = 0;

  std::size_t WantedOf(const ClusterView& view) const {
    if (spot != nullptr) return 1;
    return replicas != 0 ? replicas : view.reply.replicas;
  }
  std::size_t MissingOf(const ClusterView& view) const {
    const std::size_t wanted = WantedOf(view);
    return wanted - std::min(wanted, domains.size());
  }
  Targets TargetsIn(const ClusterView& view) const {
    return spot != nullptr ? view.StripeTargetsOf(spot->slot, spot->member, spot->member_count)
                           : view.TargetsOf(SlotOf(extent.id));
  }
};

// One node that an extent is brought to.
struct ReplicaWriter::Way {
  Way(const ClusterView::Target& to, std::shared_ptr<net::Session> over)
      : target(to),
        session(std::move(over)),
        tries(*session, net::Session::Tries::Until::kFirstFailure) {}

  const ClusterView::Target& target;
  const std::shared_ptr<net::Session> session;
  net::Session::Tries tries;
};

Result<std::uint64_t> ReplicaWriter::Put(const SourcedExtent& extent, const ExtentSource& source,
                                         const std::function<void(std::uint64_t)>& sent,
                                         const StripeSpot* spot) {
  if (cluster_->is_one_daemon()) return PutAtOne(extent, source, sent);
  const auto deadline = net::Clock::now() + cluster_->options().timeout;
  Progress progress{extent, deadline, spot, replicas_, {}, {}, {}};
  BackOff backoff(BackOff::kOfDaemons);
  for (;;) {
    const auto view = cluster_->view();
    if (progress.MissingOf(*view) == 0) {
      if (spot != nullptr) spot->domains->merge(progress.domains);
      return progress.xxh3;
    }
    Targets targets = Choose(*view, progress);
    if (!targets.empty()) {
      FFR_TRY(SendTo(*view, std::move(targets), progress, source, sent));
      continue;
    }
    if (auto denied = DeniedByAll(*view, progress)) return *std::move(denied);
    const auto next = net::Clock::now() + backoff.Next();
    if (next >= deadline || Patience::OfThread().IsOver()) break;
    progress.tried.clear();
    cluster_->NoteFailure();
    SleepPatiently(next);
  }
  const auto view = cluster_->view();
  Error error{
      ErrorCode::kUnavailable,
      spot != nullptr
          ? "member " + std::to_string(spot->member + 1) + " of the " +
                std::to_string(spot->member_count) +
                " of a stripe could be stored in no failure domain that the others are not in, "
                "until the timeout"
          : "an extent could be stored in " + std::to_string(progress.domains.size()) + " of " +
                std::to_string(progress.WantedOf(*view)) +
                " failure domains of the cluster until the timeout"};
  for (const auto& [place, failure] : progress.failures) {
    const Error& why = failure.error;
    if (why.code == ErrorCode::kIo) error.code = why.code, error.system_errno = why.system_errno;
    error.message += "; " + why.message;
  }
  return error;
}

// There is nobody else to turn to: all of the time is its own, and what it refuses is final.
Result<std::uint64_t> ReplicaWriter::PutAtOne(const SourcedExtent& extent,
                                              const ExtentSource& source,
                                              const std::function<void(std::uint64_t)>& sent) {
  const auto deadline = net::Clock::now() + cluster_->options().timeout;
  const auto session = cluster_->SessionAt(cluster_->view()->places.front());
  std::uint64_t xxh3 = 0;
  const auto attempt = [&](net::Connection& connection) -> Result<void> {
    ExtentLegs legs(extent, deadline);
    legs.Add(*session, connection);
    xxh3 = FFR_TRY(legs.Send(source, sent));
    return {};
  };
  FFR_TRY(session->Run(attempt, deadline));
  return xxh3;
}

std::optional<Error> ReplicaWriter::DeniedByAll(const ClusterView& view, const Progress& progress) {
  const auto denies = [](const auto& failure) {
    return failure.second.error.code == ErrorCode::kDenied;
  };
  const auto& failures = progress.failures;
  if (failures.size() < progress.TargetsIn(view).size() || !std::ranges::all_of(failures, denies))
    return std::nullopt;
  return failures.begin()->second.error;
}

// So many as are missing, in domains that do not have the extent: the first ones of its slot.
ReplicaWriter::Targets ReplicaWriter::Choose(const ClusterView& view, const Progress& progress) {
  Targets order = progress.TargetsIn(view);
  const auto avoided = Avoided();
  std::stable_partition(order.begin(), order.end(),
                        [&](const auto& target) { return !avoided.contains(target.place); });
  auto domains = progress.domains;
  if (progress.spot != nullptr)
    domains.insert(progress.spot->domains->begin(), progress.spot->domains->end());
  Targets chosen;
  for (ClusterView::Target& target : order) {
    if (chosen.size() == progress.MissingOf(view)) break;
    if (progress.tried.contains(target.place) || !domains.insert(target.domain).second) continue;
    chosen.push_back(std::move(target));
  }
  return chosen;
}

Result<void> ReplicaWriter::SendTo(const ClusterView& view, Targets targets, Progress& progress,
                                   const ExtentSource& source,
                                   const std::function<void(std::uint64_t)>& sent) {
  // In this order many threads can want the last connections to the same nodes, and none has what
  // another needs.
  std::ranges::sort(targets, {}, &ClusterView::Target::place);
  // A node that falls silent leaves time for another one.
  const auto now = net::Clock::now();
  const auto until = now + (progress.deadline - now) / 2;
  std::list<Way> ways;
  for (const ClusterView::Target& target : targets) {
    progress.tried.insert(target.place);
    const auto session = cluster_->SessionAt(view.places[target.place]);
    Way& way = ways.emplace_back(target, session);
    auto begun = way.tries.Begin(std::min(until, net::Clock::now() + kConnectTime));
    if (begun) continue;
    ways.pop_back();
    FFR_TRY(NoteFailure(target, std::move(begun).error(), /*is_told=*/false, progress));
  }
  if (ways.empty()) return {};

  Result<std::uint64_t> xxh3 = std::uint64_t{0};
  std::vector<Result<void>> outcomes;
  {
    ExtentLegs legs(progress.extent, until);
    for (Way& way : ways) legs.Add(*way.session, *way.tries.connection());
    xxh3 = legs.Send(source, sent);
    outcomes = legs.outcomes();
  }
  if (xxh3) progress.xxh3 = xxh3.value();
  Result<void> result;
  auto outcome = outcomes.begin();
  for (Way& way : ways) {
    const bool is_whole = static_cast<bool>(*outcome);
    const bool is_told = way.tries.connection()->reusable();
    // If the source has failed, it failed all that were left.
    if (is_whole && !xxh3) *outcome = xxh3.error();
    auto ended = way.tries.End(std::move(*outcome++));
    if (ended)
      progress.domains.insert(way.target.domain);
    else if (is_whole)
      result = std::move(ended);
    else if (auto noted = NoteFailure(way.target, std::move(ended).error(), is_told, progress);
             !noted)
      result = std::move(noted);
  }
  return result;
}

// Fails if no other node would do better.
Result<void> ReplicaWriter::NoteFailure(const ClusterView::Target& target, Error error,
                                        bool is_told, Progress& progress) {
  if (!MayDoElsewhere(error)) return error;
  cluster_->NoteFailure();
  // The last try has little time left, and that it had no answer says less than one before.
  Progress::Failure& failure = progress.failures[target.place];
  if (is_told || !failure.is_told) failure = {std::move(error), is_told};
  const std::lock_guard lock(mutex_);
  avoided_until_[target.place] = net::Clock::now() + kAvoidTime;
  return {};
}

std::set<net::NodeIndex> ReplicaWriter::Avoided() {
  const auto now = net::Clock::now();
  const std::lock_guard lock(mutex_);
  std::erase_if(avoided_until_, [now](const auto& one) { return one.second <= now; });
  std::set<net::NodeIndex> avoided;
  for (const auto& [place, until] : avoided_until_) avoided.insert(place);
  return avoided;
}

}  // namespace ffrecord::client
