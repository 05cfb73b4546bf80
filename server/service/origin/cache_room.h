#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "server/service/cluster/task_threads.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// The room of cached extents: which of them go when others need it, and the removal of their files.
//
// A thread of each disk waits for it: a disk that hangs keeps its own files, and holds up nothing
// else. Sizes are bytes. Thread-safe.
class CacheRoom {
 public:
  // Room for one extent until it is in the store. Given back when this goes.
  class Reservation {
   public:
    Reservation(Reservation&& other) noexcept
        : room_(std::exchange(other.room_, nullptr)), size_bytes_(other.size_bytes_) {}
    Reservation& operator=(Reservation&&) = delete;
    ~Reservation() {
      if (room_ != nullptr) room_->GiveBack(size_bytes_);
    }

   private:
    friend class CacheRoom;
    Reservation(CacheRoom& room, std::uint64_t size_bytes)
        : room_(&room), size_bytes_(size_bytes) {}
    CacheRoom* room_;
    std::uint64_t size_bytes_;
  };

  // The store outlives it.
  CacheRoom(ExtentStore& store, std::uint64_t size_bytes_max);
  ~CacheRoom();  // Waits for the disks.
  CacheRoom(const CacheRoom&) = delete;
  CacheRoom& operator=(const CacheRoom&) = delete;

  // Removes what was used least recently if that is needed, and then waits a little until its disk
  // has given the room back. Fails with kUnavailable if what is being fetched leaves no room, and
  // with kIo (ENOSPC) if no disk has room though nothing is being fetched: then others have it.
  Result<Reservation> Reserve(std::uint64_t size_bytes);
  // Removes whatever has this id. Readers that have its file open go on; the disk gets the room
  // back when the last of them closes it.
  void Remove(const ExtentId& id);
  // Removes `extent`, unless there is another one in its place.
  void Discard(const Extent& extent);
  // Unlinks what could not be unlinked before, and makes room on disks that others have filled. To
  // be called now and then.
  void Tend();
  // Has `task` run by the thread of that disk, which is one of the store's.
  void Post(const Disk& disk, TaskThreads::Task task) { PartOf(disk).thread.Post(std::move(task)); }

  std::uint64_t evicted_count() const noexcept { return evicted_count_; }

  // As TaskThreads.
  void BeginStop();
  bool AwaitEnd(Clock::time_point deadline);

 private:
  // The room on one disk.
  struct Part {
    explicit Part(Disk& of) : disk(of) {}
    Disk& disk;
    std::vector<ExtentPtr> unlinking;  // Marked deleted.
    bool is_posted = false;            // The thread is about to look at it.
    bool is_due = false;               // And to see whether others need room.
    TaskThreads thread{1};
  };

  Part& PartOf(const Disk& disk);
  void GiveBack(std::uint64_t size_bytes);
  std::uint64_t Evict(std::uint64_t size_bytes, const Disk* disk);
  void RemoveLocked(const ExtentId& id);
  void PostLocked(Part& part);
  void Work(Part& part);
  bool Unlink(const Extent& extent);

  ExtentStore& store_;
  const std::uint64_t size_bytes_max_;
  std::atomic<std::uint64_t> evicted_count_{0};
  std::mutex mutex_;  // Guards the next ones, and the parts. Nothing waits for a disk with it.
  std::condition_variable worked_;
  std::uint64_t reserved_bytes_ = 0;
  bool is_stopping_ = false;
  std::vector<std::unique_ptr<Part>> parts_;  // Last: their threads use all the others.
};

}  // namespace ffrecord::server
