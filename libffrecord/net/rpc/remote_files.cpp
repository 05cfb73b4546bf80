#include "libffrecord/net/rpc/remote_files.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/rpc/slab_pool.h"

namespace ffrecord::net {
namespace {

// Keeps places within the slab that an entry can address; a larger call takes several batches.
constexpr std::uint64_t kBatchBytesMax = std::uint64_t{1} << 30;

std::uint32_t MillisecondsUntil(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(left.count(), 1, UINT32_MAX));
}

}  // namespace

// The ranges of one call, cut where extents end, until each part has arrived or failed.
class RemoteFiles::Batch {
 public:
  Batch(const RemoteFiles& files, std::span<RangeRead> ranges, const Arrived& arrived,
        Patience& patience)
      : files_(files),
        ranges_(ranges),
        arrived_(arrived),
        patience_(patience),
        parts_left_(ranges.size()) {
    for (std::uint32_t i = 0; i < ranges.size(); ++i) Cut(i);
  }

  bool is_done() const noexcept { return pending_.empty(); }

  // One try for what is pending. kUnavailable: again.
  Result<void> Attempt(Connection& connection, Deadline deadline);
  // What is still pending ends so.
  void FailAll(ErrorCode status) {
    for (const Part& part : std::exchange(pending_, {})) End(part, status);
  }

 private:
  struct Part {
    std::uint32_t range = 0;
    std::uint32_t extent = 0;  // Among those of the manifest.
    std::uint32_t offset_bytes = 0;
    std::span<std::byte> destination;
  };

  // The batch that is asked for: the first parts of pending_ that lie in the same slab, or in none.
  struct Asked {
    std::span<const Part> parts;
    const SharedSlab* slab = nullptr;
    std::uint64_t slab_begin_bytes = 0;  // In the slab: of the first part.
    bool may_be_written = false;         // From the request until BATCH_DONE.
  };

  void Cut(std::uint32_t range);
  void End(const Part& part, ErrorCode status);
  Asked NextBatch(const Connection& connection) const;
  Result<void> Ask(Connection& connection, Asked& asked, Deadline deadline);
  Result<void> Quarantine(const Asked& asked);
  Result<void> ReceiveBatch(Connection& connection, std::uint64_t request, Asked& asked,
                            Deadline deadline);
  Result<void> ReceivePieces(Connection& connection, std::uint32_t payload_size_bytes,
                             const Asked& asked, std::vector<std::uint32_t>& received_bytes,
                             Deadline deadline);
  Result<void> TakeDone(Connection& connection, std::span<const Part> asked,
                        std::span<const std::uint32_t> received_bytes);
  void DropEnded(std::size_t asked_count);

  const RemoteFiles& files_;
  const std::span<RangeRead> ranges_;
  const Arrived& arrived_;
  Patience& patience_;
  std::vector<std::uint32_t> parts_left_;  // Of each range.
  std::vector<Part> pending_;
  std::vector<bool> ended_;  // Of the parts that were asked for in this try.
};

void RemoteFiles::Batch::Cut(std::uint32_t index) {
  RangeRead& range = ranges_[index];
  range.status = files_.PassesEnd(range) ? ErrorCode::kCorruption : ErrorCode::kOk;
  if (range.status != ErrorCode::kOk || range.destination.empty()) {
    arrived_(range);
    return;
  }
  std::uint64_t offset = range.offset_bytes;
  for (std::span<std::byte> rest = range.destination; !rest.empty();) {
    const auto extent = static_cast<std::uint32_t>(offset / kExtentSizeMax);
    const std::uint64_t within = offset % kExtentSizeMax;
    const auto piece = rest.first(std::min<std::uint64_t>(rest.size(), kExtentSizeMax - within));
    pending_.push_back({index, files_.first_extent_[range.file] + extent,
                        static_cast<std::uint32_t>(within), piece});
    ++parts_left_[index];
    rest = rest.subspan(piece.size());
    offset += piece.size();
  }
}

void RemoteFiles::Batch::End(const Part& part, ErrorCode status) {
  RangeRead& range = ranges_[part.range];
  if (range.status == ErrorCode::kOk) range.status = status;
  if (--parts_left_[part.range] == 0) arrived_(range);
}

