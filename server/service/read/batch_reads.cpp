#include "server/service/read/batch_reads.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/net/protocol/daemon_frames.h"
#include "libffrecord/net/transport/remote_memory.h"

namespace ffrecord::server {
namespace {

using net::EntryStatus;

// One BATCH_DATA carries about this much: small records share a frame, large ones do not wait.
constexpr std::uint64_t kFramePayloadBytes = std::uint64_t{1} << 20;
// Records that are found in memory leave in steps of this: looking for them takes time too.
constexpr std::uint64_t kResidentStepBytes = std::uint64_t{256} << 10;
// Whole frames of small records are put into the client's memory: neighbours there leave as one.
constexpr std::uint32_t kSmallBytes = std::uint32_t{64} << 10;
// And no more than so many pieces, of which one that lies in a slab adds no bytes.
constexpr std::size_t kFramePiecesMax = 4096;

std::uint32_t Microseconds(Clock::time_point from, Clock::time_point to) {
  const auto span = std::chrono::duration_cast<std::chrono::microseconds>(to - from).count();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(span, 0, UINT32_MAX));
}

}  // namespace

// Collects pieces of one batch and sends them, about kFramePayloadBytes at a time.
class BatchReads::Frame {
 public:
  Frame(const net::FrameHeader& header, net::Endpoint& endpoint, OutgoingPayload& payload)
      : header_(header), endpoint_(endpoint), payload_(payload) {}

  // `run`: where the piece lies, and from where on in which file, if it is mapped.
  Result<void> Add(const RunPiece& piece, const net::Endpoint::MappedPiece& run) {
    places_.push_back(Part(run, piece));
    size_bytes_ += piece.size_bytes;
    return AddCompleted(piece);
  }
  // The same of a piece that goes to its `place` in the client's memory.
  Result<void> AddPlaced(const RunPiece& piece, const net::Endpoint::MappedPiece& run,
                         const net::RemoteRegion& place) {
    placed_.push_back({Part(run, piece), place});
    size_bytes_ += piece.size_bytes;
    return AddCompleted(piece);
  }
  // A piece that is in its place already.
  Result<void> AddCompleted(const RunPiece& piece) {
    data_.pieces.push_back({piece.entry, piece.entry_offset_bytes, piece.size_bytes});
    const bool is_full =
        size_bytes_ >= kFramePayloadBytes || data_.pieces.size() >= kFramePiecesMax;
    return is_full ? Send() : Result<void>();
  }
  // All pieces of a run are in: `owner` must live until they are sent.
  void AddOwner(OutgoingPayload::Owner owner) { owners_.push_back(std::move(owner)); }

  Result<void> Send() {
    // Records come in the order of the disk: side by side again, they are few large writes.
    std::ranges::sort(placed_, {}, [](const auto& piece) { return piece.place.address; });
    if (!placed_.empty())
      FFR_TRY(endpoint_.remote_memory()->SendPlaced(header_, data_.Encode(), placed_));
    else if (!data_.pieces.empty())
      FFR_TRY(endpoint_.SendMapped(header_, data_.Encode(), places_));
    // Owners without pieces here: theirs are in frames before this one.
    if (size_bytes_ > 0 || !owners_.empty())
      payload_.Add(std::make_shared<std::vector<OutgoingPayload::Owner>>(std::move(owners_)),
                   size_bytes_);
    data_.pieces.clear();
    places_.clear();
    placed_.clear();
    owners_.clear();
    size_bytes_ = 0;
    return {};
  }

 private:
  static net::Endpoint::MappedPiece Part(net::Endpoint::MappedPiece run, const RunPiece& piece) {
    run.bytes = run.bytes.subspan(piece.run_offset_bytes, piece.size_bytes);
    run.file_offset_bytes += piece.run_offset_bytes;
    return run;
  }

  const net::FrameHeader header_;
  net::Endpoint& endpoint_;
  OutgoingPayload& payload_;
  net::BatchData data_;
  std::vector<net::Endpoint::MappedPiece> places_;
  std::vector<net::RemoteMemory::PlacedPiece> placed_;
  std::vector<OutgoingPayload::Owner> owners_;
  std::uint64_t size_bytes_ = 0;
};

BatchReads::~BatchReads() {
  metrics_.batches.Remove(batches_.size());
  if (reading_count_ > 0) disk_.Withdraw(connection_);
  // Releases what was read and never sent. The worker releases a read in flight when it completes.
  for (auto& [number, batch] : batches_)
    for (std::uint32_t i = 0; i < batch.runs.size(); ++i)
      if (!IsReadInPlace(batch) && batch.runs[i].state == RunState::kCompleted &&
          batch.runs[i].file < 0)
        Release(batch.plan.runs[i].size_bytes);
}

