#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>

#include "libffrecord/base/clock.h"
#include "server/service/cluster/task_threads.h"
#include "server/service/metrics.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// Extents of which a reader has got other bytes than the right ones: each is read and compared with
// its checksum, and what is damaged is marked, logged and counted. From then on the node does not
// hold it, and repair brings it anew. One reader's word alone changes nothing. Thread-safe; no call
// waits for a disk.
class DoubtedExtents {
 public:
  static constexpr std::chrono::seconds kVerifyInterval{10};  // For one extent that was sound.
  static constexpr std::size_t kWaitingMax = 1024;  // More are not taken: readers ask again.

  // `store` outlives it.
  explicit DoubtedExtents(ExtentStore& store) : store_(store) {}
  ~DoubtedExtents() { Stop(); }
  void Stop() { threads_.Stop(); }

  // True: it is being verified, or will be. False: it was a moment ago, is known to be damaged, or
  // there are too many.
  bool Doubt(const ExtentPtr& extent);
  bool IsVerifying(const ExtentId& id) const;
  // Those that were damaged.
  const Counter& damaged() const noexcept { return damaged_; }

 private:
  void Verify(const ExtentPtr& extent);

  ExtentStore& store_;
  Counter damaged_;
  mutable std::mutex mutex_;
  std::set<ExtentId> waiting_;
  std::map<ExtentId, Clock::time_point> verified_;  // At which time.
  TaskThreads threads_{1};                          // Last: it uses all the others.
};

}  // namespace ffrecord::server
