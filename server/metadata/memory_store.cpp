#include "server/metadata/memory_store.h"

#include <algorithm>

#include "libffrecord/base/assert.h"

namespace ffrecord::server {
namespace {

Error SilentError() {
  return {ErrorCode::kDeadlineExceeded, "the metadata store did not answer in time"};
}
Error UnreachableError() { return {ErrorCode::kUnavailable, "the metadata store is unreachable"}; }

}  // namespace

MemoryMetaStore::MemoryMetaStore(MetaState& state, Options options)
    : state_(state), options_(std::move(options)), now_(options_.now) {}

MemoryMetaStore::~MemoryMetaStore() {
  while (!open_calls_.empty()) {
    const auto give_up = open_calls_.begin()->second.give_up;
    give_up({ErrorCode::kUnavailable, "the metadata store is closed"});
  }
}

MemoryMetaStore::StepKey MemoryMetaStore::At(TimePoint time, std::function<void()> act) {
  const StepKey key(std::max(time, now_), next_number_++);
  steps_.emplace(key, std::move(act));
  return key;
}

template <class T>
void MemoryMetaStore::Send(TimePoint deadline, Done<T> done, std::function<Result<T>()> execute) {
  const std::uint64_t call = next_number_++;
  const auto complete = [this, call, done = std::move(done)](Result<T> result) {
    const auto found = open_calls_.find(call);
    if (found == open_calls_.end()) return;  // It is over.
    steps_.erase(found->second.timeout);
    open_calls_.erase(found);
    done(std::move(result));
  };
  const auto give_up = [complete](Error why) { complete(Unanswered<T>(std::move(why))); };
  open_calls_[call] = {give_up, At(deadline, [give_up] { give_up(SilentError()); })};
  const Trip trip = NextTrip();
  if (trip.is_refused) {
    At(now_ + trip.there, [complete] { complete(UnreachableError()); });
    return;
  }
  if (trip.loses_request) return;
  At(now_ + trip.there, [this, trip, complete, execute = std::move(execute)] {
    Result<T> result = execute();
    if (trip.loses_answer) return;
    At(now_ + trip.back, [complete, result = std::move(result)] { complete(result); });
  });
}

void MemoryMetaStore::Get(std::string key, TimePoint deadline, Done<std::optional<KeyValue>> done) {
  Send<std::optional<KeyValue>>(deadline, std::move(done),
                                [this, key = std::move(key)] { return state_.Get(key); });
}

void MemoryMetaStore::List(ListRequest request, TimePoint deadline, Done<Page> done) {
  Send<Page>(deadline, std::move(done),
             [this, request = std::move(request)] { return state_.List(request); });
}

void MemoryMetaStore::TryCommit(Commit commit, TimePoint deadline, Done<Outcome> done) {
  if (auto checked = CheckCommit(commit); !checked) {
    At(now_, [done = std::move(done), error = checked.error()] { done(error); });
    return;
  }
  Send<Outcome>(deadline, std::move(done),
                [this, commit = std::move(commit)] { return state_.TryCommit(commit, now_); });
}

void MemoryMetaStore::GrantLease(std::chrono::milliseconds ttl, TimePoint deadline,
                                 Done<Lease> done) {
  Send<Lease>(deadline, std::move(done), [this, ttl] { return state_.GrantLease(ttl, now_); });
}

void MemoryMetaStore::KeepLease(LeaseId lease, TimePoint deadline,
                                Done<std::optional<std::chrono::milliseconds>> done) {
  Send<std::optional<std::chrono::milliseconds>>(
      deadline, std::move(done), [this, lease] { return state_.KeepLease(lease, now_); });
}

void MemoryMetaStore::RevokeLease(LeaseId lease, TimePoint deadline, Done<void> done) {
  Send<void>(deadline, std::move(done), [this, lease] {
    state_.RevokeLease(lease);
    return Result<void>();
  });
}

MetaStore::WatchId MemoryMetaStore::Watch(std::string prefix, std::uint64_t from_revision,
                                          OnNews on_news) {
  FFR_ASSERT(from_revision > 0);
  const WatchId id = next_number_++;
  watches_[id] = {std::move(prefix), from_revision, std::move(on_news), now_, false};
  return id;
}

void MemoryMetaStore::StopWatch(WatchId watch) { watches_.erase(watch); }

void MemoryMetaStore::Tell(WatchId id, WatchState& watch, News news, Trip trip) {
  const bool is_broken = trip.is_refused || trip.loses_request || trip.loses_answer;
  if (is_broken) news = {News::Kind::kBroken, {}, UnreachableError()};
  watch.has_ended = news.kind != News::Kind::kEvents;
  watch.last_arrival = std::max(watch.last_arrival, now_ + trip.back);
  At(watch.last_arrival, [this, id, news = std::move(news)] {
    const auto found = watches_.find(id);
    if (found == watches_.end()) return;
    const OnNews on_news = found->second.on_news;  // Which may stop the watch.
    if (news.kind != News::Kind::kEvents) watches_.erase(found);
    on_news(news);
  });
}

bool MemoryMetaStore::CollectNews() {
  bool is_told = false;
  for (auto& [id, watch] : watches_) {
    if (watch.has_ended || watch.next_revision > state_.revision()) continue;
    auto events = state_.EventsSince(watch.prefix, watch.next_revision);
    watch.next_revision = state_.revision() + 1;
    is_told = true;
    if (!events)
      Tell(id, watch, {News::Kind::kCompacted, {}, std::nullopt}, NextTrip());
    else if (!events->empty())
      Tell(id, watch, {News::Kind::kEvents, *std::move(events), std::nullopt}, NextTrip());
  }
  return is_told;
}

void MemoryMetaStore::BreakWatches() {
  for (auto& [id, watch] : watches_)
    if (!watch.has_ended) Tell(id, watch, {News::Kind::kBroken, {}, UnreachableError()}, {});
}

void MemoryMetaStore::Run(TimePoint now) {
  FFR_ASSERT(now >= now_);
  for (;;) {
    // Leases end in their turn: a request that arrives later finds them ended.
    const TimePoint due = steps_.empty() ? now : std::min(now, steps_.begin()->first.first);
    const auto expiry = state_.next_expiry();
    if (expiry && *expiry <= due) {
      now_ = std::max(now_, *expiry);
      state_.ExpireLeases(now_);
      continue;
    }
    now_ = due;
    if (CollectNews()) continue;  // Some of it may be due before all else.
    if (steps_.empty() || steps_.begin()->first.first > now) return;
    const auto act = std::move(steps_.begin()->second);
    steps_.erase(steps_.begin());
    act();
  }
}

std::optional<MetaStore::TimePoint> MemoryMetaStore::next() const {
  for (const auto& [id, watch] : watches_)
    if (!watch.has_ended && watch.next_revision <= state_.revision()) return now_;
  std::optional<TimePoint> first = state_.next_expiry();
  if (!steps_.empty() && (!first || steps_.begin()->first.first < *first))
    first = steps_.begin()->first.first;
  return first;
}

}  // namespace ffrecord::server