void BatchReads::Release(std::uint32_t size_bytes) {
  *held_bytes_ -= size_bytes;
  disk_.Release(size_bytes);
}

void BatchReads::Begin(std::uint64_t request_id, const net::BatchRead& request,
                       std::span<const ExtentPtr> table, std::shared_ptr<const ClientSlab> slab) {
  Batch batch;
  batch.request_id = request_id;
  batch.traffic = net::TrafficOf(request.traffic_class);
  batch.names_disk = (request.options & net::BatchRead::kNamesDisk) != 0;
  batch.plan = PlanBatch(request.entries, table, slab.get());
  if (slab)
    for (const auto& entry : request.entries) batch.slab_offsets.push_back(entry.slab_offset_bytes);
  batch.slab = std::move(slab);
  batch.entry_sizes.reserve(request.entries.size());
  for (const auto& entry : request.entries) batch.entry_sizes.push_back(entry.size_bytes);
  batch.runs.resize(batch.plan.runs.size());
  batch.granted_bytes = request.initial_grant_bytes == net::BatchRead::kNoGrantLimit
                            ? UINT64_MAX
                            : request.initial_grant_bytes;
  batch.arrived = batch.started = batch.ended = Clock::now();
  batch.deadline = request.deadline_ms == 0
                       ? Clock::time_point::max()
                       : batch.arrived + std::chrono::milliseconds(request.deadline_ms);
  entry_count_ += request.entries.size();
  if (batch.traffic == TrafficClass::kUrgent) urgent_until_ = next_batch_ + 1;
  batches_.emplace(next_batch_++, std::move(batch));
  metrics_.batches.Add();
}

TrafficClass BatchReads::ServedAs(std::uint64_t number) const {
  return number < urgent_until_ ? TrafficClass::kUrgent : batches_.at(number).traffic;
}

void BatchReads::Grant(std::uint64_t request_id, std::uint64_t total_bytes) {
  for (auto& [number, batch] : batches_)
    if (batch.request_id == request_id)
      batch.granted_bytes = std::max(batch.granted_bytes, total_bytes);
}

bool BatchReads::is_stalled() const noexcept {
  return std::ranges::any_of(batches_,
                             [](const auto& entry) { return entry.second.stalled.has_value(); });
}

void BatchReads::Cancel(std::uint64_t request_id) {
  for (auto& [number, batch] : batches_) {
    if (batch.request_id != request_id) continue;
    batch.is_cancelled = true;
    for (; batch.next_run < batch.runs.size(); ++batch.next_run)
      Fail(batch, batch.next_run, EntryStatus::kCancelled);
    disk_.Withdraw(connection_, number);
  }
}

std::span<std::byte> BatchReads::BytesInSlab(const Batch& batch, const ReadRun& run) {
  FFR_ASSERT(run.piece_count == 1);
  const RunPiece& piece = batch.plan.pieces[run.first_piece];
  const auto place = batch.slab->mapped->At(
      std::uint64_t{batch.slab_offsets[piece.entry]} + piece.entry_offset_bytes, piece.size_bytes);
  FFR_ASSERT(place);  // The plan has left out what passes the slab.
  return place.value();
}

// The slab stays mapped as long as somebody may write there, also when the client is gone.
PooledBuffer BatchReads::PlaceInSlab(const Batch& batch, const ReadRun& run) {
  return {new std::span<std::byte>(BytesInSlab(batch, run)),
          [slab = batch.slab](std::span<std::byte>* dead) { delete dead; }};
}

std::uint64_t BatchReads::PayloadOf(const Batch& batch, std::uint32_t run) {
  const ReadRun& planned = batch.plan.runs[run];
  std::uint64_t size_bytes = 0;
  for (const RunPiece& piece :
       std::span(batch.plan.pieces).subspan(planned.first_piece, planned.piece_count))
    size_bytes += piece.size_bytes;
  return size_bytes;
}

