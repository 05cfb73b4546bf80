#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "libffrecord/base/clock.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// Moves all extents of a disk to the others, slowly, so that it can be taken out. Their old files
// are served to those who hold them, and go after that. An extent that cannot be moved, as no other
// disk has room or the bytes are bad, stays, gets a line in the log, and is tried again later.
//
// Owns a thread.
class DiskDrain {
 public:
  struct Options {
    std::uint64_t bytes_per_s = std::uint64_t{128} << 20;
    std::chrono::milliseconds look_again{1'000};  // For files that are free to go.
    std::chrono::milliseconds try_again{30'000};  // For extents that could not be moved.
  };
  // Called on the drain's thread.
  struct Told {
    std::function<void(const Extent& extent, const Error& why)> not_moved;
    std::function<void(const Disk& disk)> drained;  // No file is left, once.
  };

  // The store and its disk outlive it. New extents go to other disks from now on.
  DiskDrain(ExtentStore& extents, Disk& disk, const Options& options, Told told);
  DiskDrain(const DiskDrain&) = delete;
  DiskDrain& operator=(const DiskDrain&) = delete;
  ~DiskDrain();  // Leaves the rest where it is.

 private:
  void Run();
  void MoveAll();
  Result<void> Move(const ExtentPtr& extent);
  Result<void> Copy(const Extent& extent, ExtentWriter& writer);
  void RemoveMoved();
  bool Sleep(Clock::time_point until);  // False: it is to end.

  ExtentStore& extents_;
  Disk& disk_;
  const Options options_;
  const Told told_;
  std::vector<ExtentPtr> moved_;  // Their old files are still there.
  Clock::time_point due_;         // When the next piece may be copied.
  std::mutex mutex_;
  std::condition_variable ending_;
  bool is_ending_ = false;
  std::thread thread_;  // Last: it uses all the others.
};

}  // namespace ffrecord::server
