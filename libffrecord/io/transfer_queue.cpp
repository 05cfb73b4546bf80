#include "libffrecord/io/transfer_queue.h"

#include <algorithm>
#include <cerrno>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/io_times.h"

namespace ffrecord {
namespace {

constexpr std::uint64_t kSubmissionChunkBytes = std::uint64_t{256} << 10;

}  // namespace

TransferQueue::TransferQueue(IoEngine& engine, std::uint32_t depth, Wants wants, Memory& memory)
    : engine_(engine),
      depth_(depth),
      wants_(wants),
      queue_(memory.queue),
      done_(memory.done),
      chunk_bytes_(kSubmissionChunkBytes) {
  queue_.clear();
  FFR_ASSERT(depth > 0);
  FFR_ASSERT(engine.in_flight() == 0);
}

TransferQueue::~TransferQueue() {
  if (home_.is_here()) Drain();
}

void TransferQueue::Drain() {
  queue_.clear();
  next_ = 0;
  DrainOrDie(engine_);
}

// How many of the next `count` requests make a submission chunk: at least one.
std::size_t TransferQueue::SubmissionChunk(std::size_t count) const {
  std::uint64_t bytes = 0;
  std::size_t taken = 0;
  while (taken < count && bytes < chunk_bytes_) bytes += queue_[next_ + taken++]->buffer.size();
  return taken;
}

Result<void> TransferQueue::Submit() {
  const std::uint32_t room = depth_ - std::min(depth_, in_flight());
  std::size_t offered = std::min<std::size_t>(queue_.size() - next_, room);
  if (wants_ == Wants::kEach) offered = SubmissionChunk(offered);
  if (offered == 0) return {};
  const std::uint32_t taken = FFR_TRY([&] {
    const TimedIo timed(&IoTimes::submit);
    return engine_.Submit(std::span(queue_).subspan(next_, offered));
  }());
  if (taken == 0 && in_flight() == 0)
    return Error{ErrorCode::kIo, "run: the idle engine takes no request", EAGAIN};
  next_ += taken;
  if (has_queued()) return {};
  queue_.clear();
  next_ = 0;
  return {};
}

// Refilling when a quarter of the depth is free keeps the engine busy with few calls.
std::uint32_t TransferQueue::CountWanted() const noexcept {
  if (wants_ == Wants::kAny) return 1;
  if (wants_ == Wants::kAll && !has_queued()) return in_flight();
  return std::max(in_flight() / 4, 1U);
}

Result<void> TransferQueue::Poll(std::chrono::milliseconds timeout, std::vector<Transfer*>& ended) {
  const std::size_t ended_before = ended.size();
  for (;;) {
    FFR_TRY(Submit());
    if (wants_ != Wants::kEach || !has_queued() || in_flight() >= depth_) break;
    const std::uint32_t count = FFR_TRY(Wait(0, std::chrono::milliseconds(0), ended));
    // Nothing came from the page cache, so reads wait for the device: submit more of them at a
    // time.
    chunk_bytes_ = count > 0 ? kSubmissionChunkBytes : chunk_bytes_ * 2;
    if (ended.size() > ended_before) return {};
  }
  FFR_TRY(Wait(CountWanted(), timeout, ended));
  return {};
}

Result<std::uint32_t> TransferQueue::Wait(std::uint32_t count_min,
                                          std::chrono::milliseconds timeout,
                                          std::vector<Transfer*>& ended) {
  if (in_flight() == 0) return engine_.Wait({}, 0, std::chrono::milliseconds(0));
  done_.resize(in_flight());
  const std::uint32_t count = FFR_TRY([&] {
    const TimedIo timed(&IoTimes::device);
    return engine_.Wait(done_, std::min(count_min, in_flight()), timeout);
  }());
  for (IoRequest* request : std::span(done_).first(count)) {
    auto* const transfer = static_cast<Transfer*>(request->user);
    if (transfer->Finish())
      ended.push_back(transfer);
    else
      queue_.push_back(request);
  }
  return count;
}

}  // namespace ffrecord
