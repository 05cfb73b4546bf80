#include "libffrecord/net/rpc/remote_call.h"

#include <algorithm>
#include <utility>

#include "libffrecord/net/rpc/remote_files.h"
#include "libffrecord/net/rpc/session.h"
#include "libffrecord/pace/gate.h"

namespace ffrecord::net {
namespace {

// Keeps places within the slab that an entry can address; a larger call takes several batches.
constexpr std::uint64_t kBatchBytesMax = std::uint64_t{1} << 30;

// Places for bytes that nobody wants any more: again and again the same, which nobody reads.
void AddNowhere(std::vector<std::span<std::byte>>& places, std::size_t size_bytes,
                std::vector<std::byte>& nowhere) {
  constexpr std::size_t kNowhereBytes = std::size_t{64} << 10;
  nowhere.resize(kNowhereBytes);
  for (; size_bytes > 0; size_bytes -= places.back().size())
    places.push_back(std::span(nowhere).first(std::min(size_bytes, nowhere.size())));
}

}  // namespace

// --- Calls ---------------------------------------------------------------------------------------

RemoteCall::RemoteCall(const RemoteFiles& files, RangeGroup& group, Deadline deadline)
    : parts_(files, group),
      deadline_(deadline),
      pending_(parts_.TakeAll()),
      open_count_(pending_.size()) {}

bool RemoteCall::TellEmpty() {
  const auto empty = parts_.TakeEmpty();
  for (RangeRead* const range : empty)
    if (!given_up_at) group().Arrived(*range);
  return !empty.empty();
}

bool RemoteCall::End(const ExtentPart& part, ErrorCode status) {
  --open_count_;
  RangeRead* const range = parts_.End(part, status);
  if (range == nullptr || given_up_at) return false;
  group().Arrived(*range);
  return true;
}

void RemoteCall::EndMissing(ErrorCode status) {
  for (RangeRead* const range : parts_.EndMissing(status)) group().Arrived(*range);
}

void RemoteCall::Retry(Error why, std::chrono::milliseconds at_least, const std::string& peer) {
  if (!back_off_) back_off_.emplace(BackOff::kOfDaemons);
  not_before = Clock::now() + back_off_->Next(at_least);
  if (not_before >= deadline_) failure = TriedUntilTimeout(why, peer);
  last = std::move(why);
}

RemoteCall::Next RemoteCall::TakeNext(bool has_slabs, std::size_t count_max) {
  const auto place_of = [&](const ExtentPart& part) -> std::optional<SlabPool::Place> {
    return has_slabs ? SlabPool::Process().Find(part.destination) : std::nullopt;
  };
  const auto rest = std::span(pending_).subspan(next_);
  Next next;
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  for (; count < std::min(rest.size(), count_max); ++count) {
    const auto place = place_of(rest[count]);
    if (count == 0 && place) {
      next.slab = place->slab;
      next.slab_begin_bytes = place->offset_bytes;
    }
    if ((place ? place->slab : nullptr) != next.slab) break;
    bytes += rest[count].destination.size();
    if (count > 0 && bytes > kBatchBytesMax) break;
  }
  if (count == pending_.size()) {
    next.parts = std::exchange(pending_, {});
    return next;
  }
  next.parts.assign(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(count));
  next_ += count;
  return next;
}

// --- Requests ------------------------------------------------------------------------------------

RemoteAsk::RemoteAsk(RemoteCall& call, RemoteCall::Next next)
    : call_(&call),
      next_(std::move(next)),
      quarantine_count_(SlabPool::Process().quarantine_count()),
      received_bytes_(next_.parts.size()),
      ended_(next_.parts.size()) {
  if (next_.slab != nullptr) return;
  for (const ExtentPart& part : next_.parts) payload_bytes_ += part.destination.size();
}

std::uint64_t RemoteAsk::Grant(std::uint64_t more_bytes) noexcept {
  granted_bytes_ += std::min(more_bytes, payload_bytes_ - granted_bytes_);
  return granted_bytes_;
}

std::vector<BatchEntry> RemoteAsk::Entries(std::uint32_t base) const {
  std::vector<BatchEntry> entries;
  entries.reserve(next_.parts.size());
  // Without a slab the places only tell the entries apart.
  std::uint64_t offset = 0;
  for (const ExtentPart& part : next_.parts) {
    const std::uint64_t place =
        next_.slab == nullptr ? offset
                              : next_.slab_begin_bytes +
                                    static_cast<std::uint64_t>(part.destination.data() -
                                                               next_.parts[0].destination.data());
    entries.push_back({base + part.extent, part.offset_bytes,
                       static_cast<std::uint32_t>(part.destination.size()),
                       static_cast<std::uint32_t>(place)});
    offset += part.destination.size();
  }
  return entries;
}

std::optional<std::vector<std::span<std::byte>>> RemoteAsk::Expect(
    std::span<const BatchPiece> pieces, std::uint64_t payload_size_bytes,
    std::vector<std::byte>& nowhere) {
  const bool is_wanted = call_ != nullptr && !call_->given_up_at;
  std::vector<std::span<std::byte>> places;
  places.reserve(pieces.size());
  std::uint64_t total = 0;
  for (const BatchPiece& piece : pieces) {
    if (piece.entry >= next_.parts.size() || piece.offset_bytes != received_bytes_[piece.entry])
      return std::nullopt;
    const std::span<std::byte> whole = next_.parts[piece.entry].destination;
    if (piece.size_bytes > whole.size() - piece.offset_bytes) return std::nullopt;
    if (is_wanted)
      places.push_back(whole.subspan(piece.offset_bytes, piece.size_bytes));
    else
      AddNowhere(places, piece.size_bytes, nowhere);
    received_bytes_[piece.entry] += piece.size_bytes;
    total += piece.size_bytes;
  }
  if (payload_size_bytes != (next_.slab == nullptr ? total : 0)) return std::nullopt;
  arrived_bytes_ += payload_size_bytes;
  // A daemon sends the rest of a read that it has begun: more than that has to be granted to move
  // it.
  granted_bytes_ = std::max(granted_bytes_, arrived_bytes_);
  if (next_.slab != nullptr) places.clear();
  return places;
}

// An entry whose last byte was sent is good: protocol.md, "Batches". Only one of its pieces holds
// that byte.
bool RemoteAsk::Arrived(std::span<const BatchPiece> pieces) {
  bool has_told = false;
  for (const BatchPiece& piece : pieces) {
    if (call_ == nullptr) break;
    const ExtentPart& part = next_.parts[piece.entry];
    if (std::uint64_t{piece.offset_bytes} + piece.size_bytes < part.destination.size()) continue;
    ended_[piece.entry] = true;
    has_told |= call_->End(part, StatusOf(part));
  }
  return has_told;
}

// Another daemon's silence may have put the block in quarantine since this one was asked to write
// into it.
ErrorCode RemoteAsk::StatusOf(const ExtentPart& part) const {
  SlabPool& pool = SlabPool::Process();
  if (next_.slab == nullptr || pool.quarantine_count() == quarantine_count_) return ErrorCode::kOk;
  const auto recovered = pool.Recover(part.destination);
  return recovered ? ErrorCode::kOk : recovered.error().code;
}

TrafficClass RemoteAsk::State(BatchRead& batch, std::uint64_t capabilities) {
  const TrafficClass traffic = pace::Promoted(call_->traffic);
  batch.traffic_class = StatedClass(traffic);
  names_disk = EventLog::active() != nullptr && (capabilities & kCapabilityDiskNames) != 0;
  if (names_disk) batch.options |= BatchRead::kNamesDisk;
  return traffic;
}

bool RemoteAsk::Finish(const BatchDone& done, bool& has_told) {
  if (std::uint64_t{done.ok_count} + done.failed_count != next_.parts.size()) return false;
  const auto status_of = [&](std::size_t i) {
    return done.statuses.empty() ? EntryStatus::kOk : done.statuses[i];
  };
  const auto is_whole = [&](std::size_t i) {
    return received_bytes_[i] == next_.parts[i].destination.size();
  };
  for (std::size_t i = 0; i < next_.parts.size(); ++i)
    if (is_whole(i) != (status_of(i) == EntryStatus::kOk)) return false;
  for (std::size_t i = 0; i < next_.parts.size() && call_ != nullptr; ++i) {
    const EntryStatus status = status_of(i);
    if (is_whole(i) || status == EntryStatus::kBusy || status == EntryStatus::kCancelled) continue;
    ended_[i] = true;
    has_told |= call_->End(next_.parts[i], ToErrorCode(status));
  }
  return true;
}

void RemoteAsk::NoteAsked(std::uint16_t peer) noexcept {
  if (EventLog::active() == nullptr) return;
  ProfileEvent event;
  event.size_bytes = payload_bytes_;
  event.detail = next_.parts.size();
  event.kind = static_cast<std::uint16_t>(ProfileKind::kDaemonRead);
  event.name = peer;
  profiled_.Begin(event);
}

void RemoteAsk::NoteDone(std::uint16_t peer, const BatchDone& done) noexcept {
  ProfileEvent event;
  event.size_bytes = done.size_bytes;
  event.detail = done.ok_count;
  event.first = done.disk_us;
  event.second = done.queue_us;
  event.kind = static_cast<std::uint16_t>(ProfileKind::kDaemonRead);
  event.name = peer;
  profiled_.End(event);
}

bool RemoteAsk::has_left() const noexcept {
  return std::ranges::any_of(ended_, [](bool has_ended) { return !has_ended; });
}

void RemoteAsk::PutBack() {
  for (std::size_t i = 0; i < next_.parts.size(); ++i)
    if (!ended_[i]) call_->PutBack(next_.parts[i]);
}

bool RemoteAsk::EndLeft(ErrorCode status) {
  bool has_told = false;
  for (std::size_t i = 0; i < next_.parts.size(); ++i)
    if (!ended_[i]) has_told |= call_->End(next_.parts[i], status);
  ended_.assign(ended_.size(), true);
  return has_told;
}

Result<void> RemoteAsk::Quarantine() {
  if (!may_be_written()) return {};
  for (std::size_t i = 0; i < next_.parts.size(); ++i)
    if (!ended_[i]) FFR_TRY(SlabPool::Process().Quarantine(next_.parts[i].destination));
  return {};
}

}  // namespace ffrecord::net
