#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/metadata/meta_store.h"

namespace ffrecord::test {

// One node's way to a store that several share: it can be cut, and then nothing is answered but
// that nobody answers. Answers of cut calls come inside the call.
class CutStore final : public server::MetaStore {
 public:
  explicit CutStore(std::shared_ptr<MetaStore> store) : store_(std::move(store)) {}

  // As all stores do.
  ~CutStore() override {
    for (const auto& done : held_) done(Gone());
    for (const HeldCommit& held : held_commits_) held.done(Gone());
  }

  // Nobody answers who gets this key, before the store goes.
  void HoldGets(std::string key) {
    const std::lock_guard lock(mutex_);
    held_key_ = std::move(key);
  }
  std::size_t held_count() const {
    const std::lock_guard lock(mutex_);
    return held_.size();
  }

  // Commits that put the key are not made, and the answers to them are lost. `meanwhile`: called
  // with each.
  void LoseCommits(std::string key, std::function<void()> meanwhile) {
    const std::lock_guard lock(mutex_);
    lost_key_ = std::move(key);
    meanwhile_ = std::move(meanwhile);
  }

  // Nothing is committed meanwhile, and nobody answered who commits.
  void HoldCommits() {
    const std::lock_guard lock(mutex_);
    holds_commits_ = true;
  }
  void ReleaseCommits() {
    std::vector<HeldCommit> held;
    {
      const std::lock_guard lock(mutex_);
      holds_commits_ = false;
      held.swap(held_commits_);
    }
    for (HeldCommit& one : held)
      store()->TryCommit(std::move(one.commit), one.deadline, std::move(one.done));
  }
  // One that puts the key is.
  bool HoldsCommitOf(std::string_view key) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(held_commits_, [&](const HeldCommit& held) {
      return std::ranges::count(held.commit.puts, key, &Put::key) > 0;
    });
  }
  // Watches tell nothing meanwhile, and all of it in the end.
  void HoldNews() {
    const std::lock_guard lock(late_->mutex);
    late_->is_held = true;
  }
  void ReleaseNews() {
    const std::lock_guard lock(late_->mutex);
    late_->is_held = false;
    for (const auto& tell : std::exchange(late_->news, {})) tell();
  }

  void Cut() {
    is_cut_ = true;
    std::map<WatchId, OnNews> broken;
    {
      const std::lock_guard lock(mutex_);
      broken.swap(watches_);
    }
    for (const auto& [watch, on_news] : broken) {
      store()->StopWatch(watch);
      on_news({News::Kind::kBroken, {}, Gone()});
    }
  }
  void Mend() { is_cut_ = false; }
  // Until it is mended, nothing can be listed; all else is as before.
  void CutLists() { has_lists_ = false; }
  void MendLists() { has_lists_ = true; }
  // From now on it leads to another store, as if an operator had put that in its place. Watches
  // break.
  void LeadTo(std::shared_ptr<MetaStore> store) {
    Cut();
    {
      const std::lock_guard lock(mutex_);
      store_ = std::move(store);
    }
    Mend();
  }

  void Get(std::string key, TimePoint deadline, Done<std::optional<KeyValue>> done) override {
    {
      const std::lock_guard lock(mutex_);
      if (key == held_key_) return held_.push_back(std::move(done));
    }
    is_cut_ ? done(Gone()) : store()->Get(std::move(key), deadline, std::move(done));
  }
  void List(ListRequest request, TimePoint deadline, Done<Page> done) override {
    is_cut_ || !has_lists_ ? done(Gone())
                           : store()->List(std::move(request), deadline, std::move(done));
  }
  void TryCommit(Commit commit, TimePoint deadline, Done<Outcome> done) override {
    if (IsLost(commit)) return done(Outcome{Outcome::Fate::kUnknown, 0, Gone()});
    {
      const std::lock_guard lock(mutex_);
      if (holds_commits_) {
        return held_commits_.push_back({std::move(commit), deadline, std::move(done)});
      }
    }
    is_cut_ ? done(Gone()) : store()->TryCommit(std::move(commit), deadline, std::move(done));
  }
  void GrantLease(std::chrono::milliseconds ttl, TimePoint deadline, Done<Lease> done) override {
    is_cut_ ? done(Gone()) : store()->GrantLease(ttl, deadline, std::move(done));
  }
  void KeepLease(LeaseId lease, TimePoint deadline,
                 Done<std::optional<std::chrono::milliseconds>> done) override {
    is_cut_ ? done(Gone()) : store()->KeepLease(lease, deadline, std::move(done));
  }
  void RevokeLease(LeaseId lease, TimePoint deadline, Done<void> done) override {
    is_cut_ ? done(Gone()) : store()->RevokeLease(lease, deadline, std::move(done));
  }
  WatchId Watch(std::string prefix, std::uint64_t from_revision, OnNews on_news) override {
    if (is_cut_) {
      on_news({News::Kind::kBroken, {}, Gone()});
      return 0;
    }
    const std::lock_guard lock(mutex_);
    const WatchId watch =
        store_->Watch(std::move(prefix), from_revision, [late = late_, on_news](const News& news) {
          const std::lock_guard late_lock(late->mutex);
          if (!late->is_held) return on_news(news);
          late->news.push_back([on_news, news] { on_news(news); });
        });
    watches_[watch] = std::move(on_news);
    return watch;
  }
  void StopWatch(WatchId watch) override {
    {
      const std::lock_guard lock(mutex_);
      watches_.erase(watch);
    }
    store()->StopWatch(watch);
  }

 private:
  static Error Gone() { return {ErrorCode::kUnavailable, "the store is cut off"}; }

  bool IsLost(const Commit& commit) const {
    std::function<void()> meanwhile;
    {
      const std::lock_guard lock(mutex_);
      if (!lost_key_ || !std::ranges::count(commit.puts, *lost_key_, &Put::key)) return false;
      meanwhile = meanwhile_;
    }
    meanwhile();
    return true;
  }

  std::shared_ptr<MetaStore> store() const {
    const std::lock_guard lock(mutex_);
    return store_;
  }

  std::atomic<bool> is_cut_ = false;
  std::atomic<bool> has_lists_ = true;
  mutable std::mutex mutex_;
  std::shared_ptr<MetaStore> store_;
  std::map<WatchId, OnNews> watches_;
  std::optional<std::string> held_key_;
  std::optional<std::string> lost_key_;
  std::function<void()> meanwhile_;
  std::vector<Done<std::optional<KeyValue>>> held_;
  bool holds_commits_ = false;
  struct HeldCommit {
    Commit commit;
    TimePoint deadline;
    Done<Outcome> done;
  };
  std::vector<HeldCommit> held_commits_;
  struct LateNews {
    std::mutex mutex;
    bool is_held = false;
    std::vector<std::function<void()>> news;
  };
  const std::shared_ptr<LateNews> late_ = std::make_shared<LateNews>();
};

}  // namespace ffrecord::test
