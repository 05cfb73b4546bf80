#pragma once

// A MetaStore that forgets everything when it ends.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/metadata/meta_store.h"

namespace ffrecord::test {

class MemoryStore final : public server::MetaStore {
 public:
  Result<std::optional<KeyValue>> Get(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(key);
    if (found == entries_.end()) return std::optional<KeyValue>();
    return std::optional(found->second);
  }

  Result<Page> List(std::string_view prefix, std::string_view after, std::uint32_t limit) override {
    const std::lock_guard lock(mutex_);
    Page page;
    page.revision = revision_;
    auto entry = after < prefix ? entries_.lower_bound(prefix) : entries_.upper_bound(after);
    for (; entry != entries_.end() && entry->first.starts_with(prefix); ++entry) {
      if (page.entries.size() == limit) {
        page.more = true;
        break;
      }
      page.entries.push_back(entry->second);
    }
    return page;
  }

  Result<Outcome> TryCommit(const Commit& commit) override {
    const std::lock_guard lock(mutex_);
    for (const Compare& compare : commit.compares) {
      const auto found = entries_.find(compare.key);
      const std::uint64_t mod_revision = found == entries_.end() ? 0 : found->second.mod_revision;
      if (mod_revision != compare.mod_revision) return Outcome{false, revision_};
    }
    ++revision_;
    for (const std::string& key : commit.deletes) entries_.erase(key);
    for (const Put& put : commit.puts)
      entries_.insert_or_assign(put.key, KeyValue{put.key, put.value, revision_});
    return Outcome{true, revision_};
  }

 private:
  std::mutex mutex_;
  std::map<std::string, KeyValue, std::less<>> entries_;
  std::uint64_t revision_ = 0;
};

inline std::unique_ptr<server::MetaStore> MakeMemoryStore() {
  return std::make_unique<MemoryStore>();
}

}  // namespace ffrecord::test
