#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include <ffrecord/result.h>

#include "server/metadata/meta_store.h"

namespace ffrecord::server {

// A MetaStore for callers that wait. Thread-safe; not to be called on a MetaStore's own thread.
class BlockingStore {
 public:
  using KeyValue = MetaStore::KeyValue;
  using Page = MetaStore::Page;
  using Commit = MetaStore::Commit;
  using Put = MetaStore::Put;

  struct Outcome {
    bool committed = false;      // False: lost, for a compare did not hold; nothing was changed.
    std::uint64_t revision = 0;  // Revision of this commit; of the store if it lost.
  };

  virtual ~BlockingStore() = default;

  virtual Result<std::optional<KeyValue>> Get(std::string_view key) = 0;
  // The first `limit` keys that begin with `prefix` and are greater than `after`.
  virtual Result<Page> List(std::string_view prefix, std::string_view after,
                            std::uint32_t limit) = 0;
  // All or nothing. Requires that no key is both put and deleted, or put twice. After an error the
  // outcome is unknown: read back, and look for what only this commit would have put.
  virtual Result<Outcome> TryCommit(const Commit& commit) = 0;
};

// Over a store; waits for each answer without a deadline. Fails as that store.
std::unique_ptr<BlockingStore> MakeBlockingStore(std::unique_ptr<MetaStore> store);

// Over another store, of which it holds everything in memory: Get and List wait for no disk and for
// no commit. Nobody else may change the other store. Fails as that one.
Result<std::unique_ptr<BlockingStore>> MakeCachedStore(std::unique_ptr<BlockingStore> store);

}  // namespace ffrecord::server