// A mapped slab gets a copy, the only one: nothing of it is held.
bool BatchReads::CompleteResident(Batch& batch, std::uint32_t run, DiskReader::Resident resident) {
  const ReadRun& planned = batch.plan.runs[run];
  if (IsReadInPlace(batch)) {
    const auto place = BytesInSlab(batch, planned);
    std::memcpy(place.data(), resident.bytes.data(), place.size());
    // The file was cut meanwhile: a read says so.
    if (resident.file->mapped->has_lost()) return false;
    batch.runs[run].state = RunState::kCompleted;
  } else {
    *held_bytes_ += planned.size_bytes;
    batch.runs[run] = {.state = RunState::kCompleted,
                       .bytes = resident.bytes,
                       .owner = resident.file,
                       .file = resident.file->fd.get()};
  }
  batch.completed.push_back(run);
  has_completed_ = true;
  return true;
}

void BatchReads::NoteWanted(const Batch& batch, std::uint32_t run) {
  if (!read_ahead_.has_plans()) return;
  const ReadRun& planned = batch.plan.runs[run];
  const bool is_in_memory = batch.runs[run].state == RunState::kCompleted;
  wanted_.push_back(
      {planned.extent->get(), planned.offset_bytes, planned.size_bytes, is_in_memory});
}

void BatchReads::TellWanted() {
  if (!wanted_.empty()) read_ahead_.Take(wanted_);
  wanted_.clear();
}

bool BatchReads::Start() {
  const bool is_throttled = StartRuns();
  TellWanted();
  return is_throttled;
}

// False if the run waits for its file: whether it is in memory is known then.
bool BatchReads::StartRead(std::uint64_t number, Batch& batch, std::uint32_t run) {
  const ReadRun& planned = batch.plan.runs[run];
  ++reading_count_;
  batch.runs[run].state = RunState::kReading;
  *held_bytes_ += planned.size_bytes;
  return disk_.Start({connection_, number, run, ServedAs(number)}, planned,
                     IsReadInPlace(batch) ? PlaceInSlab(batch, planned) : nullptr, batch.deadline);
}

bool BatchReads::StartRuns() {
  std::uint64_t resident_bytes = 0;
  const Extent* whole = nullptr;
  for (auto& [number, batch] : batches_) {
    if (batch.next_run == batch.runs.size()) continue;
    const auto now = Clock::now();
    if (batch.next_run == 0 && !batch.stalled) batch.started = now;
    for (; batch.next_run < batch.runs.size(); ++batch.next_run) {
      const ReadRun& run = batch.plan.runs[batch.next_run];
      if (batch.stalled) batch.stalled_time += now - *std::exchange(batch.stalled, std::nullopt);
      if (batch.is_cancelled || now >= batch.deadline) {
        Fail(batch, batch.next_run,
             batch.is_cancelled ? EntryStatus::kCancelled : EntryStatus::kDeadline);
        continue;
      }
      // One read may pass the grant: else a small one would lead nowhere.
      if (batch.begun_bytes >= batch.granted_bytes) {
        if (reading_count_ == 0) batch.stalled = now;
        break;
      }
      const bool is_window_full = *held_bytes_ > 0 && *held_bytes_ + run.size_bytes > kWindowBytes;
      if (is_window_full ||
          (*held_bytes_ > 0 && !disk_.HasRoomFor(**run.extent, ServedAs(number)))) {
        if (reading_count_ == 0) batch.stalled = now;
        return !is_window_full;
      }
      batch.begun_bytes += PayloadOf(batch, batch.next_run);
      auto resident = disk_.FindInMemory(run, whole, now);
      if (resident && CompleteResident(batch, batch.next_run, std::move(*resident))) {
        NoteWanted(batch, batch.next_run);
        batch.ended = now;
        resident_bytes += run.size_bytes;
        // Into memory of this machine it is copied anyhow, and each frame wakes the client.
        const bool fills_frame =
            IsReadInPlace(batch) || (batch.slab && run.size_bytes < kSmallBytes);
        if (resident_bytes < (fills_frame ? kFramePayloadBytes : kResidentStepBytes)) continue;
        ++batch.next_run;
        return false;
      }
      if (StartRead(number, batch, batch.next_run)) NoteWanted(batch, batch.next_run);
    }
  }
  return false;
}

void BatchReads::Fail(Batch& batch, std::uint32_t run, EntryStatus status) {
  const ReadRun& planned = batch.plan.runs[run];
  for (const RunPiece& piece :
       std::span(batch.plan.pieces).subspan(planned.first_piece, planned.piece_count)) {
    EntryStatus& entry = batch.plan.statuses[piece.entry];
    if (entry == EntryStatus::kOk) entry = status;
  }
  batch.runs[run].state = RunState::kDone;
  ++batch.done_count;
  has_completed_ = true;  // The batch may be complete.
  // The run behind it may have completed, and waited for this one.
  if (run + 1 < batch.runs.size() && batch.runs[run + 1].state == RunState::kCompleted)
    batch.completed.push_back(run + 1);
}

