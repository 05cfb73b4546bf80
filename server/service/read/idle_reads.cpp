#include "server/service/read/idle_reads.h"

#include <algorithm>

namespace ffrecord::server {

IdleReads::Milliseconds IdleReads::WaitMax(Milliseconds wait,
                                           Clock::time_point now) const noexcept {
  // At the bound, the disk wakes the worker.
  if (!read_ahead_.has_work() || !has_room()) return wait;
  const auto rest = std::chrono::ceil<Milliseconds>(busy_at_ + Patience() - now);
  return std::min(wait, std::max(rest, Milliseconds(1)));
}

void IdleReads::Start(Clock::time_point now) {
  if (!read_ahead_.has_work() || !has_room() || now - busy_at_ < Patience()) return;
  if (!sink_) {
    auto sink = BufferPool::Process().Take(ReadAhead::kRunBytesMax);
    if (!sink) return;  // Memory is short: nothing is read ahead.
    sink_ = std::move(sink).value();
  }
  for (const ReadAhead::Run& run :
       read_ahead_.Next(kInFlightBytesMax - bytes_, kInFlightCountMax - count_)) {
    ++count_;
    bytes_ += run.size_bytes;
    newest_number_ = run.number;
    disk_.Start(
        {kConnection, run.number, 0},
        {.extent = run.extent, .offset_bytes = run.offset_bytes, .size_bytes = run.size_bytes},
        Place(run.size_bytes));
  }
}

void IdleReads::Take(const DiskReader::Completed& completed) {
  --count_;
  bytes_ -= completed.size_bytes;
  disk_.Release(completed.size_bytes);
  // What is in memory is read while it is submitted, and has ended by the first look.
  const std::uint64_t number = completed.ticket.batch;
  read_ahead_.Finish(number, number <= polled_number_ && completed.status == net::EntryStatus::kOk);
}

PooledBuffer IdleReads::Place(std::uint32_t size_bytes) {
  return {new std::span<std::byte>(sink_->first(size_bytes)),
          [sink = sink_](std::span<std::byte>* dead) { delete dead; }};
}

}  // namespace ffrecord::server
