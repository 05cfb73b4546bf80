#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <unordered_map>
#include <vector>

#include <ffrecord/runtime.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/clock.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// The connection that asked for a run, and which run: given back with the outcome.
struct ReadTicket {
  std::uint64_t connection = 0;
  std::uint64_t batch = 0;
  std::uint32_t run = 0;
  TrafficClass traffic = TrafficClass::kUrgent;
};

// A run whose extent's file is not open yet.
struct WaitingRun {
  ReadTicket ticket;
  std::uint64_t offset_bytes = 0;
  std::uint32_t size_bytes = 0;
  PooledBuffer place = nullptr;  // Where it is to be read to; null: to any memory.
  Clock::time_point deadline = Clock::time_point::max();
};

// The runs of one thread that wait until other threads have opened their files, and the files that
// those threads are to open. Thread-bound.
//
// Each disk has one list of files with the other threads at a time, of at most kListMax: a disk
// that hangs holds up its own files only, and runs that are given up meanwhile leave nothing behind
// but that list.
class WaitingRuns {
 public:
  static constexpr std::size_t kListMax = 64;

  // Has the files opened, in this order, by a thread that may wait for their disk, and each one
  // reported to the thread of this object, which then calls TakeOpened() for it.
  using OpenElsewhere = std::function<void(std::vector<ExtentPtr>)>;

  explicit WaitingRuns(OpenElsewhere open) : open_(std::move(open)) {}

  std::uint32_t count() const noexcept { return count_; }

  // Requires that the extent is on a disk.
  void Add(const ExtentPtr& extent, WaitingRun run);
  // The runs that waited for this file. Requires that it was to be opened.
  std::vector<WaitingRun> TakeOpened(const ExtentPtr& extent);
  // Removes the runs that `is_meant` is true for, and calls `take(extent, run)` with each.
  void TakeIf(const std::function<bool(const WaitingRun&)>& is_meant,
              const std::function<void(const Extent&, const WaitingRun&)>& take);

 private:
  struct File {
    ExtentPtr extent;
    std::vector<WaitingRun> runs = {};
    bool is_opening = false;  // It is in the list that other threads have.
  };
  using Files = std::list<File>;  // In the order in which they were asked for.
  struct OfDisk {
    const Disk* disk = nullptr;
    Files files = {};
    std::unordered_map<ExtentPtr, Files::iterator> places = {};
    std::size_t opening_count = 0;
  };
  OfDisk& Of(const Disk* disk);
  void OpenNext(OfDisk& of);

  const OpenElsewhere open_;
  std::vector<OfDisk> disks_;
  std::uint32_t count_ = 0;
};

}  // namespace ffrecord::server
