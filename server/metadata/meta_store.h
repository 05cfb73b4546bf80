#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

namespace ffrecord::server {

// A small map of keys and values with compare-and-swap, for what is slow and rare: names,
// manifests, uploads, tombstones. Nothing per record or per read.
//
// There is one revision counter; each commit that changes something takes the next number, and all
// that it puts carry it. Keys are ASCII; values are any bytes. Thread-safe: commits happen one
// after another. Every commit that was reported is on stable storage.
class MetaStore {
 public:
  struct KeyValue {
    std::string key;
    std::vector<std::byte> value;
    std::uint64_t mod_revision = 0;  // Of the commit that put it last; at least 1.

    bool operator==(const KeyValue&) const = default;
  };
  struct Page {
    std::vector<KeyValue> entries;  // In byte order of their keys.
    bool more = false;
    std::uint64_t revision = 0;  // At which the page was read.
  };
  // The key is absent (mod_revision 0), or was put last at mod_revision.
  struct Compare {
    std::string key;
    std::uint64_t mod_revision = 0;
  };
  struct Put {
    std::string key;
    std::vector<std::byte> value;
  };
  struct Commit {
    std::vector<Compare> compares;
    std::vector<Put> puts;
    std::vector<std::string> deletes;  // Keys that are absent are no failure.
  };
  struct Outcome {
    bool committed = false;      // False: lost, for a compare did not hold; nothing was changed.
    std::uint64_t revision = 0;  // Of this commit; of the store if it lost.
  };

  virtual ~MetaStore() = default;

  virtual Result<std::optional<KeyValue>> Get(std::string_view key) = 0;
  // The first `limit` keys that begin with `prefix` and are greater than `after`.
  virtual Result<Page> List(std::string_view prefix, std::string_view after,
                            std::uint32_t limit) = 0;
  // All or nothing. Requires that no key is both put and deleted, or put twice. After kIo the
  // outcome is unknown: read back, and look for what only this commit would have put.
  virtual Result<Outcome> TryCommit(const Commit& commit) = 0;
};

// In one SQLite file, which is made if it is missing. Fails with kCorruption if the file is damaged
// or not ours, with kConflict if another process holds it, with kIo.
Result<std::unique_ptr<MetaStore>> OpenSqliteStore(const std::filesystem::path& path);

// Over another store, of which it holds everything in memory: Get and List wait for no disk and for
// no commit. Nobody else may change the other store. Fails as that one.
Result<std::unique_ptr<MetaStore>> MakeCachedStore(std::unique_ptr<MetaStore> store);

}  // namespace ffrecord::server
