#include "libffrecord/net/rpc/remote_files.h"

#include <atomic>
#include <utility>

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

Result<std::unique_ptr<RangeQueue>> RemoteFiles::MakeQueue(QueueUse /*use*/) const {
  return std::unique_ptr<RangeQueue>(
      std::make_unique<RemoteQueue>(*this, RemoteQueue::Connects::kApart));
}

}  // namespace ffrecord::net
