#include <algorithm>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/metadata/blocking_store.h"

namespace ffrecord::server {
namespace {

class CachedStore final : public BlockingStore {
 public:
  explicit CachedStore(std::unique_ptr<BlockingStore> store) : store_(std::move(store)) {}

  Result<void> Load() {
    constexpr std::uint32_t kPageSize = 256;
    std::string after;
    for (;;) {
      auto page = FFR_TRY(store_->List("", after, kPageSize));
      revision_ = page.revision;
      if (!page.entries.empty()) after = page.entries.back().key;
      for (KeyValue& entry : page.entries) Keep(std::move(entry));
      if (!page.more) return {};
    }
  }

  Result<std::optional<KeyValue>> Get(std::string_view key) override {
    const EntryPtr entry = Find(key);
    return entry ? std::optional(*entry) : std::nullopt;  // Copied without the lock.
  }

  Result<Page> List(std::string_view prefix, std::string_view after, std::uint32_t limit) override {
    std::vector<EntryPtr> found;
    Page page;
    {
      const std::shared_lock lock(mutex_);
      page.revision = revision_;
      auto at = after < prefix ? entries_.lower_bound(prefix) : entries_.upper_bound(after);
      for (; at != entries_.end() && at->first.starts_with(prefix); ++at) {
        page.more = found.size() == limit;
        if (page.more) break;
        found.push_back(at->second);
      }
    }
    for (const EntryPtr& entry : found) page.entries.push_back(*entry);
    return page;
  }

  Result<Outcome> TryCommit(const Commit& commit) override {
    const std::lock_guard committing(committing_);
    FFR_TRY(ReadAgain());
    auto outcome = store_->TryCommit(commit);
    if (!outcome) {
      unsure_ = commit.deletes;
      for (const Put& put : commit.puts) unsure_.push_back(put.key);
      (void)ReadAgain();
    } else if (outcome.value().committed) {
      const std::lock_guard lock(mutex_);
      revision_ = outcome.value().revision;
      for (const std::string& key : commit.deletes) entries_.erase(key);
      for (const Put& put : commit.puts) Keep({put.key, put.value, revision_});
    }
    return outcome;
  }

 private:
  using EntryPtr = std::shared_ptr<const KeyValue>;

  EntryPtr Find(std::string_view key) const {
    const std::shared_lock lock(mutex_);
    const auto found = entries_.find(key);
    return found == entries_.end() ? nullptr : found->second;
  }

  void Keep(KeyValue entry) {
    std::string key = entry.key;
    entries_.insert_or_assign(std::move(key), std::make_shared<const KeyValue>(std::move(entry)));
  }

  // Reads the keys of a commit whose outcome is unknown: the store knows. A key that cannot be read
  // stays as it was, and is read before the next commit.
  Result<void> ReadAgain() {
    for (; !unsure_.empty(); unsure_.pop_back()) {
      const std::string& key = unsure_.back();
      auto entry = FFR_TRY(store_->Get(key));
      const std::lock_guard lock(mutex_);
      if (!entry) {
        entries_.erase(key);
        continue;
      }
      revision_ = std::max(revision_, entry->mod_revision);
      Keep(*std::move(entry));
    }
    return {};
  }

  const std::unique_ptr<BlockingStore> store_;
  std::mutex committing_;            // One commit at a time; taken before mutex_.
  std::vector<std::string> unsure_;  // Keys that ReadAgain() has to look at; of committing_.
  mutable std::shared_mutex mutex_;  // Guards all below; nobody waits for a disk while holding it.
  std::map<std::string, EntryPtr, std::less<>> entries_;
  std::uint64_t revision_ = 0;
};

}  // namespace

Result<std::unique_ptr<BlockingStore>> MakeCachedStore(std::unique_ptr<BlockingStore> store) {
  auto cached = std::make_unique<CachedStore>(std::move(store));
  FFR_TRY(cached->Load());
  return std::unique_ptr<BlockingStore>(std::move(cached));
}

}  // namespace ffrecord::server
