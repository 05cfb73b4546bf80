#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/metadata/meta_store.h"

namespace ffrecord::server {

// The newest changes of a store, for watches that begin in the past and for lists of the map as it
// was. Keeps at most so much; older changes are compacted. Distinct objects in distinct threads.
class MetaHistory {
 public:
  struct Limits {
    std::size_t change_count_max = 10'000;
    std::size_t size_bytes_max = 16 << 20;  // Limit for keys and values, those before included.
  };
  using EntryPtr = std::shared_ptr<const MetaStore::KeyValue>;
  using Entries = std::map<std::string, EntryPtr, std::less<>>;
  struct Change {
    MetaStore::Event event;
    EntryPtr before;  // The entry of the key before the change; null: there was none.
  };

  // `revision`: of the store now; what was before is compacted.
  MetaHistory(const Limits& limits, std::uint64_t revision)
      : limits_(limits), compacted_(revision) {}

  // Requires the changes to be of one revision, which is the next.
  void Add(std::vector<Change> changes);
  // Forgets the changes of `revision` and all before. The map as it was at `revision` is still
  // there.
  void CompactTo(std::uint64_t revision);

  // The store was put back to an older state, of which no change is known.
  void PutBack(std::uint64_t revision);

  // The changes from `from_revision` on of keys that begin with `prefix`; none: some are compacted.
  std::optional<std::vector<MetaStore::Event>> Since(std::string_view prefix,
                                                     std::uint64_t from_revision) const;
  // Makes of the entries as they are those of `revision`. False: it is compacted.
  bool Undo(Entries& entries, std::uint64_t revision) const;

 private:
  static std::size_t SizeOf(const Change& change);

  const Limits limits_;
  std::deque<Change> changes_;
  std::size_t size_bytes_ = 0;
  std::uint64_t compacted_;  // The newest revision that is.
};

}  // namespace ffrecord::server
