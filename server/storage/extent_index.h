#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "libffrecord/format/dataset_manifest.h"

namespace ffrecord::server {

struct Extent;
using ExtentPtr = std::shared_ptr<const Extent>;

struct HashExtentId {
  // Not noexcept: so the tables of libstdc++ keep it beside each id, and compare it first.
  std::size_t operator()(const ExtentId& id) const;
};

// Extents by their ids, in shards of which each has a lock of its own: a look-up holds one of many
// for as long as it takes to find a key, and waits for no change of another shard. Thread-safe.
class ExtentIndex {
 public:
  void Reserve(std::size_t count);

  ExtentPtr Find(const ExtentId& id) const;  // Null if there is none.
  // Adds it, in place of one with its id.
  void Put(ExtentPtr extent);
  // Takes it out, and gives it back. Null if there is none.
  ExtentPtr Take(const ExtentId& id);

  // Calls `visit` with each of them, of one shard after another; changes meanwhile may be missed.
  // `visit` must not use the index.
  template <class Visit>
  void ForEach(const Visit& visit) const {
    for (const Shard& shard : shards_) {
      const std::lock_guard lock(shard.mutex);
      for (const auto& [id, extent] : shard.extents) visit(extent);
    }
  }

 private:
  // Many more than there are threads: two that meet in one are rare.
  static constexpr std::size_t kShardCount = 256;
  struct alignas(64) Shard {  // On cache lines of its own.
    mutable std::mutex mutex;
    std::unordered_map<ExtentId, ExtentPtr, HashExtentId> extents;
  };
  Shard& ShardOf(const ExtentId& id) { return shards_[HashExtentId{}(id) >> kShardShift]; }
  const Shard& ShardOf(const ExtentId& id) const {
    return shards_[HashExtentId{}(id) >> kShardShift];
  }
  static constexpr int kShardShift = 64 - 8;

  std::array<Shard, kShardCount> shards_;
};

}  // namespace ffrecord::server
