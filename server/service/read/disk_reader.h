#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/io/transfer.h"
#include "server/service/read/read_buffers.h"
#include "server/service/read/run_plan.h"
#include "server/service/read/run_queue.h"
#include "server/service/read/waiting_runs.h"
#include "server/storage/open_extents.h"

namespace ffrecord::server {

// Reads runs for all connections of one thread, through that thread's engine. Thread-bound.
//
// Each disk has a queue and its part of the engine: one that does not answer stops no other. Files
// are opened by other threads, while their runs wait: this thread waits for no disk.
//
// Its memory is bounded: what was started and not yet released counts against held_bytes_max.
// Beyond it, who holds nothing may still start one run, so that those who hold much and take
// nothing off stop nobody.
class DiskReader {
 public:
  static constexpr std::uint32_t kDepth = 256;
  // Bytes that are not urgent and read from one disk at a time beside urgent ones: while one of
  // these is read, or began within kUrgentRecently.
  static constexpr std::uint64_t kBesideUrgentBytes = std::uint64_t{8} << 20;
  static constexpr std::chrono::milliseconds kUrgentRecently{100};

  using MakeEngine = std::function<Result<std::unique_ptr<IoEngine>>(std::uint32_t depth)>;

  using Ticket = ReadTicket;
  // A run that lies in the page cache, where it may be sent from.
  struct Resident {
    OpenExtentPtr file;  // Keeps it mapped.
    std::span<const std::byte> bytes;
  };
  struct Completed {
    Ticket ticket;
    PooledBuffer buffer;  // Where it was read to; null unless status is kOk.
    std::uint32_t size_bytes = 0;
    net::EntryStatus status = net::EntryStatus::kOk;
    // In place of `buffer`: the run was not read, for it was found in memory once its file was
    // open.
    std::optional<Resident> resident = std::nullopt;
    bool has_waited = false;  // For its file.
    // If it was read: the disk, and how long that took.
    const Disk* disk = nullptr;
    Clock::duration read_time{};
  };

  struct Bounds {
    std::size_t files_count_max = 0;   // How many files to keep open,
    std::size_t mapped_count_max = 0;  // and how many of them mapped.
    std::uint64_t held_bytes_max = std::uint64_t{64} << 20;
    std::size_t disk_count = 1;  // That share the engine and the memory.
  };
  // Has OpenExtents::Open() called for each of the extents, in this order, by a thread that may
  // wait for their disk, and TakeOpened() with each outcome by this thread, unless the reader is
  // gone by then. Their disk is the same.
  using OpenElsewhere = std::function<void(std::vector<ExtentPtr> extents, bool is_mapped)>;
  DiskReader(std::unique_ptr<IoEngine> engine, const Bounds& bounds, OpenElsewhere open)
      : engine_(std::move(engine)),
        waiting_([this, open = std::move(open)](std::vector<ExtentPtr> extents) {
          open(std::move(extents), files_.may_map());
        }),
        files_(bounds.files_count_max, bounds.mapped_count_max),
        held_bytes_max_(bounds.held_bytes_max),
        disk_count_(std::max<std::size_t>(bounds.disk_count, 1)) {}
  ~DiskReader();

  std::string_view engine_name() const noexcept { return engine_->name(); }
  std::uint32_t reading_count() const noexcept { return static_cast<std::uint32_t>(reads_.size()); }
  // Runs that wait for their file.
  std::uint32_t waiting_count() const noexcept { return waiting_.count(); }
  std::uint64_t held_bytes() const noexcept { return held_bytes_; }
  std::size_t disk_count() const noexcept { return disk_count_; }
  bool has_room() const noexcept { return held_bytes_ < held_bytes_max_; }
  // Whether this disk may start another read; each disk is limited to its share. Reads that are not
  // urgent leave a quarter of it to those that are. Beside urgent ones they are limited to what
  // keeps a disk busy, so that an urgent one waits for no more than that.
  bool HasRoomFor(const Extent& extent,
                  TrafficClass traffic = TrafficClass::kUrgent) const noexcept;
  // Rises whenever there may be more room than before, also where only one disk has it: who found
  // none need not look again before.
  std::uint64_t room_count() const noexcept { return room_count_; }
  // Poll() has something to do now: runs to submit, or to report without their being read. It has
  // also where EventFd() is readable.
  bool must_poll() const noexcept { return !ended_.empty() || must_submit_; }
  // Becomes readable when runs end, for an edge-triggered epoll: Poll() takes all that have ended.
  // -1 if the engine has no such descriptor. To be asked for by the thread that polls.
  int EventFd();