RemoteFiles::Batch::Asked RemoteFiles::Batch::NextBatch(const Connection& connection) const {
  const bool has_slabs = connection.writes_slabs();
  const auto slab_of = [&](const Part& part) -> std::optional<SlabPool::Place> {
    return has_slabs ? SlabPool::Process().Find(part.destination) : std::nullopt;
  };
  Asked asked;
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  for (; count < pending_.size() && count < kBatchEntryCountMax; ++count) {
    const Part& part = pending_[count];
    const auto place = slab_of(part);
    if (count == 0 && place) {
      asked.slab = place->slab;
      asked.slab_begin_bytes = place->offset_bytes;
    }
    if ((place ? place->slab : nullptr) != asked.slab) break;
    bytes += part.destination.size();
    if (count > 0 && bytes > kBatchBytesMax) break;
  }
  asked.parts = std::span(pending_).first(count);
  return asked;
}

void RemoteFiles::Batch::DropEnded(std::size_t asked_count) {
  std::vector<Part> left;
  for (std::size_t i = 0; i < pending_.size(); ++i)
    if (i >= asked_count || !ended_[i]) left.push_back(pending_[i]);
  pending_ = std::move(left);
}

Result<void> RemoteFiles::Batch::Attempt(Connection& connection, Deadline deadline) {
  while (!is_done()) {
    Asked asked = NextBatch(connection);
    const std::size_t count = asked.parts.size();
    ended_.assign(count, false);
    auto attempted = Ask(connection, asked, deadline);
    auto quarantined = Quarantine(asked);
    DropEnded(count);
    if (!quarantined) return quarantined;
    if (!attempted) return attempted;
  }
  return {};
}

Result<void> RemoteFiles::Batch::Ask(Connection& connection, Asked& asked, Deadline deadline) {
  std::vector<std::uint64_t> replies;
  BatchRead batch;
  const std::uint32_t base = FFR_TRY(connection.Bind(files_.number_, files_.extents_, replies));
  if (asked.slab != nullptr) batch.slab_id = FFR_TRY(connection.SlabIdOf(*asked.slab, replies));
  batch.deadline_ms = MillisecondsUntil(deadline);
  batch.entries.reserve(asked.parts.size());
  // Without a slab the places only tell the entries apart.
  std::uint64_t offset = 0;
  for (const Part& part : asked.parts) {
    const std::uint64_t place =
        asked.slab == nullptr ? offset
                              : asked.slab_begin_bytes +
                                    static_cast<std::uint64_t>(part.destination.data() -
                                                               asked.parts[0].destination.data());
    batch.entries.push_back({base + part.extent, part.offset_bytes,
                             static_cast<std::uint32_t>(part.destination.size()),
                             static_cast<std::uint32_t>(place)});
    offset += part.destination.size();
  }
  asked.may_be_written = asked.slab != nullptr;
  const std::uint64_t request = FFR_TRY(connection.Send(FrameType::kBatchRead, batch.Encode()));
  for (const std::uint64_t reply : replies) {
    // Extents that are missing show in the entries that want them.
    auto received = connection.Receive(reply, deadline, "the binding of extents and slabs");
    if (!received) return connection.Break(std::move(received).error());
  }
  return ReceiveBatch(connection, request, asked, deadline);
}

// The daemon may write on: slab.h, "Late writes". What has not ended goes where it cannot reach.
Result<void> RemoteFiles::Batch::Quarantine(const Asked& asked) {
  if (!asked.may_be_written) return {};
  for (std::size_t i = 0; i < asked.parts.size(); ++i)
    if (!ended_[i]) FFR_TRY(SlabPool::Process().Quarantine(asked.parts[i].destination));
  return {};
}

Result<void> RemoteFiles::Batch::ReceiveBatch(Connection& connection, std::uint64_t request,
                                              Asked& asked, Deadline deadline) {
  std::vector<std::uint32_t> received_bytes(asked.parts.size());
  for (;;) {
    if (patience_.IsOver()) return connection.Break(GivenUp());
    auto received = connection.Receive(request, deadline, "records");
    if (!received) {
      if (connection.retry_after()) asked.may_be_written = false;  // It was not taken.
      return std::move(received).error();
    }
    const FrameHeader header = received.value();
    if (header.type == ReplyTo(FrameType::kBatchRead)) {
      asked.may_be_written = false;
      return TakeDone(connection, asked.parts, received_bytes);
    }
    if (header.type != FrameType::kBatchData)
      return connection.Break(
          {ErrorCode::kUnavailable, connection.peer() + " sent something else than records"});
    FFR_TRY(ReceivePieces(connection, header.payload_size_bytes, asked, received_bytes, deadline));
  }
}