// Neighbours that were read together could not be: each for itself, so that the bad ones spoil no
// other. The new runs come last, as if they had been planned.
void BatchReads::Split(Batch& batch, std::uint32_t run) {
  const ReadRun whole = batch.plan.runs[run];
  for (std::uint32_t i = whole.first_piece; i < whole.first_piece + whole.piece_count; ++i) {
    RunPiece piece = batch.plan.pieces[i];
    batch.plan.runs.push_back({whole.extent, whole.offset_bytes + piece.run_offset_bytes,
                               piece.size_bytes,
                               static_cast<std::uint32_t>(batch.plan.pieces.size()), 1, false});
    piece.run_offset_bytes = 0;
    batch.plan.pieces.push_back(piece);
    batch.runs.emplace_back();
  }
  batch.runs[run].state = RunState::kDone;
  ++batch.done_count;
}

void BatchReads::Take(DiskReader::Completed completed) {
  const auto found = batches_.find(completed.ticket.batch);
  FFR_ASSERT(found != batches_.end());  // A batch does not end before all its runs have completed.
  Batch& batch = found->second;
  --reading_count_;
  const std::uint32_t run = completed.ticket.run;
  batch.ended = Clock::now();
  if (batch.names_disk && completed.disk != nullptr)
    batch.disk_times[completed.disk] += completed.read_time;
  if (completed.status != EntryStatus::kOk || batch.is_cancelled) {
    Release(completed.size_bytes);
    batch.begun_bytes -= PayloadOf(batch, run);
    if (batch.is_cancelled)
      Fail(batch, run, EntryStatus::kCancelled);
    else if (batch.plan.runs[run].piece_count > 1)
      Split(batch, run);
    else
      Fail(batch, run, completed.status);
    return;
  }
  if (completed.resident) {
    Release(completed.size_bytes);
    TakeResident(completed.ticket.batch, batch, run, std::move(*completed.resident));
  } else {
    has_completed_ = true;
    batch.completed.push_back(run);
    if (completed.has_waited) NoteWanted(batch, run);
    batch.runs[run].state = RunState::kCompleted;
    if (IsReadInPlace(batch)) {
      Release(completed.size_bytes);
    } else {
      batch.runs[run].bytes = *completed.buffer;
      batch.runs[run].owner = std::move(completed.buffer);
    }
  }
  TellWanted();
}

// Completes a run that has waited for its file.
void BatchReads::TakeResident(std::uint64_t number, Batch& batch, std::uint32_t run,
                              DiskReader::Resident resident) {
  if (!CompleteResident(batch, run, std::move(resident))) (void)StartRead(number, batch, run);
  NoteWanted(batch, run);
}

net::RemoteRegion BatchReads::PlaceOf(const Batch& batch, const RunPiece& piece) {
  return batch.slab->At(std::uint64_t{batch.slab_offsets[piece.entry]} + piece.entry_offset_bytes);
}

// Released when the last piece is sent, or the connection is gone.
OutgoingPayload::Owner BatchReads::OwnerOf(Run& run, std::uint32_t size_bytes) {
  DiskReader* const disk = run.file < 0 ? &disk_ : nullptr;
  const void* const bytes = run.bytes.data();
  return {bytes, [owner = std::move(run.owner), held = held_bytes_, disk,
                  size_bytes](const void*) mutable {
            owner.reset();
            *held -= size_bytes;
            if (disk != nullptr) disk->Release(size_bytes);
          }};
}

