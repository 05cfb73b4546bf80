#include "client/checkpoint/segment_files.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/side_by_side.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/io_engine.h"
#include "libffrecord/io/transfer.h"
#include "libffrecord/io/transfer_queue.h"
#include "libffrecord/io/unnamed_file.h"

namespace ffrecord::client {
namespace {

// Writes of each thread: enough for a fast disk with two threads, and 16 MiB of buffers at most.
constexpr std::uint32_t kWritesInFlight = 4;
constexpr std::size_t kThreadsMax = 4;

struct OpenSegment {
  SegmentImage* image;
  UnnamedFile file;
  UniqueFd direct_fd;

  int write_fd() const { return direct_fd ? direct_fd.get() : file.fd(); }
};

struct Job {
  OpenSegment* segment;
  const SegmentImage::Piece* piece;
};

Result<OpenSegment> OpenOne(const std::filesystem::path& folder, SegmentFile& segment,
                            bool direct) {
  const std::uint64_t size = segment.image.layout().file_size_bytes;
  OpenSegment open{&segment.image, FFR_TRY(UnnamedFile::Create(folder / segment.name, false)), {}};
  FFR_TRY(open.file.Reserve(size));
  // Writes that make a file longer wait for each other in the kernel; writes inside it do not.
  if (::ftruncate(open.file.fd(), static_cast<off_t>(size)) != 0)
    return ErrnoError("make room in", open.file.path(), errno);
  if (direct) open.direct_fd = open.file.OpenDirect();
  return open;
}

// The jobs that the threads share. Thread-safe.
class JobList {
 public:
  JobList(std::span<OpenSegment> segments, const std::function<void()>& released)
      : released_(released) {
    for (OpenSegment& segment : segments)
      for (const auto& piece : segment.image->pieces()) jobs_.push_back({&segment, &piece});
    const auto stable = std::stable_partition(jobs_.begin(), jobs_.end(),
                                              [](const Job& job) { return !job.piece->is_stable; });
    unstable_left_ = stable - jobs_.begin();
    if (unstable_left_ == 0 && released_) released_();
  }

  std::size_t size() const { return jobs_.size(); }

  const Job* Next() {
    const std::size_t i = next_.fetch_add(1);
    return i < jobs_.size() ? &jobs_[i] : nullptr;
  }

  void Written(const Job& job) {
    if (!job.piece->is_stable && unstable_left_.fetch_sub(1) == 1 && released_) released_();
  }

 private:
  std::vector<Job> jobs_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::ptrdiff_t> unstable_left_{0};
  const std::function<void()>& released_;
};

// One thread's share: takes pieces from the list and keeps several of them in flight.
class PieceWriter {
 public:
  PieceWriter(JobList& jobs, std::unique_ptr<IoEngine> engine)
      : jobs_(jobs),
        engine_(std::move(engine)),
        queue_(*engine_, kWritesInFlight, TransferQueue::Wants::kAny, queue_memory_) {
    for (Slot& slot : slots_) idle_.push_back(&slot);
  }

  Result<void> Run(const SideBySide& others) {
    for (;;) {
      while (!idle_.empty() && !others.failed()) {
        const Job* job = jobs_.Next();
        if (job == nullptr) break;
        FFR_TRY(Start(*job));
      }
      if (idle_.size() == slots_.size()) return {};
      FFR_TRY(WaitForSome());
    }
  }

 private:
  struct Slot;
  struct Write : Transfer {
    Write(const IoRequest& request, const Job& of_job, Slot& of_slot)
        : Transfer(request, of_job.segment->file.fd()), job(&of_job), slot(&of_slot) {}
    const Job* job;
    Slot* slot;
  };
  struct Slot {
    PooledBuffer buffer;  // Taken when it is first needed.
    std::optional<Write> write;
  };

