#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <type_traits>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/quiet_signals.h"
#include "libffrecord/base/timed_waits.h"
#include "server/metadata/blocking_store.h"
#include "server/metadata/callback_thread.h"
#include "server/metadata/meta_state.h"
#include "server/metadata/sqlite_database.h"

namespace ffrecord::server {
namespace {

using Fate = MetaStore::Outcome::Fate;

// Watches of a daemon are never far behind, and manifests are large.
constexpr MetaHistory::Limits kHistoryLimits{.change_count_max = 1000, .size_bytes_max = 4 << 20};
// After the keys of a lease that ended could not be deleted.
constexpr std::chrono::seconds kExpiryRetry{1};

// The whole map is in memory, where reads find it and leases are kept. One thread waits for the
// disk, and shows a change once the disk has it; callbacks, and operations that are late because
// the disk hangs, are another's.
class SqliteStore final : public MetaStore {
 public:
  SqliteStore(std::unique_ptr<SqliteDatabase> database, MetaState state, AroundWrite around)
      : database_(std::move(database)), around_(std::move(around)), state_(std::move(state)) {
    const QuietSignals quiet;
    thread_ = std::thread([this] { Work(); });
  }

  ~SqliteStore() override {
    {
      const std::lock_guard lock(mutex_);
      is_closing_ = true;
      watches_.clear();
      wake_.notify_one();
    }
    thread_.join();
  }

  // These two find the commits that are certain, and wait for nobody.
  std::optional<KeyValue> Find(std::string_view key) const {
    const MetaState::EntryPtr entry = Locked([&] { return state_.Find(key); });
    return entry ? std::optional(*entry) : std::nullopt;
  }
  Result<Page> FindPage(const ListRequest& request) const {
    return FFR_TRY(Locked([&] { return state_.FindPage(request); })).Copy();
  }

  void Get(std::string key, TimePoint deadline, Done<std::optional<KeyValue>> done) override {
    Read<std::optional<KeyValue>>(deadline, std::move(done),
                                  [this, key = std::move(key)] { return Find(key); });
  }
  void List(ListRequest request, TimePoint deadline, Done<Page> done) override {
    Read<Page>(deadline, std::move(done),
               [this, request = std::move(request)] { return FindPage(request); });
  }
  void TryCommit(Commit commit, TimePoint deadline, Done<Outcome> done) override {
    Begin<Outcome>(deadline, callbacks_.Guard<Outcome>(deadline, std::move(done)),
                   [this, commit = std::move(commit)] { return CommitNow(commit); });
  }
  void GrantLease(std::chrono::milliseconds ttl, TimePoint deadline, Done<Lease> done) override {
    const auto complete = callbacks_.Guard<Lease>(deadline, std::move(done));
    const TimePoint now = Clock::now();
    if (now >= deadline) return;
    {
      const std::lock_guard lock(state_mutex_);
      complete(state_.GrantLease(ttl, now));
    }
    const std::lock_guard lock(mutex_);
    wake_.notify_one();  // It may be the first that ends.
  }
  void KeepLease(LeaseId lease, TimePoint deadline,
                 Done<std::optional<std::chrono::milliseconds>> done) override {
    const auto complete =
        callbacks_.Guard<std::optional<std::chrono::milliseconds>>(deadline, std::move(done));
    const TimePoint now = Clock::now();
    if (now >= deadline) return;
    const std::lock_guard lock(state_mutex_);
    complete(state_.KeepLease(lease, now));
  }
  void RevokeLease(LeaseId lease, TimePoint deadline, Done<void> done) override {
    Begin<void>(deadline, callbacks_.Guard<void>(deadline, std::move(done)),
                [this, lease] { return EndLease(lease); });
  }

  WatchId Watch(std::string prefix, std::uint64_t from_revision, OnNews on_news) override {
    FFR_ASSERT(from_revision > 0);
    const std::lock_guard lock(mutex_);
    const WatchId id = next_watch_++;
    watches_[id] = {std::move(prefix), from_revision, std::move(on_news)};
    wake_.notify_one();
    return id;
  }
  void StopWatch(WatchId watch) override {
    const std::lock_guard lock(mutex_);
    watches_.erase(watch);
  }

