#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "server/metadata/meta_store.h"

namespace ffrecord::server {

// A MetaStore for callers that wait. Thread-safe.
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

// A write of a store to its disk: calls `write`, and again if that failed for lack of room and some
// was made; or does not, and fails. Called on the thread of the store that waits for the disk.
using AroundWrite = std::function<Result<void>(const std::vector<MetaStore::Put>& puts,
                                               const std::function<Result<void>()>& write)>;
// Just calls it.
inline Result<void> WriteOnce(const std::vector<MetaStore::Put>& /*puts*/,
                              const std::function<Result<void>()>& write) {
  return write();
}

// That of OpenSqliteStore(). Get and List tell what has been committed for certain, and wait for
// nobody, neither for a commit nor for a disk that has failed. Fails as OpenSqliteStore(), and its
// commits as `around` too.
Result<std::unique_ptr<BlockingStore>> OpenBlockingStore(const std::filesystem::path& path,
                                                         AroundWrite around = WriteOnce);

}  // namespace ffrecord::server
