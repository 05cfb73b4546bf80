#include "server/service/read/idle_reads.h"

#include <algorithm>
#include <cstddef>

namespace ffrecord::server {

bool IdleReads::has_room() const noexcept {
  const auto full_count = std::ranges::count_if(in_flight_, IsFull);
  return disk_.has_room() && static_cast<std::size_t>(full_count) < disk_.disk_count();
}

IdleReads::Milliseconds IdleReads::WaitMax(Milliseconds wait,
                                           Clock::time_point now) const noexcept {
  // At the bound, the disk wakes the worker.
  if (!read_ahead_.has_work() || !has_room()) return wait;
  const auto rest =
      std::chrono::ceil<Milliseconds>(std::max(busy_at_ + Patience(), none_until_) - now);
  return std::min(wait, std::max(rest, Milliseconds(1)));
}

void IdleReads::Start(Clock::time_point now) {
  if (!read_ahead_.has_work() || !has_room()) return;
  if (now - busy_at_ < Patience() || now < none_until_) return;
  if (!sink_) {
    auto sink = BufferPool::Process().Take(ReadAhead::kRunBytesMax);
    if (!sink) return;  // Memory is short: nothing is read ahead.
    sink_ = std::move(sink).value();
  }
  const auto runs = Next();
  for (const ReadAhead::Run& run : runs) StartOne(run);
  if (runs.empty() && count_ > 0) none_until_ = now + kUnusedAfter;
}

std::vector<ReadAhead::Run> IdleReads::Next() {
  std::vector<const Disk*> full;
  std::uint64_t bytes = kInFlightBytesMax;
  std::uint32_t count = kInFlightCountMax;
  for (const InFlight& one : in_flight_) {
    if (IsFull(one)) {
      full.push_back(one.disk);
    } else {
      bytes = std::min(bytes, kInFlightBytesMax - one.bytes);
      count = std::min(count, kInFlightCountMax - one.count);
    }
  }
  return read_ahead_.Next(bytes, count, full);
}

void IdleReads::StartOne(const ReadAhead::Run& run) {
  const Disk* const disk = run.extent->disk;
  auto with = std::ranges::find(in_flight_, disk, &InFlight::disk);
  if (with == in_flight_.end()) with = in_flight_.insert(with, InFlight{.disk = disk});
  ++with->count;
  with->bytes += run.size_bytes;
  ++count_;
  newest_number_ = run.number;
  // By the number of the run in the ticket its disk is found again.
  (void)disk_.Start(
      {kConnection, run.number, static_cast<std::uint32_t>(with - in_flight_.begin()),
       TrafficClass::kPrefetch},
      {.extent = &run.extent, .offset_bytes = run.offset_bytes, .size_bytes = run.size_bytes},
      Place(run.size_bytes));
}

void IdleReads::Take(const DiskReader::Completed& completed) {
  InFlight& with = in_flight_[completed.ticket.run];
  --with.count;
  with.bytes -= completed.size_bytes;
  --count_;
  none_until_ = {};
  disk_.Release(completed.size_bytes);
  // Records in memory are read while they are submitted, and have ended by the first look; or they
  // were found there once their file was open.
  const std::uint64_t number = completed.ticket.batch;
  read_ahead_.Finish({number, number <= polled_number_ &&
                                  completed.status == net::EntryStatus::kOk &&
                                  !completed.resident});
}

PooledBuffer IdleReads::Place(std::uint32_t size_bytes) {
  return {new std::span<std::byte>(sink_->first(size_bytes)),
          [sink = sink_](std::span<std::byte>* dead) { delete dead; }};
}

}  // namespace ffrecord::server