 private:
  struct WatchState {
    std::string prefix;
    std::uint64_t next_revision = 0;
    OnNews on_news;
  };

  // Calls `look`, which reads state_.
  template <class Look>
  std::invoke_result_t<const Look&> Locked(const Look& look) const {
    const std::shared_lock lock(state_mutex_);
    return look();
  }

  // Puts `execute` in the queue of the thread that waits for the disk.
  template <class T, class Execute>
  void Begin(TimePoint deadline, Done<T> complete, Execute execute) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(
        [this, deadline, complete = std::move(complete), execute = std::move(execute)] {
          // Before the clock is asked, or a reader might look too early.
          doubtful_from_ = is_settled_ ? deadline : TimePoint::min();
          if (Clock::now() < deadline) complete(execute());  // Else it has been completed.
          doubtful_from_ = is_settled_ ? TimePoint::max() : TimePoint::min();
        });
    wake_.notify_one();
  }

  // Completes with what `look` finds in memory; behind the commits that wait, if one of them may
  // have been answered as unknown.
  template <class T, class Look>
  void Read(TimePoint deadline, Done<T> done, Look look) {
    auto complete = callbacks_.Guard<T>(deadline, std::move(done));
    const TimePoint now = Clock::now();
    if (now >= deadline) return;
    if (now < doubtful_from_.load()) return complete(look());
    Begin<T>(deadline, std::move(complete), [this, look = std::move(look)]() -> Result<T> {
      if (!is_settled_) FFR_TRY(around_({}, [this] { return Settle(); }));
      return look();
    });
  }

  // --- The thread that waits for the disk ---

  void Work() {
    while (const auto act = Next()) {
      ExpireLeases();
      act();
    }
  }

  // The next thing to do; none: the thread ends.
  std::function<void()> Next() {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (is_closing_) return {};
      TellNews();
      if (!queue_.empty()) {
        auto act = std::move(queue_.front());
        queue_.pop_front();
        return act;
      }
      auto expiry = Locked([this] { return state_.next_expiry(); });
      if (expiry) *expiry = std::max(*expiry, no_expiry_before_);
      if (expiry && *expiry <= Clock::now()) return [] {};
      if (expiry)
        WaitUntil(wake_, lock, *expiry);
      else
        wake_.wait(lock);
    }
  }

  void ExpireLeases() {
    const TimePoint now = Clock::now();
    while (const auto expired = Locked([&] { return state_.FindExpired(now); })) {
      if (EndLease(*expired)) continue;
      no_expiry_before_ = now + kExpiryRetry;
      return;
    }
  }

  Result<void> EndLease(LeaseId lease) {
    const std::vector<std::string> keys = Locked([&] { return state_.KeysOf(lease); });
    bool is_unknown = false;
    if (!keys.empty()) FFR_TRY(Write({}, keys, is_unknown));
    const std::lock_guard lock(state_mutex_);
    state_.RevokeLease(lease);
    return {};
  }

  // Precedes every answer and change that shall hold after the next start as well.
  Result<void> Settle() {
    if (is_settled_) return {};
    FFR_TRY(database_->Settle());
    is_settled_ = true;
    return {};
  }

  Result<Outcome> CommitNow(const Commit& commit) {
    FFR_TRY(CheckKeys(commit));
    auto without_change = FFR_TRY(Locked([&] { return state_.Check(commit, Clock::now()); }));
    if (without_change) return *std::move(without_change);
    bool is_unknown = false;
    if (auto written = Write(commit.puts, commit.deletes, is_unknown); !written) {
      if (is_unknown) return Outcome{Fate::kUnknown, 0, std::move(written).error()};
      return std::move(written).error();
    }
    const std::lock_guard lock(state_mutex_);
    state_.Change(commit.puts, commit.deletes);
    return Outcome{Fate::kCommitted, state_.revision(), std::nullopt};
  }

  // As the next revision, to the disk. Fails as SqliteDatabase::Change(), and as around_.
  Result<void> Write(const std::vector<Put>& puts, const std::vector<std::string>& deletes,
                     bool& is_unknown) {
    return around_(puts, [&]() -> Result<void> {
      FFR_TRY(Settle());  // Also an earlier call of this one.
      is_unknown = false;
      auto written = database_->Change(puts, deletes, state_.revision() + 1, is_unknown);
      is_settled_ = !is_unknown;
      if (is_unknown) doubtful_from_ = TimePoint::min();
      return written;
    });
  }

