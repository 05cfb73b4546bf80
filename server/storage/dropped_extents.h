#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include <ffrecord/result.h>

#include "server/storage/extent_store.h"

namespace ffrecord::server {

// Extents that are to go: from now on nobody finds them, and their files are removed once nobody
// reads or writes them any more. Their ids stay marked deleted until the caller releases them, who
// knows when no record names them any more.
//
// Thread-safe; borrows the store. Nobody waits for a disk while holding its lock.
class DroppedExtents {
 public:
  explicit DroppedExtents(ExtentStore& store) : store_(store) {}

  // As ExtentStore::MarkDeleted(). False: there was no extent.
  bool Add(const ExtentId& id);

  bool empty() const;
  // How many of the first of `ids` are gone for good.
  std::size_t CountGone(std::span<const ExtentId> ids) const;

  struct Swept {
    std::vector<ExtentId> ids;  // They are gone for good: their files are durably removed.
    Result<void> outcome;       // The last failure.
  };
  // Removes the files of that disk; null: takes those that are on no disk, and have none. Those
  // that are in use, those that the disk refuses, and all once `may_go_on` says no, stay for the
  // next time. Blocks on that disk, and on those that have copies.
  Swept Sweep(const Disk* disk, const std::function<bool()>& may_go_on);

  // Those whose files are still there are found again: what they were dropped for does not hold any
  // more. Not beside Sweep().
  void TakeBack();

 private:
  struct Dropped {
    ExtentId id{};
    ExtentPtr extent;       // Null: there was none.
    bool is_begun = false;  // Its file may be gone already, or will be at the next start.
  };
  using Names = std::map<Disk*, std::vector<ExtentId>>;

  std::vector<Dropped> Take(const std::function<bool(const Dropped&)>& wanted);
  // False: not yet. Adds where names are to be synced.
  Result<bool> Unlink(Dropped& dropped, Names& names);
  // Else a power cut could bring them back.
  static Result<void> Sync(const Names& names);

  ExtentStore& store_;
  mutable std::mutex mutex_;
  std::vector<Dropped> dropped_;
  // How often each was added and is not gone, those under way in Sweep() included.
  std::unordered_map<ExtentId, std::uint32_t, HashExtentId> left_;
};

}  // namespace ffrecord::server
