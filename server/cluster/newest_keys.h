#pragma once

#include <set>
#include <string>
#include <vector>

#include "server/cluster/key_mirror.h"
#include "server/cluster/records.h"

namespace ffrecord::server::cluster {

// The keys that were put last, of those that say which extents are wanted and that are put once
// only with the same value: names, uploads and tombstones. The newest of them tells a history from
// another one in which revisions have the same numbers.
class NewestKeys {
 public:
  // `changed`: since the last call; all that there are after a listing.
  void Update(const std::set<std::string>& changed, const KeyMirror& mirror);
  // None of a history that has ended.
  void Clear() { keys_.clear(); }
  // Revision 0: there is none.
  Anchor newest() const { return keys_.empty() ? Anchor() : keys_.back(); }

 private:
  // Most are deleted again soon: uploads when they are published, tombstones after their grace.
  static constexpr std::size_t kCount = 64;

  void Add(const MetaStore::KeyValue& key);

  std::vector<Anchor> keys_;  // In order of their revisions.
};

// The identity of the key as it was put then; revision 0: it is none of those that tell anything.
Anchor AnchorOf(const MetaStore::KeyValue& key);

}  // namespace ffrecord::server::cluster
