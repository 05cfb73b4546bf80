#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/clock.h"
#include "server/service/read/disk_reader.h"
#include "server/service/read_ahead/read_ahead_port.h"

namespace ffrecord::server {

// Reads ahead for one worker while no client keeps that worker busy: takes runs from the ReadAhead
// and has the worker's own DiskReader read them into the page cache. Thread-bound.
//
// A disk that answers quickly leaves no such time, and is not read ahead from: that would only take
// processor time from the requests. A request waits for the few runs that are with its disk
// already, and no new ones are started until the worker is idle again. A disk that hangs keeps its
// own few runs, and others are read ahead from all the same.
class IdleReads {
 public:
  using Milliseconds = std::chrono::milliseconds;
  static constexpr std::uint64_t kConnection = 0;  // In tickets; connections count from 1.
  // The worker is idle once nothing but the disk has had news for it for so long while it reads for
  // clients, which then wait for the disk,
  static constexpr Milliseconds kIdleAfter{2};
  // or for so long while it reads for none: clients that are about to ask may need the processor.
  static constexpr Milliseconds kUnusedAfter{20};
  // With one disk.
  static constexpr std::uint64_t kInFlightBytesMax = std::uint64_t{2} << 20;
  static constexpr std::uint32_t kInFlightCountMax = 32;

  IdleReads(ReadAheadPort& read_ahead, DiskReader& disk) : read_ahead_(read_ahead), disk_(disk) {}

  // A socket or another thread has news for the worker.
  void NoteBusy(Clock::time_point now) noexcept { busy_at_ = now; }
  // How much of `wait` the worker may sleep before Start() is to be called again.
  Milliseconds WaitMax(Milliseconds wait, Clock::time_point now) const noexcept;
  // Starts what is to be read ahead, if the worker is idle.
  void Start(Clock::time_point now);
  // Takes a run that was started here.
  void Take(const DiskReader::Completed& completed);
  // All completed runs were taken. Bytes of runs that were with the disk before came from there.
  void NotePolled() noexcept { polled_number_ = newest_number_; }

 private:
  // The runs that are with a disk.
  struct InFlight {
    const Disk* disk = nullptr;
    std::uint32_t count = 0;
    std::uint64_t bytes = 0;
  };
  static bool IsFull(const InFlight& one) noexcept {
    return one.count >= kInFlightCountMax || one.bytes >= kInFlightBytesMax;
  }
  bool has_room() const noexcept;
  // The runs to start next, without those of disks that have enough.
  std::vector<ReadAhead::Run> Next();
  void StartOne(const ReadAhead::Run& run);
  Milliseconds Patience() const noexcept {
    const std::uint32_t count = disk_.reading_count() + disk_.waiting_count();
    return count > count_ ? kIdleAfter : kUnusedAfter;
  }
  // Where runs are read to: nobody looks at it, and all share it.
  PooledBuffer Place(std::uint32_t size_bytes);

  ReadAheadPort& read_ahead_;
  DiskReader& disk_;
  Clock::time_point busy_at_{};
  PooledBuffer sink_;                // Null before the first run.
  std::vector<InFlight> in_flight_;  // One for each disk that was read ahead from.
  std::uint32_t count_ = 0;          // Runs with all disks.
  // There was nothing to start while some runs were with a disk: until then, or one of them ends.
  Clock::time_point none_until_{};
  std::uint64_t newest_number_ = 0;
  std::uint64_t polled_number_ = 0;
};

}  // namespace ffrecord::server
