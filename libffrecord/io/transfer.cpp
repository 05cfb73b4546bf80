#include "libffrecord/io/transfer.h"

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "libffrecord/base/assert.h"

namespace ffrecord {
namespace {

// So many interruptions in a row, without a byte moved, count as a failure: far more than signals
// or a short lack of kernel memory explain.
constexpr std::uint32_t kFruitlessMax = 10000;

// Direct I/O moves whole blocks of at least this size; an odd number of bytes is a file's end.
constexpr std::uint64_t kSmallestBlockBytes = 512;
constexpr std::uint64_t kLargestBlockBytes = 4096;

}  // namespace

Transfer::Transfer(const IoRequest& whole, int unaligned_fd)
    : whole_(whole.buffer),
      offset_bytes_(whole.offset_bytes),
      unaligned_fd_(unaligned_fd),
      request_(whole) {
  request_.user = this;
  Cut();
}

void Transfer::Cut() {
  request_.offset_bytes = offset_bytes_ + moved_bytes_;
  request_.buffer = whole_.subspan(moved_bytes_);
  if (request_.buffer.size() > kIoTransferMaxBytes)
    request_.buffer = request_.buffer.first(kIoTransferMaxBytes);
}

bool Transfer::Finish() {
  const std::int64_t result = request_.result;
  const bool sync = request_.kind == IoRequest::Kind::kSync;
  // A sync is never retried: the second may succeed although the first one lost data.
  if (!sync && (result == -EINTR || result == -EAGAIN) && ++fruitless_count_ < kFruitlessMax) {
    std::this_thread::yield();
    return false;
  }
  // At the end of a file a direct read stops at an odd byte, from where no direct read may start.
  if (result == -EINVAL && request_.kind == IoRequest::Kind::kRead &&
      moved_bytes_ % kSmallestBlockBytes != 0) {
    result_ = static_cast<std::int64_t>(moved_bytes_);
    return true;
  }
  if (result < 0) {
    result_ = result;
    return true;
  }
  moved_bytes_ +=
      std::min<std::uint64_t>(static_cast<std::uint64_t>(result), request_.buffer.size());
  result_ = static_cast<std::int64_t>(moved_bytes_);
  if (moved_bytes_ == whole_.size()) return true;
  if (result == 0) {
    if (request_.kind == IoRequest::Kind::kWrite) result_ = -EIO;  // No write may move nothing.
    return true;
  }
  fruitless_count_ = 0;
  Cut();
  if (unaligned_fd_ >= 0 && request_.offset_bytes % kLargestBlockBytes != 0)
    request_.fd = unaligned_fd_;
  return false;
}

void DrainOrDie(IoEngine& engine) {
  std::vector<IoRequest*> done(engine.in_flight());
  while (engine.in_flight() > 0) {
    const auto count = engine.Wait(done, engine.in_flight(), kIoForever);
    const bool drained = count && count.value() > 0;
    FFR_ASSERT(drained);
  }
}

}  // namespace ffrecord
