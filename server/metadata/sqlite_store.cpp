#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/quiet_signals.h"
#include "libffrecord/base/timed_waits.h"
#include "server/metadata/callback_thread.h"
#include "server/metadata/lease_table.h"
#include "server/metadata/meta_history.h"
#include "server/metadata/meta_state.h"
#include "server/metadata/sqlite_database.h"

namespace ffrecord::server {
namespace {

using Fate = MetaStore::Outcome::Fate;

// Watches of a daemon are never far behind, and manifests are large.
constexpr MetaHistory::Limits kHistoryLimits{.change_count_max = 1000, .size_bytes_max = 4 << 20};
// After the keys of a lease that ended could not be deleted.
constexpr std::chrono::seconds kExpiryRetry{1};

// One thread waits for the disk; callbacks, and operations that are late because it hangs, are
// another's.
class SqliteStore final : public MetaStore {
 public:
  SqliteStore(std::unique_ptr<SqliteDatabase> database, std::uint64_t revision)
      : database_(std::move(database)), revision_(revision), history_(kHistoryLimits, revision) {
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

  void Get(std::string key, TimePoint deadline, Done<std::optional<KeyValue>> done) override {
    Begin<std::optional<KeyValue>>(deadline, std::move(done),
                                   [this, key = std::move(key)] { return GetNow(key); });
  }
  void List(ListRequest request, TimePoint deadline, Done<Page> done) override {
    Begin<Page>(deadline, std::move(done),
                [this, request = std::move(request)] { return ListNow(request); });
  }
  void TryCommit(Commit commit, TimePoint deadline, Done<Outcome> done) override {
    Begin<Outcome>(deadline, std::move(done),
                   [this, commit = std::move(commit)] { return CommitNow(commit); });
  }
  void GrantLease(std::chrono::milliseconds ttl, TimePoint deadline, Done<Lease> done) override {
    Begin<Lease>(deadline, std::move(done), [this, ttl] {
      return Lease{leases_.Grant(ttl, Clock::now()), ttl};
    });
  }
  void KeepLease(LeaseId lease, TimePoint deadline,
                 Done<std::optional<std::chrono::milliseconds>> done) override {
    Begin<std::optional<std::chrono::milliseconds>>(
        deadline, std::move(done), [this, lease] { return leases_.Keep(lease, Clock::now()); });
  }
  void RevokeLease(LeaseId lease, TimePoint deadline, Done<void> done) override {
    Begin<void>(deadline, std::move(done), [this, lease] { return EndLease(lease); });
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

  // Puts `execute` in the queue of the thread that waits for the disk.
  template <class T, class Execute>
  void Begin(TimePoint deadline, Done<T> done, Execute execute) {
    auto complete = callbacks_.Guard<T>(deadline, std::move(done));
    const std::lock_guard lock(mutex_);
    queue_.push_back([deadline, complete = std::move(complete), execute = std::move(execute)] {
      if (Clock::now() < deadline) complete(execute());  // Else it has been completed.
    });
    wake_.notify_one();
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
      auto expiry = leases_.next_expiry();
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
    while (const auto expired = leases_.FindExpired(now)) {
      if (EndLease(*expired)) continue;
      no_expiry_before_ = now + kExpiryRetry;
      return;
    }
  }

  Result<void> EndLease(LeaseId lease) {
    const auto changed = Change({}, leases_.KeysOf(lease));
    if (!changed) return changed.error();
    if (changed.value().why) return *changed.value().why;
    leases_.End(lease);
    return {};
  }

  // Before anything is read or changed: what is found must hold after the next start as well.
  Result<void> Settle() {
    if (is_settled_) return {};
    FFR_TRY(database_->Settle());
    is_settled_ = true;
    return {};
  }

  Result<std::optional<KeyValue>> GetNow(const std::string& key) {
    FFR_TRY(Settle());
    return database_->Get(key);
  }

  Result<Page> ListNow(const ListRequest& request) {
    FFR_TRY(Settle());
    if (request.revision > revision_) return FutureError(request.revision);
    if (request.revision == 0 || request.revision == revision_) return database_->List(request);
    // All that is there, less what has changed since.
    constexpr auto kAll = std::numeric_limits<std::uint32_t>::max();
    auto present = FFR_TRY(database_->List({request.prefix, "", kAll, 0}));
    MetaHistory::Entries entries;
    for (auto& entry : present.entries) entries.emplace(entry.key, std::move(entry));
    if (!history_.Undo(entries, request.revision)) return CompactedError(request.revision);
    Page page = PageOf(entries, request);
    page.revision = request.revision;
    return page;
  }

  Result<Outcome> CommitNow(const Commit& commit) {
    FFR_TRY(CheckKeys(commit));
    FFR_TRY(Settle());
    for (const Compare& compare : commit.compares) {
      const std::uint64_t found = FFR_TRY(database_->RevisionOf(compare.key));
      if (found != compare.mod_revision) return Outcome{Fate::kLost, revision_, std::nullopt};
    }
    for (const Put& put : commit.puts)
      if (put.lease != 0 && !leases_.IsLive(put.lease, Clock::now()))
        return EndedLeaseError(put.lease);
    return Change(commit.puts, commit.deletes);
  }

  Result<Outcome> Change(const std::vector<Put>& puts, const std::vector<std::string>& deletes) {
    FFR_TRY(Settle());
    const std::uint64_t revision = revision_ + 1;
    std::vector<MetaHistory::Change> changes;
    for (const std::string& key : deletes) {
      auto before = FFR_TRY(database_->Get(key));
      if (before) changes.push_back({{key, std::nullopt, revision}, std::move(before)});
    }
    for (const Put& put : puts)
      changes.push_back({{put.key, put.value, revision}, FFR_TRY(database_->Get(put.key))});
    if (changes.empty()) return Outcome{Fate::kCommitted, revision_, std::nullopt};
    bool is_unknown = false;
    if (auto changed = database_->Change(puts, deletes, revision, is_unknown); !changed) {
      is_settled_ = !is_unknown;
      if (is_unknown) return Outcome{Fate::kUnknown, 0, std::move(changed).error()};
      return std::move(changed).error();
    }
    for (const std::string& key : deletes) leases_.Detach(key);
    for (const Put& put : puts) leases_.Attach(put.key, put.lease);
    revision_ = revision;
    history_.Add(std::move(changes));
    return Outcome{Fate::kCommitted, revision_, std::nullopt};
  }

  // Requires mutex_.
  void TellNews() {
    for (auto& [id, watch] : watches_) {
      if (watch.next_revision > revision_) continue;
      auto events = history_.Since(watch.prefix, watch.next_revision);
      watch.next_revision = revision_ + 1;
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
  std::uint64_t revision_;
  bool is_settled_ = true;  // No commit of unknown outcome was the last.
  MetaHistory history_;
  LeaseTable leases_;
  TimePoint no_expiry_before_{};

  std::mutex mutex_;  // Guards all below.
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  std::map<WatchId, WatchState> watches_;
  WatchId next_watch_ = 1;
  bool is_closing_ = false;

  std::thread thread_;
  CallbackThread callbacks_;  // Ends first: its callbacks look at the watches.
};

}  // namespace

Result<std::unique_ptr<MetaStore>> OpenSqliteStore(const std::filesystem::path& path) {
  auto database = FFR_TRY(SqliteDatabase::Open(path));
  const std::uint64_t revision = FFR_TRY(database->Revision());
  return std::unique_ptr<MetaStore>(std::make_unique<SqliteStore>(std::move(database), revision));
}

}  // namespace ffrecord::server