Result<void> BatchReads::SendRun(Batch& batch, std::uint32_t run, Frame& frame) {
  // Pieces of one entry are sent in order, so a run whose piece continues waits for the one before.
  for (; run < batch.runs.size() && batch.runs[run].state == RunState::kCompleted; ++run) {
    const ReadRun& planned = batch.plan.runs[run];
    if (planned.continues && batch.runs[run - 1].state != RunState::kDone) return {};
    const net::Endpoint::MappedPiece whole{batch.runs[run].bytes, batch.runs[run].file,
                                           planned.offset_bytes};
    for (const RunPiece& piece :
         std::span(batch.plan.pieces).subspan(planned.first_piece, planned.piece_count)) {
      EntryStatus& status = batch.plan.statuses[piece.entry];
      // The client has made its memory unobtainable: it does not hear of bytes that it cannot see.
      const bool is_lost = IsReadInPlace(batch) && batch.slab->guard.has_lost();
      if (is_lost && status == EntryStatus::kOk) status = EntryStatus::kIoError;
      if (status != EntryStatus::kOk) {
        batch.begun_bytes -= piece.size_bytes;  // The client does not hear of it.
        continue;
      }
      if (IsReadInPlace(batch))
        FFR_TRY(frame.AddCompleted(piece));
      else if (batch.slab)
        FFR_TRY(frame.AddPlaced(piece, whole, PlaceOf(batch, piece)));
      else
        FFR_TRY(frame.Add(piece, whole));
    }
    if (!IsReadInPlace(batch)) frame.AddOwner(OwnerOf(batch.runs[run], planned.size_bytes));
    batch.runs[run].state = RunState::kDone;
    ++batch.done_count;
    const bool next_waited = run + 1 < batch.runs.size() && batch.plan.runs[run + 1].continues;
    if (!next_waited) return {};
  }
  return {};
}

Result<void> BatchReads::Send(net::Endpoint& endpoint, OutgoingPayload& payload) {
  has_completed_ = false;
  for (auto entry = batches_.begin(); entry != batches_.end();) {
    Batch& batch = entry->second;
    Frame frame(Header(net::FrameType::kBatchData, batch.request_id), endpoint, payload);
    for (const std::uint32_t run : std::exchange(batch.completed, {}))
      FFR_TRY(SendRun(batch, run, frame));
    FFR_TRY(frame.Send());
    if (batch.done_count < batch.runs.size()) {
      ++entry;
      continue;
    }
    FFR_TRY(SendDone(batch, endpoint, payload));
    entry_count_ -= batch.entry_sizes.size();
    entry = batches_.erase(entry);
    metrics_.batches.Remove();
  }
  return {};
}

std::string BatchReads::SlowestDisk(const Batch& batch) {
  const auto slowest = std::ranges::max_element(batch.disk_times, {},
                                                [](const auto& entry) { return entry.second; });
  return slowest == batch.disk_times.end() ? "" : slowest->first->name();
}

Result<void> BatchReads::SendDone(const Batch& batch, net::Endpoint& endpoint,
                                  OutgoingPayload& payload) {
  net::BatchDone done;
  for (std::size_t i = 0; i < batch.plan.statuses.size(); ++i) {
    if (batch.plan.statuses[i] == EntryStatus::kOk) {
      ++done.ok_count;
      done.size_bytes += batch.entry_sizes[i];
    } else {
      ++done.failed_count;
    }
  }
  if (done.failed_count > 0) done.statuses = batch.plan.statuses;
  if (batch.names_disk) done.disk = SlowestDisk(batch);
  done.queue_us = Microseconds(batch.arrived, batch.started);
  done.disk_us = Microseconds(batch.started, batch.ended - batch.stalled_time);
  done.grant_us = Microseconds({}, Clock::time_point(batch.stalled_time));
  done.send_us = Microseconds(batch.ended, Clock::now());
  Measure(batch, done, endpoint.transport(), payload);
  return endpoint.Send(Header(net::ReplyTo(net::FrameType::kBatchRead), batch.request_id),
                       done.Encode(), {});
}

void BatchReads::Measure(const Batch& batch, const net::BatchDone& done, std::string_view transport,
                         OutgoingPayload& payload) {
  for (const net::EntryStatus status : batch.plan.statuses) metrics_.entries[status].Add();
  metrics_.read_bytes[TransportOf(transport)].Add(done.size_bytes);
  metrics_.class_read_bytes[batch.traffic].Add(done.size_bytes);
  metrics_.times.read_queue.Observe(batch.started - batch.arrived);
  // A batch that ended at its deadline may have stalled for longer than anything was read.
  metrics_.times.read_disk.Observe(
      std::max(batch.ended - batch.started - batch.stalled_time, Clock::duration{}));
  metrics_.times.read_grant.Observe(batch.stalled_time);
  // Released when all payload before it has left.
  payload.Add(std::shared_ptr<const void>(nullptr,
                                          [times = &metrics_.times, arrived = batch.arrived,
                                           ended = batch.ended](const void*) {
                                            const auto now = Clock::now();
                                            times->read_network.Observe(now - ended);
                                            times->read_whole.Observe(now - arrived);
                                          }),
              0);
}

}  // namespace ffrecord::server
