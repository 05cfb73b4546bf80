#include "client/dataset/remote_files.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "client/dataset/announced_plan.h"
#include "client/runtime/slab_pool.h"
#include "client/session/slabs.h"
#include "libffrecord/base/assert.h"
#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/net/protocol/batch_messages.h"

namespace ffrecord::client {
namespace {

using net::Channel;
using net::Deadline;
using net::EntryStatus;
using net::FrameType;

// Keeps places within the slab that an entry can address; a larger call takes several batches.
constexpr std::uint64_t kBatchBytesMax = std::uint64_t{1} << 30;

// A hint is not worth waiting for longer than reading ahead can win back.
constexpr auto kAnnounceTimeout = std::chrono::milliseconds(2000);

std::uint32_t MillisecondsUntil(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - net::Clock::now());
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
  Result<void> Attempt(Channel& channel, Deadline deadline);
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
  Asked NextBatch(const Channel& channel) const;
  Result<void> Ask(Channel& channel, Asked& asked, Deadline deadline);
  Result<void> Quarantine(const Asked& asked);
  Result<void> ReceiveBatch(Channel& channel, std::uint64_t request, Asked& asked,
                            Deadline deadline);
  Result<void> ReceivePieces(Channel& channel, std::uint32_t payload_size_bytes, const Asked& asked,
                             std::vector<std::uint32_t>& received_bytes, Deadline deadline);
  Result<void> TakeDone(Channel& channel, std::span<const Part> asked,
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
  range.status = ErrorCode::kOk;
  const std::uint64_t file_size = files_.file_size_bytes(range.file);
  if (range.destination.size() > file_size ||
      range.offset_bytes > file_size - range.destination.size())
    range.status = ErrorCode::kCorruption;
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

RemoteFiles::Batch::Asked RemoteFiles::Batch::NextBatch(const Channel& channel) const {
  const bool has_slabs = channel.writes_slabs();
  const auto slab_of = [&](const Part& part) -> std::optional<SlabPool::Place> {
    return has_slabs ? SlabPool::Process().Find(part.destination) : std::nullopt;
  };
  Asked asked;
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  for (; count < pending_.size() && count < net::kBatchEntryCountMax; ++count) {
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

Result<void> RemoteFiles::Batch::Attempt(Channel& channel, Deadline deadline) {
  while (!is_done()) {
    Asked asked = NextBatch(channel);
    const std::size_t count = asked.parts.size();
    ended_.assign(count, false);
    auto attempted = Ask(channel, asked, deadline);
    auto quarantined = Quarantine(asked);
    DropEnded(count);
    if (!quarantined) return quarantined;
    if (!attempted) return attempted;
  }
  return {};
}

Result<void> RemoteFiles::Batch::Ask(Channel& channel, Asked& asked, Deadline deadline) {
  std::vector<std::uint64_t> replies;
  net::BatchRead batch;
  const std::uint32_t base = FFR_TRY(files_.Bind(channel, replies));
  if (asked.slab != nullptr) batch.slab_id = FFR_TRY(SlabIdOf(channel, *asked.slab, replies));
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
  const std::uint64_t request = FFR_TRY(channel.Send(FrameType::kBatchRead, batch.Encode()));
  for (const std::uint64_t reply : replies) {
    // Extents that are missing show in the entries that want them.
    auto received = channel.Receive(reply, deadline, "the binding of extents and slabs");
    if (!received) return channel.Break(std::move(received).error());
  }
  return ReceiveBatch(channel, request, asked, deadline);
}

// The daemon may write on: slab.h, "Late writes". What has not ended goes where it cannot reach.
Result<void> RemoteFiles::Batch::Quarantine(const Asked& asked) {
  if (!asked.may_be_written) return {};
  for (std::size_t i = 0; i < asked.parts.size(); ++i)
    if (!ended_[i]) FFR_TRY(SlabPool::Process().Quarantine(asked.parts[i].destination));
  return {};
}

Result<void> RemoteFiles::Batch::ReceiveBatch(Channel& channel, std::uint64_t request, Asked& asked,
                                              Deadline deadline) {
  std::vector<std::uint32_t> received_bytes(asked.parts.size());
  for (;;) {
    if (patience_.IsOver()) return channel.Break(GivenUp());
    auto received = channel.Receive(request, deadline, "records");
    if (!received) {
      if (channel.retry_after()) asked.may_be_written = false;  // It was not taken.
      return std::move(received).error();
    }
    const net::FrameHeader header = received.value();
    if (header.type == net::ReplyTo(FrameType::kBatchRead)) {
      asked.may_be_written = false;
      return TakeDone(channel, asked.parts, received_bytes);
    }
    if (header.type != FrameType::kBatchData)
      return channel.Break(
          {ErrorCode::kUnavailable, channel.peer() + " sent something else than records"});
    FFR_TRY(ReceivePieces(channel, header.payload_size_bytes, asked, received_bytes, deadline));
  }
}

// Each piece is compared with what was asked before a byte of it is received in its place; in a
// slab it lies there already.
Result<void> RemoteFiles::Batch::ReceivePieces(Channel& channel, std::uint32_t payload_size_bytes,
                                               const Asked& asked,
                                               std::vector<std::uint32_t>& received_bytes,
                                               Deadline deadline) {
  auto data = net::BatchData::Decode(channel.body());
  if (!data) return channel.Break(std::move(data).error());
  const auto bad = [&] {
    return channel.Break(
        {ErrorCode::kUnavailable, channel.peer() + " sent bytes that were not asked for"});
  };
  std::vector<std::span<std::byte>> places;
  places.reserve(data.value().pieces.size());
  std::uint64_t total = 0;
  for (const net::BatchPiece& piece : data.value().pieces) {
    if (piece.entry >= asked.parts.size() || piece.offset_bytes != received_bytes[piece.entry])
      return bad();
    const auto rest = asked.parts[piece.entry].destination.subspan(piece.offset_bytes);
    if (piece.size_bytes > rest.size()) return bad();
    places.push_back(rest.first(piece.size_bytes));
    received_bytes[piece.entry] += piece.size_bytes;
    total += piece.size_bytes;
  }
  if (payload_size_bytes != (asked.slab == nullptr ? total : 0)) return bad();
  if (asked.slab == nullptr) FFR_TRY(channel.ReceivePayload(places, deadline));
  // An entry whose last byte was sent is good: protocol.md, "Batches". Of its pieces only one
  // holds that byte.
  for (const net::BatchPiece& piece : data.value().pieces) {
    const std::uint64_t end_bytes = std::uint64_t{piece.offset_bytes} + piece.size_bytes;
    if (end_bytes < asked.parts[piece.entry].destination.size()) continue;
    ended_[piece.entry] = true;
    End(asked.parts[piece.entry], ErrorCode::kOk);
  }
  return {};
}

Result<void> RemoteFiles::Batch::TakeDone(Channel& channel, std::span<const Part> asked,
                                          std::span<const std::uint32_t> received_bytes) {
  auto done = net::BatchDone::Decode(channel.body());
  if (!done) return channel.Break(std::move(done).error());
  const auto& statuses = done.value().statuses;
  if (std::uint64_t{done.value().ok_count} + done.value().failed_count != asked.size())
    return channel.Break({ErrorCode::kUnavailable,
                          channel.peer() + " completed a different batch from the requested one"});
  bool is_all_ended = true;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const EntryStatus status = statuses.empty() ? EntryStatus::kOk : statuses[i];
    const bool is_whole = received_bytes[i] == asked[i].destination.size();
    if (is_whole != (status == EntryStatus::kOk))
      return channel.Break(
          {ErrorCode::kUnavailable, channel.peer() + " lost some bytes of a batch"});
    if (is_whole) continue;
    if (status == EntryStatus::kBusy || status == EntryStatus::kCancelled) {
      is_all_ended = false;
      continue;
    }
    ended_[i] = true;
    End(asked[i], net::ToErrorCode(status));
  }
  if (is_all_ended) return {};
  return Error{ErrorCode::kUnavailable, channel.peer() + " was busy with some records"};
}

// --- The files -----------------------------------------------------------------------------------

RemoteFiles::RemoteFiles(std::shared_ptr<Session> session, DatasetManifest manifest,
                         std::string location, const SessionOptions& options,
                         PublishedName published)
    : session_(std::move(session)),
      manifest_(std::move(manifest)),
      options_(options),
      published_(std::move(published)),
      number_([] {
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
  session_->CloseIdle([this](Channel& channel) { return channel.bound.contains(number_); });
}

// Where the connection's table holds our extents. Sends what is needed for it, without waiting;
// `requests` are then to be received.
Result<std::uint32_t> RemoteFiles::Bind(Channel& channel,
                                        std::vector<std::uint64_t>& requests) const {
  if (const auto found = channel.bound.find(number_); found != channel.bound.end())
    return found->second;
  const auto count = static_cast<std::uint32_t>(extents_.size());
  FFR_ASSERT(count <= net::kBoundExtentCountMax);
  if (count > net::kBoundExtentCountMax - channel.bound_end) {
    channel.bound.clear();  // Full: the others bind again when they come.
    channel.bound_end = 0;
  }
  const std::uint32_t base = channel.bound_end;
  for (std::uint32_t done = 0; done < count;) {
    const std::uint32_t size = std::min(count - done, net::kBindCountMax);
    const auto ids = std::span(extents_).subspan(done, size);
    const net::ExtentBind bind{base + done, {ids.begin(), ids.end()}};
    requests.push_back(FFR_TRY(channel.Send(FrameType::kExtentBind, bind.Encode())));
    done += size;
  }
  channel.bound.emplace(number_, base);
  channel.bound_end = base + count;
  return base;
}

Result<void> RemoteFiles::Read(std::span<RangeRead> ranges) const {
  return RangeReader::ReadEach(ranges, [](RangeRead&) {});
}

Result<void> RemoteFiles::ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                                   Patience& patience) const {
  if (patience.IsOver()) return GivenUp();
  Batch batch(*this, ranges, arrived, patience);
  if (batch.is_done()) return {};
  const Deadline deadline = net::Clock::now() + options_.timeout;
  const auto attempt = [&](Channel& channel) { return batch.Attempt(channel, deadline); };
  const auto read = session_->Run(attempt, deadline, /*patient=*/true);
  if (read) return {};
  if (patience.was_over()) return GivenUp();
  NoteFailure(read.error());
  batch.FailAll(read.error().code);
  return {};
}

void RemoteFiles::NoteFailure(const Error& error) const {
  LastFailure& last = last_failure_.Get();
  const std::lock_guard lock(last.mutex);
  last.error = error;
}

std::string RemoteFiles::Trouble(std::uint32_t, ErrorCode status) const {
  LastFailure& last = last_failure_.Get();
  const std::lock_guard lock(last.mutex);
  return last.error.code == status ? last.error.message : std::string();
}

Result<std::unique_ptr<Announcement>> RemoteFiles::Announce(const EpochPlan& plan) const {
  if (published_.name.empty()) return std::unique_ptr<Announcement>();
  const auto wait = std::min(options_.timeout, kAnnounceTimeout);
  return AnnouncePlan(*session_, published_.name, published_.revision, plan,
                      net::Clock::now() + wait);
}

Result<RangeReader::IndexBytes> RemoteFiles::MapIndex(std::uint32_t file,
                                                      std::uint64_t offset_bytes,
                                                      std::uint64_t size_bytes) const {
  const std::uint64_t file_size = file_size_bytes(file);
  if (offset_bytes > file_size || size_bytes > file_size - offset_bytes)
    return Error{ErrorCode::kCorruption,
                 names_[file] + ": an index of " + std::to_string(size_bytes) + " bytes at " +
                     std::to_string(offset_bytes) + " passes the end of the file"};
  if (size_bytes == 0) return IndexBytes{};
  auto buffer = FFR_TRY(BufferPool::Process().Take(size_bytes));
  RangeRead range{file, offset_bytes, *buffer};
  FFR_TRY(Read({&range, 1}));
  if (range.status != ErrorCode::kOk)
    return Error{range.status, names_[file] + ": the index could not be read from " +
                                   session_->peer() + " within the timeout"};
  const std::span<const std::byte> bytes = *buffer;
  return IndexBytes{std::move(buffer), bytes};
}

}  // namespace ffrecord::client
