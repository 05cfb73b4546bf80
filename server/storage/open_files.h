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
struct OpenFile {
  ExtentPtr extent;
  UniqueFd fd;
  // Of the extent's data; none if it cannot be mapped, or if the kernel does not tell what of it is
  // in memory.
  std::optional<MappedFile> mapped;
  mutable ResidentChunks resident = {};  // Of `mapped`; for the thread that reads it.
};
using OpenFilePtr = std::shared_ptr<const OpenFile>;

// The files that one thread reads from, the one used least recently out first. Thread-bound.
class OpenFiles {
 public:
  // A process may have some ten thousands of mappings: `mapped_count_max` is what is left to this
  // thread of them.
  OpenFiles(std::size_t count_max, std::size_t mapped_count_max)
      : count_max_(count_max), mapped_count_max_(mapped_count_max) {}

  // Fails as ExtentStore::OpenFile.
  Result<OpenFilePtr> Get(const ExtentPtr& extent);

  // Lets go of extents that are marked deleted, so that they can be unlinked and their space is
  // freed.
  void DropDeleted();

 private:
  using Order = std::list<OpenFilePtr>;  // The one used last is in front.

  const std::size_t count_max_;
  const std::size_t mapped_count_max_;
  Order order_;
  std::unordered_map<ExtentId, Order::iterator, HashExtentId> places_;
};

}  // namespace ffrecord::server
