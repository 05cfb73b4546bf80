#pragma once

// A BlockingStore that forgets everything when it ends.

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/metadata/blocking_store.h"
#include "server/metadata/meta_state.h"

namespace ffrecord::test {

class MemoryStore final : public server::BlockingStore {
 public:
  Result<std::optional<KeyValue>> Get(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    return state_.Get(key);
  }

  Result<Page> List(std::string_view prefix, std::string_view after, std::uint32_t limit) override {
    const std::lock_guard lock(mutex_);
    return state_.List({std::string(prefix), std::string(after), limit, 0});
  }

  Result<Outcome> TryCommit(const Commit& commit) override {
    const std::lock_guard lock(mutex_);
    const auto outcome = FFR_TRY(state_.TryCommit(commit, {}));
    return Outcome{outcome.fate == server::MetaStore::Outcome::Fate::kCommitted, outcome.revision};
  }

 private:
  std::mutex mutex_;
  server::MetaState state_;
};

inline std::unique_ptr<server::BlockingStore> MakeMemoryStore() {
  return std::make_unique<MemoryStore>();
}

}  // namespace ffrecord::test
