#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <unordered_map>

#include <ffrecord/result.h>

#include "libffrecord/base/unique_fd.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// An extent's file, open for reading; it stays open as long as somebody holds it.
struct OpenFile {
  ExtentPtr extent;
  UniqueFd fd;
};
using OpenFilePtr = std::shared_ptr<const OpenFile>;

// The files that one thread reads from, the one used least recently out first. Thread-bound.
class OpenFiles {
 public:
  OpenFiles(const ExtentStore& extents, std::size_t count_max)
      : extents_(extents), count_max_(count_max) {}

  // Fails as ExtentStore::OpenFile.
  Result<OpenFilePtr> Get(const ExtentPtr& extent);

  // Lets go of extents that are condemned, so that they can be unlinked and their space is freed.
  void DropCondemned();

 private:
  using Order = std::list<OpenFilePtr>;  // The one used last is in front.

  const ExtentStore& extents_;
  const std::size_t count_max_;
  Order order_;
  std::unordered_map<ExtentId, Order::iterator, HashExtentId> places_;
};

}  // namespace ffrecord::server
