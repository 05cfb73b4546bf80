#include "libffrecord/net/rpc/remote_files.h"

#include <atomic>
#include <utility>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/net/rpc/remote_queue.h"
#include "libffrecord/source/waiting_read.h"

namespace ffrecord::net {

RemoteFiles::RemoteFiles(std::shared_ptr<Session> session, DatasetManifest manifest,
                         std::string location, const SessionOptions& options)
    : session_(std::move(session)), manifest_(std::move(manifest)), options_(options), number_([] {
        static std::atomic<std::uint64_t> next{1};
        return next.fetch_add(1, std::memory_order_relaxed);
      }()) {
  for (const ManifestFile& file : manifest_.files) {
    names_.push_back(location + "/" + file.name);
    first_extent_.push_back(static_cast<std::uint32_t>(extents_.size()));
    for (const ManifestExtent& extent : file.extents) extents_.push_back(extent.id);
  }
}

RemoteFiles::~RemoteFiles() {
  // The daemon keeps what a connection has bound, even if its name is gone by now.
  session_->CloseIdle(
      [this](const Connection& connection) { return connection.HasBound(number_); });
}

Result<void> RemoteFiles::ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                                   Patience& patience) const {
  if (patience.IsOver()) return GivenUp();
  if (ranges.empty()) return {};
  RemoteQueue queue(*this, RemoteQueue::Connects::kInPoll);
  return ReadThrough(queue, ranges, arrived, patience);
}

Result<PooledBuffer> RemoteFiles::ReadFromCopies(std::uint32_t file, std::uint64_t offset_bytes,
                                                 std::uint64_t size_bytes, const IsRight& is_right,
                                                 Patience& patience) const {
  const Error damaged{ErrorCode::kCorruption, session_->peer() + " has no other copy of it"};
  const auto extent =
      static_cast<std::uint32_t>(first_extent_[file] + offset_bytes / kExtentSizeMax);
  const auto now_s = static_cast<std::uint32_t>(
      std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count());
  const std::uint64_t told = told_.load(std::memory_order_relaxed);
  if (told != 0 && told >> 32 == extent && now_s - static_cast<std::uint32_t>(told) < kDoubtEveryS)
    return damaged;
  auto memory = FFR_TRY(BufferPool::Process().Take(size_bytes));
  RangeRead again{file, offset_bytes, *memory};
  RemoteQueue queue(*this, RemoteQueue::Connects::kInPoll, RemoteQueue::Retries::kUntilTimeout,
                    RemoteQueue::Trust::kDoubted);
  FFR_TRY(ReadThrough(
      queue, {&again, 1}, [](RangeRead&) {}, patience));
  if (again.status != ErrorCode::kOk && again.status != ErrorCode::kCorruption)
    return Error{again.status, Trouble(file, again.status)};
  if (again.status == ErrorCode::kOk && is_right(*memory)) return memory;
  told_.store(std::uint64_t{extent} << 32 | now_s, std::memory_order_relaxed);
  return damaged;
}

Result<std::unique_ptr<RangeQueue>> RemoteFiles::MakeQueue(QueueUse /*use*/) const {
  return std::unique_ptr<RangeQueue>(
      std::make_unique<RemoteQueue>(*this, RemoteQueue::Connects::kApart));
}

}  // namespace ffrecord::net
