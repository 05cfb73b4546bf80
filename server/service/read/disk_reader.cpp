#include "server/service/read/disk_reader.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/hex.h"

namespace ffrecord::server {

DiskReader::~DiskReader() {
  // The kernel may still write into the buffers of what is in flight.
  DrainOrDie(*engine_);
}

bool DiskReader::HasRoomFor(const Extent& extent) const noexcept {
  if (!has_room()) return false;
  const auto queue = std::ranges::find(queues_, extent.disk, &Queue::disk);
  return disk_count_ == 1 || queue == queues_.end() ||
         queue->reading_bytes < held_bytes_max_ / disk_count_;
}

DiskReader::Queue& DiskReader::QueueOf(const Disk* disk) {
  const auto queue = std::ranges::find(queues_, disk, &Queue::disk);
  return queue != queues_.end() ? *queue : queues_.emplace_back(Queue{.disk = disk});
}

Result<void> DiskReader::Submit() {
  for (Queue& queue : queues_) {
    const std::size_t part = std::max<std::size_t>(kDepth / disk_count_, 1);
    const std::size_t room = part - std::min<std::size_t>(part, queue.reading_count);
    const std::size_t count = std::min(queue.queued.size(), room);
    if (count == 0) continue;
    const std::uint32_t taken = FFR_TRY(engine_->Submit(std::span(queue.queued).first(count)));
    queue.queued.erase(queue.queued.begin(), queue.queued.begin() + taken);
    queue.reading_count += taken;
  }
  return {};
}

IoRequest DiskReader::Request(const ReadRun& run, const PooledBuffer& buffer,
                              const OpenFile& file) {
  IoRequest request;
  request.fd = file.fd.get();
  request.offset_bytes = run.offset_bytes;
  request.buffer = *buffer;
  return request;
}

std::optional<DiskReader::Resident> DiskReader::FindInMemory(
    const ReadRun& run, const Extent*& whole, ResidentChunks::Clock::time_point now) {
  auto file = files_.Get(*run.extent);
  if (!file || !file.value()->mapped) return std::nullopt;  // Start() says why.
  if (file.value()->mapped->has_lost()) return std::nullopt;
  // A damaged disk may have cut it: to be told to whoever asks, and not in the middle of a frame.
  if (whole != run.extent->get()) {
    struct stat status {};
    if (::fstat(file.value()->fd.get(), &status) != 0 ||
        static_cast<std::uint64_t>(status.st_size) < (*run.extent)->size_bytes)
      return std::nullopt;
    whole = run.extent->get();
  }
  const auto mapped = file.value()->mapped->bytes();
  if (!file.value()->resident.Contains(mapped, run.offset_bytes, run.size_bytes, now))
    return std::nullopt;
  const auto bytes = mapped.subspan(run.offset_bytes, run.size_bytes);
  return Resident{std::move(file).value(), bytes};
}

// Clients ask again for what is on a disk that is missing, which was told at start.
net::EntryStatus DiskReader::NoteNotStarted(const Extent& extent, const Error& why) {
  if (extent.disk == nullptr) return net::EntryStatus::kBusy;
  spdlog::error("event=read_failed extent={} error=\"{}\"", Hex(extent.id), why.message);
  if (why.code == ErrorCode::kNotFound) return net::EntryStatus::kNotHere;
  extent.disk->reads().NoteError();
  return net::EntryStatus::kIoError;
}

void DiskReader::Start(const Ticket& ticket, const ReadRun& run, PooledBuffer place) {
  held_bytes_ += run.size_bytes;
  auto file = files_.Get(*run.extent);
  auto buffer = place ? Result<PooledBuffer>(std::move(place)) : buffers_.Take(run.size_bytes);
  if (!file || !buffer) {
    failed_.push_back({ticket, nullptr, run.size_bytes,
                       NoteNotStarted(**run.extent, !file ? file.error() : buffer.error())});
    return;
  }
  const IoRequest request = Request(run, buffer.value(), *file.value());
  auto read =
      std::make_unique<Read>(ticket, std::move(buffer).value(), std::move(file).value(), request);
  Queue& queue = QueueOf((*run.extent)->disk);
  queue.queued.push_back(&read->transfer.request());
  must_submit_ = true;
  queue.reading_bytes += run.size_bytes;
  Transfer* const key = &read->transfer;
  reads_.emplace(key, std::move(read));
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
  for (Queue& queue : queues_)
    std::erase_if(queue.queued, [&](const IoRequest* request) {
      const auto read = reads_.find(static_cast<Transfer*>(request->user));
      const Ticket ticket = read->second->ticket;
      if (ticket.connection != connection || (batch && ticket.batch != *batch)) return false;
      const auto size = static_cast<std::uint32_t>(read->second->buffer->size());
      queue.reading_bytes -= size;
      ++room_count_;
      failed_.push_back({ticket, nullptr, size, net::EntryStatus::kCancelled});
      reads_.erase(read);
      return true;
    });
}

DiskReader::Completed DiskReader::Finish(Read& read) {
  const auto size = static_cast<std::uint32_t>(read.buffer->size());
  const std::int64_t result = read.transfer.result();
  ReadHealth& health = read.file->extent->disk->reads();
  health.NoteTime(ReadHealth::Clock::now() - read.started);
  if (result == std::int64_t{size}) return {read.ticket, std::move(read.buffer), size, {}};
  const std::string id = Hex(read.file->extent->id);
  if (result >= 0) {
    spdlog::error("event=extent_truncated extent={}", id);
    return {read.ticket, nullptr, size, net::EntryStatus::kCorrupt};
  }
  health.NoteError();
  spdlog::error("event=read_failed extent={} error=\"{}\"", id,
                std::strerror(static_cast<int>(-result)));
  return {read.ticket, nullptr, size, net::EntryStatus::kIoError};
}

Result<void> DiskReader::Poll(std::chrono::milliseconds timeout,
                              std::vector<Completed>& completed) {
  for (Completed& failed : failed_) completed.push_back(std::move(failed));
  const bool has_news = !failed_.empty();
  failed_.clear();
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
  if (!transfer->Finish()) return queue.queued.push_back(&transfer->request());
  queue.reading_bytes -= read->second->buffer->size();
  ++room_count_;
  completed.push_back(Finish(*read->second));
  reads_.erase(read);
}

}  // namespace ffrecord::server