  // The run, if no byte of it has to be waited for, as far as is known at `now`. Holds no memory of
  // ours: nothing is to be released. It stays in memory as long as the kernel likes, usually longer
  // than a reply takes; who touches it later than that waits for the disk. `whole` is the extent
  // that was found to have its full size a moment ago, or null; it is set.
  std::optional<Resident> FindInMemory(const ReadRun& run, const Extent*& whole,
                                       Clock::time_point now);

  // Queues one run; its bytes are held until Release(). It goes to `place`, which is of its size,
  // or to memory that is taken for it. False if it waits for its file, at most until `deadline`.
  bool Start(const Ticket& ticket, const ReadRun& run, PooledBuffer place = nullptr,
             Clock::time_point deadline = Clock::time_point::max());
  void Release(std::uint32_t size_bytes);
  // The runs that wait for the file go on, or fail.
  void TakeOpened(const ExtentPtr& extent, Result<OpenExtent> opened);
  // Ends what waits for its file past its deadline: Poll() gives it out as kDeadline.
  void GiveUpLate(Clock::time_point now);
  // Ends what the engine has not taken of a connection's runs, or of one batch of it, also what
  // waits for its file: Poll() gives it out as kCancelled.
  void Withdraw(std::uint64_t connection, std::optional<std::uint64_t> batch = std::nullopt);

  // Submits what is queued; waits for one run, if any is being read, for at most `timeout`; adds
  // what has completed to `completed`. Fails with kIo only if the engine fails.
  Result<void> Poll(std::chrono::milliseconds timeout, std::vector<Completed>& completed);

  void DropDeleted() { files_.DropDeleted(); }

 private:
  struct Read {
    // The transfer stays where it is made: the engine knows it by its address.
    Read(const Ticket& for_ticket, PooledBuffer into, OpenExtentPtr from, const IoRequest& request)
        : ticket(for_ticket), buffer(std::move(into)), file(std::move(from)), transfer(request) {}
    Ticket ticket;
    PooledBuffer buffer;
    OpenExtentPtr file;
    Transfer transfer;
    bool has_waited = false;
    Clock::time_point started = Clock::now();
  };
  struct Queue {
    const Disk* disk = nullptr;
    RunQueue queued = {};  // Not yet taken by the engine.
    std::uint32_t reading_count = 0;
    std::uint64_t reading_bytes = 0;     // Bytes of both, and of runs that wait for their file;
    std::uint64_t background_bytes = 0;  // how many of them are not urgent.
    Clock::time_point urgent_at{};       // When an urgent run was started last.
  };
  static bool IsUrgent(const Ticket& ticket) noexcept {
    return ticket.traffic == TrafficClass::kUrgent;
  }
  Queue& QueueOf(const Disk* disk);
  // `size_bytes` of a run are with its disk no more.
  static void Leave(Queue& queue, const Ticket& ticket, std::uint64_t size_bytes);
  Result<void> Submit();
  std::optional<Resident> FindIn(const OpenExtentPtr& file, std::uint64_t offset_bytes,
                                 std::uint32_t size_bytes, const Extent*& whole,
                                 Clock::time_point now);
  void Enqueue(WaitingRun run, const OpenExtentPtr& file, bool has_waited);
  void End(const Disk* disk, Completed completed);
  static net::EntryStatus NoteNotStarted(const Extent& extent, const Error& why);
  Completed Finish(Read& read);
  void TakeBack(const IoRequest& request, std::vector<Completed>& completed);
  bool has_queued() const noexcept;

  std::unique_ptr<IoEngine> engine_;
  WaitingRuns waiting_;
  OpenExtents files_;
  ReadBuffers buffers_;
  const std::uint64_t held_bytes_max_;
  const std::size_t disk_count_;
  std::uint64_t held_bytes_ = 0;
  std::uint64_t room_count_ = 0;
  std::unordered_map<Transfer*, std::unique_ptr<Read>> reads_;
  std::vector<Queue> queues_;     // One for each disk that was read; they are few.
  bool must_submit_ = false;      // The engine may take some of what is queued.
  std::vector<Completed> ended_;  // Without the engine; for Poll() to give out.
};

}  // namespace ffrecord::server
