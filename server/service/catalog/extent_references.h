#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "libffrecord/format/dataset_manifest.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// Which published names refer to which extents, and how large each name is. Sizes are bytes of
// files.
//
// Thread-safe; nobody waits for a disk while holding its lock.
class ExtentReferences {
 public:
  void Reserve(std::size_t extent_count);

  // `name` has stood for `before` and stands for `after` from now on. Null: for nothing.
  void Change(const std::string& name, const DatasetManifest* before, const DatasetManifest* after);

  std::size_t name_count() const;
  bool Contains(const ExtentId& id) const;  // A name refers to it.
  // How many references names have to the extent: one name may have several.
  std::size_t CountOf(const ExtentId& id) const;
  // For each of `ids`, whether a name that begins with `prefix` refers to it.
  std::vector<bool> AreReferenced(std::string_view prefix, std::span<const ExtentId> ids) const;

  std::uint64_t SizeOf(std::string_view name) const;  // 0 if it is not published.
  // Bytes of the names that begin with `prefix`, without the name `but_not`.
  std::uint64_t SizeBelow(std::string_view prefix, std::string_view but_not = {}) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t, std::less<>> sizes_;
  // To keys of sizes_.
  std::unordered_multimap<ExtentId, const std::string*, HashExtentId> names_;
};

}  // namespace ffrecord::server
