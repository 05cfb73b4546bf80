#include "server/service/read/disk_reader.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/base/hex.h"

namespace ffrecord::server {

namespace {

net::EntryStatus StatusOfAbsent(ErrorCode refusal) {
  switch (refusal) {
    case ErrorCode::kCorruption:
      return net::EntryStatus::kCorrupt;
    case ErrorCode::kNotFound:
      return net::EntryStatus::kNotHere;
    case ErrorCode::kDenied:
      return net::EntryStatus::kDenied;
    case ErrorCode::kIo:
      return net::EntryStatus::kIoError;
    default:
      return net::EntryStatus::kBusy;
  }
}

// The status of an extent that could not be read. A cached one is verified now, and fetched again
// if that is needed: clients ask again.
net::EntryStatus StatusOfSuspect(const Extent& extent, net::EntryStatus status) {
  extent.is_suspect.store(true, std::memory_order_relaxed);
  return extent.is_cached ? net::EntryStatus::kBusy : status;
}

// Extents that were fetched from origins lie on one of the disks, and are read within that one's
// part.
const Disk* WholeOf(const Disk* disk) { return disk == nullptr ? nullptr : disk->whole(); }

}  // namespace

DiskReader::~DiskReader() {
  // The kernel may still write into the buffers of what is in flight.
  DrainOrDie(*engine_);
}

bool DiskReader::HasRoomFor(const Extent& extent, TrafficClass traffic) const noexcept {
  if (!has_room()) return false;
  const auto queue = std::ranges::find(queues_, WholeOf(extent.disk), &Queue::disk);
  const std::uint64_t share = held_bytes_max_ / disk_count_;
  const bool is_full = disk_count_ > 1 && queue != queues_.end() && queue->reading_bytes >= share;
  if (is_full || traffic == TrafficClass::kUrgent) return !is_full;
  if (held_bytes_ >= held_bytes_max_ - held_bytes_max_ / 4) return false;
  if (queue == queues_.end()) return true;
  const bool is_beside_urgent = queue->reading_bytes > queue->background_bytes ||
                                Clock::now() - queue->urgent_at < kUrgentRecently;
  const std::uint64_t limit = share - share / 4;
  return queue->background_bytes < (is_beside_urgent ? std::min(limit, kBesideUrgentBytes) : limit);
}

void DiskReader::Leave(Queue& queue, const Ticket& ticket, std::uint64_t size_bytes) {
  queue.reading_bytes -= size_bytes;
  if (!IsUrgent(ticket)) queue.background_bytes -= size_bytes;
}

DiskReader::Queue& DiskReader::QueueOf(const Disk* disk) {
  const auto queue = std::ranges::find(queues_, WholeOf(disk), &Queue::disk);
  return queue != queues_.end() ? *queue : queues_.emplace_back(Queue{.disk = WholeOf(disk)});
}

Result<void> DiskReader::Submit() {
  for (Queue& queue : queues_) {
    const std::size_t part = std::max<std::size_t>(kDepth / disk_count_, 1);
    const std::size_t room = part - std::min<std::size_t>(part, queue.reading_count);
    const std::size_t count = std::min(queue.queued.size(), room);
    if (count == 0) continue;
    const std::uint32_t taken = FFR_TRY(engine_->Submit(queue.queued.First(count)));
    queue.queued.DropFirst(taken);
    queue.reading_count += taken;
  }
  return {};
}

std::optional<DiskReader::Resident> DiskReader::FindInMemory(const ReadRun& run,
                                                             const Extent*& whole,
                                                             Clock::time_point now) {
  const auto file = files_.Find(*run.extent);
  if (!file) return std::nullopt;  // Start() has it opened, and looks then.
  return FindIn(file, run.offset_bytes, run.size_bytes, whole, now);
}

std::optional<DiskReader::Resident> DiskReader::FindIn(const OpenExtentPtr& file,
                                                       std::uint64_t offset_bytes,
                                                       std::uint32_t size_bytes,
                                                       const Extent*& whole,
                                                       Clock::time_point now) {
  if (!file->mapped || file->mapped->has_lost()) return std::nullopt;
  // A damaged disk may have cut it: a read has to report that, not a send in the middle of a frame.
  if (whole != file->extent.get()) {
    if (!file->is_whole()) return std::nullopt;
    whole = file->extent.get();
  }
  const auto mapped = file->mapped->bytes();
  if (!file->resident.Contains(mapped, offset_bytes, size_bytes, now)) return std::nullopt;
  return Resident{file, mapped.subspan(offset_bytes, size_bytes)};
}

// Clients ask again for extents on a disk that is missing, which the log named at start, and for
// those that are being fetched from their origin.
net::EntryStatus DiskReader::NoteNotStarted(const Extent& extent, const Error& why) {
  if (extent.disk == nullptr) return StatusOfAbsent(extent.refusal);
  spdlog::error("event=read_failed extent={} error=\"{}\"", Hex(extent.id), why.message);
  if (why.code == ErrorCode::kNotFound) return StatusOfSuspect(extent, net::EntryStatus::kNotHere);
  extent.disk->reads().NoteError();
  return StatusOfSuspect(extent, net::EntryStatus::kIoError);
}

bool DiskReader::Start(const Ticket& ticket, const ReadRun& run, PooledBuffer place,
                       Clock::time_point deadline) {
  const ExtentPtr& extent = *run.extent;
  held_bytes_ += run.size_bytes;
  Queue& queue = QueueOf(extent->disk);
  queue.reading_bytes += run.size_bytes;
  if (IsUrgent(ticket))
    queue.urgent_at = Clock::now();
  else
    queue.background_bytes += run.size_bytes;
  WaitingRun waiting{ticket, run.offset_bytes, run.size_bytes, std::move(place), deadline};
  if (const auto file = files_.Find(extent)) {
    Enqueue(std::move(waiting), file, false);
  } else if (extent->disk == nullptr) {
    // Its disk is missing: there is nothing to wait for.
    const auto missing = ExtentStore::OpenFile(*extent);
    End(nullptr, {ticket, nullptr, run.size_bytes, NoteNotStarted(*extent, missing.error())});
  } else {
    waiting_.Add(extent, std::move(waiting));
    return false;
  }
  return true;
}

void DiskReader::TakeOpened(const ExtentPtr& extent, Result<OpenExtent> opened) {
  const OpenExtentPtr file = opened ? files_.Add(std::move(opened).value()) : nullptr;
  const Extent* whole = nullptr;
  for (WaitingRun& run : waiting_.TakeOpened(extent)) {
    if (!file) {
      const auto status = NoteNotStarted(*extent, opened.error());
      End(extent->disk, {run.ticket, nullptr, run.size_bytes, status});
      continue;
    }
    auto resident = FindIn(file, run.offset_bytes, run.size_bytes, whole, Clock::now());
    if (resident)
      End(extent->disk,
          {run.ticket, nullptr, run.size_bytes, {}, std::move(resident), /*has_waited=*/true});
    else
      Enqueue(std::move(run), file, true);
  }
}

// To the disk's queue, from which the engine takes it.
void DiskReader::Enqueue(WaitingRun run, const OpenExtentPtr& file, bool has_waited) {
  Queue& queue = QueueOf(file->extent->disk);
  auto buffer =
      run.place ? Result<PooledBuffer>(std::move(run.place)) : buffers_.Take(run.size_bytes);
  if (!buffer) {
    const auto status = NoteNotStarted(*file->extent, buffer.error());
    return End(queue.disk, {run.ticket, nullptr, run.size_bytes, status});
  }
  IoRequest request;
  request.fd = file->fd.get();
  request.offset_bytes = run.offset_bytes;
  request.buffer = *buffer.value();
  auto read = std::make_unique<Read>(run.ticket, std::move(buffer).value(), file, request);
  read->has_waited = has_waited;
  queue.queued.Push(&read->transfer.request(), IsUrgent(read->ticket));
  must_submit_ = true;
  Transfer* const key = &read->transfer;
  reads_.emplace(key, std::move(read));
}

// Ends a run that the engine has not taken.
void DiskReader::End(const Disk* disk, Completed completed) {
  Leave(QueueOf(disk), completed.ticket, completed.size_bytes);
  ++room_count_;
  ended_.push_back(std::move(completed));
}

void DiskReader::GiveUpLate(Clock::time_point now) {
  waiting_.TakeIf(
      [&](const WaitingRun& run) { return run.deadline <= now; },
      [&](const Extent& extent, const WaitingRun& run) {
        End(extent.disk, {run.ticket, nullptr, run.size_bytes, net::EntryStatus::kDeadline});
      });
}

int DiskReader::EventFd() {
  const auto fd = engine_->EventDescriptor();
  return fd ? fd.value() : -1;
}

void DiskReader::Release(std::uint32_t size_bytes) {
  FFR_ASSERT(size_bytes <= held_bytes_);
  held_bytes_ -= size_bytes;
  ++room_count_;
}

void DiskReader::Withdraw(std::uint64_t connection, std::optional<std::uint64_t> batch) {
  const auto is_meant = [&](const Ticket& ticket) {
    return ticket.connection == connection && (!batch || ticket.batch == *batch);
  };
  const auto cancel = [&](const Disk* disk, const Ticket& ticket, std::uint32_t size_bytes) {
    End(disk, {ticket, nullptr, size_bytes, net::EntryStatus::kCancelled});
  };
  for (Queue& queue : queues_)
    queue.queued.DropIf([&](const IoRequest* request) {
      const auto read = reads_.find(static_cast<Transfer*>(request->user));
      if (!is_meant(read->second->ticket)) return false;
      cancel(queue.disk, read->second->ticket,
             static_cast<std::uint32_t>(read->second->buffer->size()));
      reads_.erase(read);
      return true;
    });
  waiting_.TakeIf([&](const WaitingRun& run) { return is_meant(run.ticket); },
                  [&](const Extent& extent, const WaitingRun& run) {
                    cancel(extent.disk, run.ticket, run.size_bytes);
                  });
}

DiskReader::Completed DiskReader::Finish(Read& read) {
  const auto size = static_cast<std::uint32_t>(read.buffer->size());
  const std::int64_t result = read.transfer.result();
  ReadHealth& health = read.file->extent->disk->reads();
  health.NoteTime(Clock::now() - read.started);
  if (result == std::int64_t{size}) return {read.ticket, std::move(read.buffer), size, {}};
  const Extent& extent = *read.file->extent;
  if (result >= 0) {
    spdlog::error("event=extent_truncated extent={}", Hex(extent.id));
    return {read.ticket, nullptr, size, StatusOfSuspect(extent, net::EntryStatus::kCorrupt)};
  }
  health.NoteError();
  spdlog::error("event=read_failed extent={} error=\"{}\"", Hex(extent.id),
                std::strerror(static_cast<int>(-result)));
  return {read.ticket, nullptr, size, StatusOfSuspect(extent, net::EntryStatus::kIoError)};
}

Result<void> DiskReader::Poll(std::chrono::milliseconds timeout,
                              std::vector<Completed>& completed) {
  for (Completed& ended : ended_) completed.push_back(std::move(ended));
  const bool has_news = !ended_.empty();
  ended_.clear();
  FFR_TRY(Submit());
  // The engine takes no more before it has given some back.
  must_submit_ = has_queued() && engine_->in_flight() == 0;
  if (engine_->in_flight() == 0) return {};
  std::array<IoRequest*, 64> done;
  std::uint32_t count = FFR_TRY(engine_->Wait(done, has_news ? 0 : 1, timeout));
  const bool has_room = count > 0;
  for (;;) {
    for (IoRequest* const request : std::span(done).first(count)) TakeBack(*request, completed);
    // All: its descriptor tells of each completion once.
    if (count < done.size()) break;
    count = FFR_TRY(engine_->Wait(done, 0, std::chrono::milliseconds(0)));
  }
  must_submit_ = has_room && has_queued();
  return {};
}

bool DiskReader::has_queued() const noexcept {
  return std::ranges::any_of(queues_, [](const Queue& queue) { return !queue.queued.empty(); });
}

void DiskReader::TakeBack(const IoRequest& request, std::vector<Completed>& completed) {
  auto* const transfer = static_cast<Transfer*>(request.user);
  const auto read = reads_.find(transfer);
  FFR_ASSERT(read != reads_.end());
  Queue& queue = QueueOf(read->second->file->extent->disk);
  --queue.reading_count;
  if (!transfer->Finish())
    return queue.queued.Push(&transfer->request(), IsUrgent(read->second->ticket));
  Leave(queue, read->second->ticket, read->second->buffer->size());
  ++room_count_;
  completed.push_back(Finish(*read->second));
  completed.back().has_waited = read->second->has_waited;
  completed.back().disk = queue.disk;
  completed.back().read_time = Clock::now() - read->second->started;
  reads_.erase(read);
}

}  // namespace ffrecord::server
