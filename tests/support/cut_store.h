#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "server/metadata/meta_store.h"

namespace ffrecord::test {

// One node's way to a store that several share: it can be cut, and then nothing is answered but
// that nobody answers. Answers of cut calls come inside the call.
class CutStore final : public server::MetaStore {
 public:
  explicit CutStore(std::shared_ptr<MetaStore> store) : store_(std::move(store)) {}

  void Cut() {
    is_cut_ = true;
    std::map<WatchId, OnNews> broken;
    {
      const std::lock_guard lock(mutex_);
      broken.swap(watches_);
    }
    for (const auto& [watch, on_news] : broken) {
      store_->StopWatch(watch);
      on_news({News::Kind::kBroken, {}, Gone()});
    }
  }
  void Mend() { is_cut_ = false; }

  void Get(std::string key, TimePoint deadline, Done<std::optional<KeyValue>> done) override {
    is_cut_ ? done(Gone()) : store_->Get(std::move(key), deadline, std::move(done));
  }
  void List(ListRequest request, TimePoint deadline, Done<Page> done) override {
    is_cut_ ? done(Gone()) : store_->List(std::move(request), deadline, std::move(done));
  }
  void TryCommit(Commit commit, TimePoint deadline, Done<Outcome> done) override {
    is_cut_ ? done(Gone()) : store_->TryCommit(std::move(commit), deadline, std::move(done));
  }
  void GrantLease(std::chrono::milliseconds ttl, TimePoint deadline, Done<Lease> done) override {
    is_cut_ ? done(Gone()) : store_->GrantLease(ttl, deadline, std::move(done));
  }
  void KeepLease(LeaseId lease, TimePoint deadline,
                 Done<std::optional<std::chrono::milliseconds>> done) override {
    is_cut_ ? done(Gone()) : store_->KeepLease(lease, deadline, std::move(done));
  }
  void RevokeLease(LeaseId lease, TimePoint deadline, Done<void> done) override {
    is_cut_ ? done(Gone()) : store_->RevokeLease(lease, deadline, std::move(done));
  }
  WatchId Watch(std::string prefix, std::uint64_t from_revision, OnNews on_news) override {
    if (is_cut_) {
      on_news({News::Kind::kBroken, {}, Gone()});
      return 0;
    }
    const std::lock_guard lock(mutex_);
    const WatchId watch = store_->Watch(std::move(prefix), from_revision, on_news);
    watches_[watch] = std::move(on_news);
    return watch;
  }
  void StopWatch(WatchId watch) override {
    {
      const std::lock_guard lock(mutex_);
      watches_.erase(watch);
    }
    store_->StopWatch(watch);
  }

 private:
  static Error Gone() { return {ErrorCode::kUnavailable, "the store is cut off"}; }

  const std::shared_ptr<MetaStore> store_;
  std::atomic<bool> is_cut_ = false;
  std::mutex mutex_;
  std::map<WatchId, OnNews> watches_;
};

}  // namespace ffrecord::test