  Result<void> Start(const Job& job) {
    Slot& slot = *idle_.back();
    if (job.piece->own_memory == nullptr && !slot.buffer)
      slot.buffer = FFR_TRY(BufferPool::Process().Take(SegmentImage::kPieceSizeMax));
    const auto bytes =
        job.segment->image->Make(*job.piece, slot.buffer ? *slot.buffer : std::span<std::byte>());
    IoRequest request;
    request.kind = IoRequest::Kind::kWrite;
    request.fd = job.segment->write_fd();
    request.offset_bytes = job.piece->offset_bytes;
    request.buffer = {const_cast<std::byte*>(bytes.data()), bytes.size()};  // Only read from.
    idle_.pop_back();
    queue_.Add(slot.write.emplace(request, job, slot));
    return queue_.Submit();
  }

  Result<void> WaitForSome() {
    ended_.clear();
    FFR_TRY(queue_.Poll(kIoForever, ended_));
    for (Transfer* transfer : ended_) {
      const auto& write = *static_cast<Write*>(transfer);
      if (write.result() < 0)
        return ErrnoError("write", write.job->segment->file.path(),
                          static_cast<int>(-write.result()));
      jobs_.Written(*write.job);
      idle_.push_back(write.slot);
    }
    return {};
  }

  JobList& jobs_;
  std::unique_ptr<IoEngine> engine_;
  std::array<Slot, kWritesInFlight> slots_;
  std::vector<Slot*> idle_;
  std::vector<Transfer*> ended_;
  TransferQueue::Memory queue_memory_;
  // Ends before the buffers: the kernel writes from them and from the caller's tensors.
  TransferQueue queue_;
};

Result<void> WritePayloads(std::span<OpenSegment> segments, const std::function<void()>& released) {
  JobList jobs(segments, released);
  const std::size_t threads = std::min<std::size_t>(
      {jobs.size(), kThreadsMax, std::max(1U, std::thread::hardware_concurrency())});
  return SideBySide::Run(threads, [&](const SideBySide& others) -> Result<void> {
    return PieceWriter(jobs, FFR_TRY(MakeIoEngine(kWritesInFlight))).Run(others);
  });
}

// The tables, then a sync of every file: all files at once.
Result<void> WriteEnds(std::span<OpenSegment> segments) {
  auto engine = FFR_TRY(MakeIoEngine(kWritesInFlight));
  std::vector<PooledBuffer> buffers;
  std::vector<IoRequest> writes(segments.size());
  std::vector<IoRequest> syncs(segments.size());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto end = segments[i].image->MakeEnd();
    buffers.push_back(FFR_TRY(BufferPool::Process().Take(end.size())));
    std::memcpy(buffers.back()->data(), end.data(), end.size());
    writes[i].kind = IoRequest::Kind::kWrite;
    writes[i].fd = segments[i].write_fd();
    writes[i].offset_bytes = segments[i].image->layout().payload_size_bytes;
    writes[i].buffer = *buffers.back();
    syncs[i].kind = IoRequest::Kind::kSync;
    syncs[i].fd = segments[i].file.fd();
  }
  const auto run = [&](std::span<IoRequest> requests, std::string_view tried) -> Result<void> {
    FFR_TRY(RunAll(*engine, requests, kWritesInFlight));
    for (std::size_t i = 0; i < requests.size(); ++i)
      if (requests[i].result < 0)
        return ErrnoError(tried, segments[i].file.path(), static_cast<int>(-requests[i].result));
    return {};
  };
  FFR_TRY(run(writes, "write"));
  return run(syncs, "sync");
}

}  // namespace

Result<void> WriteSegmentFiles(const std::filesystem::path& folder, std::span<SegmentFile> segments,
                               bool direct, const std::function<void()>& released) {
  std::vector<OpenSegment> open;
  for (SegmentFile& segment : segments) open.push_back(FFR_TRY(OpenOne(folder, segment, direct)));
  FFR_TRY(WritePayloads(open, released));
  if (open.empty()) return {};
  FFR_TRY(WriteEnds(open));
  for (OpenSegment& segment : open) FFR_TRY(segment.file.Publish());
  return {};
}

}  // namespace ffrecord::client