  // Requires mutex_.
  void TellNews() {
    for (auto& [id, watch] : watches_) {
      if (watch.next_revision > state_.revision()) continue;
      auto events = state_.EventsSince(watch.prefix, watch.next_revision);
      watch.next_revision = state_.revision() + 1;
      if (!events)
        Tell(id, {News::Kind::kCompacted, {}, std::nullopt});
      else if (!events->empty())
        Tell(id, {News::Kind::kEvents, *std::move(events), std::nullopt});
    }
  }

  void Tell(WatchId id, News news) {
    callbacks_.Post([this, id, news = std::move(news)] {
      OnNews on_news;
      {
        const std::lock_guard lock(mutex_);
        const auto found = watches_.find(id);
        if (found == watches_.end()) return;
        on_news = found->second.on_news;
        if (news.kind == News::Kind::kCompacted) watches_.erase(found);
      }
      on_news(news);
    });
  }

  const std::unique_ptr<SqliteDatabase> database_;
  const AroundWrite around_;
  bool is_settled_ = true;  // No commit of unknown outcome was the last.
  TimePoint no_expiry_before_{};

  // Guards state_; nobody waits for a disk while holding it. The thread that waits for the disk is
  // the only one that changes anything but leases, and reads all but leases without it.
  mutable std::shared_mutex state_mutex_;
  MetaState state_;
  // From then on a commit may have been answered as unknown, which memory does not show.
  std::atomic<TimePoint> doubtful_from_{TimePoint::max()};

  std::mutex mutex_;  // Guards all below; taken before state_mutex_.
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  std::map<WatchId, WatchState> watches_;
  WatchId next_watch_ = 1;
  bool is_closing_ = false;

  std::thread thread_;
  CallbackThread callbacks_;  // Ends first: its callbacks look at the watches.
};

// For callers that wait for a commit, and for nothing else.
class BlockingSqliteStore final : public BlockingStore {
 public:
  explicit BlockingSqliteStore(std::unique_ptr<SqliteStore> store) : store_(std::move(store)) {}

  Result<std::optional<KeyValue>> Get(std::string_view key) override { return store_->Find(key); }
  Result<Page> List(std::string_view prefix, std::string_view after, std::uint32_t limit) override {
    return store_->FindPage({std::string(prefix), std::string(after), limit, 0});
  }
  Result<Outcome> TryCommit(const Commit& commit) override {
    const auto promise = std::make_shared<std::promise<Result<MetaStore::Outcome>>>();
    store_->TryCommit(commit, MetaStore::TimePoint::max(),
                      [promise](auto outcome) { promise->set_value(std::move(outcome)); });
    const MetaStore::Outcome outcome = FFR_TRY(promise->get_future().get());
    if (outcome.why) return *outcome.why;
    return Outcome{outcome.fate == Fate::kCommitted, outcome.revision};
  }

 private:
  const std::unique_ptr<SqliteStore> store_;
};

Result<std::unique_ptr<SqliteStore>> Open(const std::filesystem::path& path, AroundWrite around) {
  auto database = FFR_TRY(SqliteDatabase::Open(path));
  const std::uint64_t revision = FFR_TRY(database->Revision());
  MetaState state(kHistoryLimits, FFR_TRY(database->ReadAll()), revision);
  return std::make_unique<SqliteStore>(std::move(database), std::move(state), std::move(around));
}

}  // namespace

Result<std::unique_ptr<MetaStore>> OpenSqliteStore(const std::filesystem::path& path) {
  return std::unique_ptr<MetaStore>(FFR_TRY(Open(path, WriteOnce)));
}

Result<std::unique_ptr<BlockingStore>> OpenBlockingStore(const std::filesystem::path& path,
                                                         AroundWrite around) {
  return std::unique_ptr<BlockingStore>(
      std::make_unique<BlockingSqliteStore>(FFR_TRY(Open(path, std::move(around)))));
}

}  // namespace ffrecord::server