// Each piece is compared with what was asked before a byte of it is received in its place; in a
// slab it lies there already.
Result<void> RemoteFiles::Batch::ReceivePieces(Connection& connection,
                                               std::uint32_t payload_size_bytes, const Asked& asked,
                                               std::vector<std::uint32_t>& received_bytes,
                                               Deadline deadline) {
  auto data = BatchData::Decode(connection.body());
  if (!data) return connection.Break(std::move(data).error());
  const auto bad = [&] {
    return connection.Break(
        {ErrorCode::kUnavailable, connection.peer() + " sent bytes that were not asked for"});
  };
  std::vector<std::span<std::byte>> places;
  places.reserve(data.value().pieces.size());
  std::uint64_t total = 0;
  for (const BatchPiece& piece : data.value().pieces) {
    if (piece.entry >= asked.parts.size() || piece.offset_bytes != received_bytes[piece.entry])
      return bad();
    const auto rest = asked.parts[piece.entry].destination.subspan(piece.offset_bytes);
    if (piece.size_bytes > rest.size()) return bad();
    places.push_back(rest.first(piece.size_bytes));
    received_bytes[piece.entry] += piece.size_bytes;
    total += piece.size_bytes;
  }
  if (payload_size_bytes != (asked.slab == nullptr ? total : 0)) return bad();
  if (asked.slab == nullptr) FFR_TRY(connection.ReceivePayload(places, deadline));
  // An entry whose last byte was sent is good: protocol.md, "Batches". Of its pieces only one
  // holds that byte.
  for (const BatchPiece& piece : data.value().pieces) {
    const std::uint64_t end_bytes = std::uint64_t{piece.offset_bytes} + piece.size_bytes;
    if (end_bytes < asked.parts[piece.entry].destination.size()) continue;
    ended_[piece.entry] = true;
    End(asked.parts[piece.entry], ErrorCode::kOk);
  }
  return {};
}

Result<void> RemoteFiles::Batch::TakeDone(Connection& connection, std::span<const Part> asked,
                                          std::span<const std::uint32_t> received_bytes) {
  auto done = BatchDone::Decode(connection.body());
  if (!done) return connection.Break(std::move(done).error());
  const auto& statuses = done.value().statuses;
  if (std::uint64_t{done.value().ok_count} + done.value().failed_count != asked.size())
    return connection.Break(
        {ErrorCode::kUnavailable,
         connection.peer() + " completed a different batch from the requested one"});
  bool is_all_ended = true;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const EntryStatus status = statuses.empty() ? EntryStatus::kOk : statuses[i];
    const bool is_whole = received_bytes[i] == asked[i].destination.size();
    if (is_whole != (status == EntryStatus::kOk))
      return connection.Break(
          {ErrorCode::kUnavailable, connection.peer() + " lost some bytes of a batch"});
    if (is_whole) continue;
    if (status == EntryStatus::kBusy || status == EntryStatus::kCancelled) {
      is_all_ended = false;
      continue;
    }
    ended_[i] = true;
    End(asked[i], ToErrorCode(status));
  }
  if (is_all_ended) return {};
  return Error{ErrorCode::kUnavailable, connection.peer() + " was busy with some records"};
}

// --- The files -----------------------------------------------------------------------------------

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
  Batch batch(*this, ranges, arrived, patience);
  if (batch.is_done()) return {};
  const Deadline deadline = Clock::now() + options_.timeout;
  const auto attempt = [&](Connection& connection) { return batch.Attempt(connection, deadline); };
  const auto read = session_->Run(attempt, deadline, /*patient=*/true);
  if (read) return {};
  if (patience.was_over()) return GivenUp();
  last_failure_.Note(read.error());
  batch.FailAll(read.error().code);
  return {};
}

}  // namespace ffrecord::net
