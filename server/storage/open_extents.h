#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>

#include <ffrecord/result.h>

#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/mapped_file.h"
#include "server/storage/extent_store.h"
#include "server/storage/resident_chunks.h"

namespace ffrecord::server {

// An extent's file, open for reading; it stays open as long as somebody holds it.
struct OpenExtent {
  ExtentPtr extent;
  UniqueFd fd;
  // The extent's data; none if it cannot be mapped, or if the kernel does not tell what of it is in
  // memory.
  std::optional<MappedFile> mapped;
  mutable ResidentChunks resident = {};  // Chunks of `mapped`; for the thread that reads it.

  // Whether the file has all the bytes of its extent, as far as this machine knows: no server of a
  // network file system is asked, so this waits for no disk.
  bool is_whole() const noexcept;
};
using OpenExtentPtr = std::shared_ptr<const OpenExtent>;

// The files that one thread reads from, the one used least recently out first. Thread-bound.
class OpenExtents {
 public:
  // A process may have some ten thousands of mappings: `mapped_count_max` is what is left to this
  // thread of them.
  OpenExtents(std::size_t count_max, std::size_t mapped_count_max)
      : count_max_(count_max), mapped_count_max_(mapped_count_max) {}

  // Opens the extent's file, and maps it if `is_mapped` and it can be. May wait for its disk; may
  // be called by any thread. Fails as ExtentStore::OpenFile.
  static Result<OpenExtent> Open(const ExtentPtr& extent, bool is_mapped);

  // The extent's file if it is open; else null. Waits for no disk.
  OpenExtentPtr Find(const ExtentPtr& extent);
  // Keeps the file open, in place of one of the same id or of the one used least recently; mapped
  // only if one more may be.
  OpenExtentPtr Add(OpenExtent file);
  // Whether one more file may be mapped.
  bool may_map() const noexcept { return order_.size() < mapped_count_max_; }

  // Closes extents that are marked deleted, so that they can be unlinked and their space is
  // freed.
  void DropDeleted();

 private:
  using Order = std::list<OpenExtentPtr>;  // The one used last is in front.
  void Forget(const ExtentId& id);

  const std::size_t count_max_;
  const std::size_t mapped_count_max_;
  Order order_;
  std::unordered_map<ExtentId, Order::iterator, HashExtentId> places_;
};

}  // namespace ffrecord::server
