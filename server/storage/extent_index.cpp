#include "server/storage/extent_index.h"

#include <utility>

#include "libffrecord/base/checksum.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

std::size_t HashExtentId::operator()(const ExtentId& id) const {
  return static_cast<std::size_t>(Xxh3(id));
}

void ExtentIndex::Reserve(std::size_t count) {
  for (Shard& shard : shards_) shard.extents.reserve(count / kShardCount);
}

ExtentPtr ExtentIndex::Find(const ExtentId& id) const {
  const Shard& shard = ShardOf(id);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.extents.find(id);
  return found == shard.extents.end() ? nullptr : found->second;
}

void ExtentIndex::Put(ExtentPtr extent) {
  const ExtentId id = extent->id;
  Shard& shard = ShardOf(id);
  const std::lock_guard lock(shard.mutex);
  shard.extents[id].swap(extent);  // The old one goes without the lock.
}

ExtentPtr ExtentIndex::Take(const ExtentId& id) {
  Shard& shard = ShardOf(id);
  const std::lock_guard lock(shard.mutex);
  const auto found = shard.extents.find(id);
  if (found == shard.extents.end()) return nullptr;
  ExtentPtr extent = std::move(found->second);
  shard.extents.erase(found);
  return extent;
}

}  // namespace ffrecord::server
