#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "server/cluster/key_mirror.h"
#include "server/cluster/records.h"

namespace ffrecord::server::cluster {

// The tombstones that there are, and since when this node knows of each.
class TombstoneTable {
 public:
  struct Tombstone {
    TombstoneRecord record;
    std::uint64_t revision = 0;
    TimePoint seen;
  };
  using Tombstones = std::map<std::string, Tombstone>;  // By key.

  const Tombstones& all() const { return tombstones_; }
  const Tombstone* Find(const std::string& key) const {
    const auto found = tombstones_.find(key);
    return found == tombstones_.end() ? nullptr : &found->second;
  }
  // It was published, and was removed again.
  bool WasRemoved(const ExtentId& id) const {
    return std::ranges::any_of(tombstones_, [&](const auto& tombstone) {
      return Contains(tombstone.second.record.runs, id);
    });
  }
  bool Names(const ExtentId& id) const {
    return std::ranges::any_of(
        tombstones_, [&](const auto& tombstone) { return tombstone.second.record.Names(id); });
  }

  // These keys have changed. A tombstone that cannot be read names nothing; it stays in the store
  // until an operator has looked at it.
  void Update(TimePoint now, const std::set<std::string>& keys, const KeyMirror& mirror) {
    for (const std::string& key : keys) {
      if (!key.starts_with(kTombstoneKeys)) continue;
      tombstones_.erase(key);
      const MetaStore::KeyValue* const entry = mirror.Find(key);
      if (entry == nullptr) continue;
      auto record = TombstoneRecord::Decode(entry->value);
      if (record)
        tombstones_.emplace(key, Tombstone{std::move(record).value(), entry->mod_revision, now});
    }
  }

 private:
  Tombstones tombstones_;
};

}  // namespace ffrecord::server::cluster
