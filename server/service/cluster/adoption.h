#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/dataset_manifest.h"
#include "server/cluster/machine.h"
#include "server/metadata/blocking_store.h"
#include "server/service/catalog/extent_references.h"

namespace ffrecord::server {

// The names that a daemon published before it joined its cluster, on their way into the cluster.
//
// Until all are there, the daemon's own records of them stay as they are: so it can leave the
// cluster again, and an adoption that was interrupted goes on. A name that the cluster has taken is
// noted with the attempt that published it, so that one which is removed there later is not
// published again.
//
// Thread-safe.
class Adoption {
 public:
  struct Name {
    std::string name;
    std::uint64_t attempt = 0;
    std::uint64_t revision = 0;  // As this daemon published it.
    std::shared_ptr<const DatasetManifest> manifest;
  };

  // Whether `home` has names that the daemon published outside of a cluster. Fails as `home`.
  static Result<bool> IsNeeded(BlockingStore& home);
  // Fails as `home`, and with kCorruption if a name cannot be read: then nothing is adopted.
  static Result<std::unique_ptr<Adoption>> Open(BlockingStore& home);
  // Removes the daemon's own records, which makes the adoption final. Fails with kConflict if a
  // name is not in the cluster yet, and as `home`.
  static Result<void> Finish(BlockingStore& home);

  // All extents of the daemon's own names, adopted or not. Ordered.
  const std::vector<ExtentId>& extents() const noexcept { return extents_; }

  // A name that is not in the cluster yet.
  std::optional<Name> Find(std::string_view name) const;
  // At most `limit` of those that begin with `prefix` and come after `after`. Ordered.
  std::vector<Name> List(std::string_view prefix, std::string_view after, std::size_t limit) const;
  // Whether this daemon has published it: the cluster has taken it, or will.
  bool IsOwn(std::string_view name, std::uint64_t attempt) const;
  // For each of `ids`, whether such a name refers to it that begins with `prefix`.
  std::vector<bool> AreReferenced(std::string_view prefix, std::span<const ExtentId> ids) const {
    return references_.AreReferenced(prefix, ids);
  }
  std::size_t left_count() const;
  // Why the last name that failed did so; empty: none has. For people.
  std::string trouble() const;

  // A name to be published now; none: wait until wake(). It is given out again only after
  // NoteFailed.
  std::optional<Name> Next(cluster::TimePoint now);
  cluster::TimePoint wake() const;
  // The cluster has it. Waits for the disk of `home`.
  Result<void> NoteTaken(const Name& name);
  // It is tried again later.
  void NoteFailed(const Name& name, const Error& error, cluster::TimePoint now);

 private:
  struct Pending {
    Name name;
    bool is_under_way = false;
    cluster::TimePoint next{};
    std::string trouble;
  };
  explicit Adoption(BlockingStore& home) : home_(home) {}
  // As many names are under way as may be. Requires the lock, as the next one.
  bool IsBusy() const;
  bool MustWait(const std::string& name) const;

  BlockingStore& home_;
  std::vector<ExtentId> extents_;
  ExtentReferences references_;  // References of the pending names.
  mutable std::mutex mutex_;
  std::map<std::string, Pending, std::less<>> pending_;
  std::map<std::string, std::uint64_t, std::less<>> taken_;  // Attempts of names that were taken.
};

}  // namespace ffrecord::server
