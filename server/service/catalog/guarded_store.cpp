#include "server/service/catalog/guarded_store.h"

#include <algorithm>

#include "server/service/catalog/upload_records.h"

namespace ffrecord::server {
namespace {

bool MakesRoom(const MetaStore::Commit& commit) {
  return std::ranges::all_of(commit.puts, [](const MetaStore::Put& put) {
    return put.key == kGenerationKey || put.key.starts_with(kTombstoneKeys);
  });
}

class GuardedStore final : public BlockingStore {
 public:
  GuardedStore(BlockingStore& store, HomeDisk& home) : store_(store), home_(home) {}

  Result<std::optional<KeyValue>> Get(std::string_view key) override { return store_.Get(key); }
  Result<Page> List(std::string_view prefix, std::string_view after, std::uint32_t limit) override {
    return store_.List(prefix, after, limit);
  }
  // A store that is full has committed nothing.
  Result<Outcome> TryCommit(const Commit& commit) override {
    return home_.Run(MakesRoom(commit), [&] { return store_.TryCommit(commit); });
  }

 private:
  BlockingStore& store_;
  HomeDisk& home_;
};

}  // namespace

std::unique_ptr<BlockingStore> MakeGuardedStore(BlockingStore& store, HomeDisk& home) {
  return std::make_unique<GuardedStore>(store, home);
}

}  // namespace ffrecord::server
