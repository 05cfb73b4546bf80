#include "client/collective/ring_progress.h"

#include <poll.h>

#include <algorithm>
#include <span>
#include <utility>

#include "client/collective/reduce.h"
#include "libffrecord/base/assert.h"
#include "libffrecord/base/checksum.h"

namespace ffrecord::client {
namespace {

using net::Clock;
using net::Endpoint;
using net::FrameType;
using namespace std::chrono_literals;

// How long a last word may take: the neighbour reads it at once or is stuck itself.
constexpr auto kFarewell = 250ms;
// How many ticks a neighbour's word about who holds up is believed.
constexpr int kHeardTicks = 3;

}  // namespace

Result<RingProgress> RingProgress::Make(const Ring& ring, Neighbours neighbours,
                                        std::uint64_t chunk_size_bytes,
                                        std::chrono::milliseconds timeout, RingCounters& counters) {
  auto scratch = FFR_TRY(BufferPool::Process().Take(chunk_size_bytes));
  return RingProgress(ring, std::move(neighbours), std::move(scratch), chunk_size_bytes, timeout,
                      counters);
}

RingProgress::RingProgress(const Ring& ring, Neighbours neighbours, PooledBuffer scratch,
                           std::uint64_t chunk_size_bytes, std::chrono::milliseconds timeout,
                           RingCounters& counters)
    : ring_(ring),
      neighbours_(std::move(neighbours)),
      scratch_(std::move(scratch)),
      chunk_size_bytes_(chunk_size_bytes),
      timeout_(timeout),
      tick_(std::clamp<std::chrono::milliseconds>(timeout / 16, 5ms, 500ms)),
      counters_(&counters),
      step_count_(ring.step_count()),
      data_at_(Clock::now()),
      told_at_(data_at_) {}

Result<void> RingProgress::Advance(std::vector<Ended>& ended) {
  for (bool moved = true; moved && ended.empty();) {
    StartOperations();
    FFR_TRY(SendPieces());
    moved = FFR_TRY(PollNext());
    if (FFR_TRY(PollPrevious())) moved = true;
    if (!pieces_.empty() && HasRoom()) moved = true;
    TakeEnded(ended);
  }
  return CheckTime();
}

std::array<Endpoint*, 2> RingProgress::waits_for() const {
  return {next_gone_ ? nullptr : &next(), previous_gone_ || is_held_ ? nullptr : &previous()};
}

net::Deadline RingProgress::wake_at() const {
  if (active_.empty()) return Clock::now() + 1h;
  return std::min(active_.front().deadline, std::max(data_at_, told_at_) + tick_);
}

// --- Starting and ending -------------------------------------------------------------------------

void RingProgress::StartOperations() {
  while (!submitted_.empty() && (active_.empty() || active_.back().is_all_queued)) {
    const auto now = Clock::now();
    if (active_.empty()) data_at_ = now;  // Nobody was waited for until now.
    active_.push_back({.operation = submitted_.front(), .began = now, .deadline = now + timeout_});
    submitted_.pop_front();
    Active& active = active_.back();
    FFR_ASSERT(active.operation.sequence == next_sequence_);
    ++next_sequence_;
    active.first_received = SegmentReceived(active).begin;
    QueueFirstStep(active);
  }
}

void RingProgress::QueueFirstStep(Active& active) {
  const auto segment = ring_.SegmentOf(active.operation.count, ring_.SegmentSent(0));
  std::uint64_t first = segment.begin;
  do {  // A segment without elements is one piece too, so that differences always show.
    const std::uint64_t count = PieceCount(active.operation, segment, first);
    PushPiece(active, 0, first, count, std::nullopt);
    first += count;
  } while (first < segment.end);
}

bool RingProgress::IsSent(const Active& active) const {
  return active.is_all_queued && active.unsent_pieces == 0 &&
         bytes_given_ - next().bytes_queued() >= active.sent_mark;
}

void RingProgress::TakeEnded(std::vector<Ended>& ended) {
  while (!active_.empty() && IsReceived(active_.front()) && IsSent(active_.front())) {
    ended.push_back({active_.front().operation.sequence, active_.front().began});
    active_.pop_front();
    counters_->operations.fetch_add(1, std::memory_order_relaxed);
  }
}

Ring::Segment RingProgress::SegmentReceived(const Active& active) const {
  return ring_.SegmentOf(active.operation.count, ring_.SegmentReceived(active.step_received));
}

std::uint64_t RingProgress::PieceCount(const RingOperation& operation, Ring::Segment segment,
                                       std::uint64_t first) const {
  return std::min(segment.end - first, chunk_size_bytes_ / SizeOf(operation.type));
}

std::byte* RingProgress::At(const RingOperation& operation, std::uint64_t element) {
  return operation.data + element * SizeOf(operation.type);
}

// --- Sending -------------------------------------------------------------------------------------

void RingProgress::PushPiece(Active& active, std::uint32_t step, std::uint64_t first,
                             std::uint64_t count, std::optional<std::uint64_t> check) {
  pieces_.push_back({&active, step, first, count, check});
  ++active.unsent_pieces;
  const auto segment = ring_.SegmentOf(active.operation.count, ring_.SegmentSent(step));
  if (step + 1 == step_count_ && first + count == segment.end) active.is_all_queued = true;
}

Result<void> RingProgress::SendPieces() {
  while (!pieces_.empty() && HasRoom()) {
    if (next_gone_) return *next_gone_;
    const Piece& piece = pieces_.front();
    Active& active = *piece.operation;
    const std::span<const std::byte> bytes(At(active.operation, piece.first),
                                           piece.count * SizeOf(active.operation.type));
    const RingData data{.sequence = active.operation.sequence,
                        .count = active.operation.count,
                        .first = piece.first,
                        .payload_check = piece.check ? *piece.check : Xxh3(bytes),
                        .step = piece.step,
                        .type = active.operation.type,
                        .op = active.operation.op};
    const std::uint64_t queued_before = next().bytes_queued();
    auto sent = next().Send({.type = FrameType::kCollectiveData}, data.Encode(), {&bytes, 1});
    if (!sent) return Gone(ring_.next(), &sent.error());
    const std::uint64_t size_bytes = next().bytes_queued() - queued_before;
    bytes_given_ += size_bytes;
    counters_->bytes_sent.fetch_add(size_bytes, std::memory_order_relaxed);
    active.sent_mark = bytes_given_;
    --active.unsent_pieces;
    pieces_.pop_front();
  }
  return {};
}

// The next rank says nothing but its last word.
Result<bool> RingProgress::PollNext() {
  if (next_gone_) return false;
  const auto event = next().Poll();
  if (event && event.value() == Endpoint::Event::kNone) return false;
  if (event && event.value() == Endpoint::Event::kFrame) {
    if (next().header().type == FrameType::kError) return LastWord(ring_.next(), next());
    return Error{ErrorCode::kCorruption, "rank " + std::to_string(ring_.next()) +
                                             " sent a frame against the ring's direction"};
  }
  const Error gone = Gone(ring_.next(), event ? nullptr : &event.error());
  if (next().bytes_queued() > 0 || !pieces_.empty() ||
      (!active_.empty() && !active_.back().is_all_queued))
    return gone;
  next_gone_ = gone;  // It may have ended in good order: nothing is owed to it.
  return true;
}

// --- Receiving -----------------------------------------------------------------------------------

RingProgress::Active* RingProgress::receiving() {
  const auto found =
      std::ranges::find_if(active_, [this](const Active& active) { return !IsReceived(active); });
  return found == active_.end() ? nullptr : &*found;
}

Result<bool> RingProgress::PollPrevious() {
  if (previous_gone_) {
    if (receiving() != nullptr) return *previous_gone_;
    return false;
  }
  if (is_held_) {
    if (receiving() == nullptr) return false;
    is_held_ = false;  // We have submitted the operation that it waited for.
    return ReceiveData();
  }
  auto event = previous().Poll();
  if (!event || event.value() == Endpoint::Event::kClosed) {
    // Not a lost connection but a frame that cannot be right.
    if (!event && event.error().code == ErrorCode::kCorruption)
      return OfRank(ring_.previous(), std::move(event).error());
    const Error gone = Gone(ring_.previous(), event ? nullptr : &event.error());
    if (receiving() != nullptr) return gone;
    previous_gone_ = gone;
    return true;
  }
  switch (event.value()) {
    case Endpoint::Event::kFrame:
      return ReceiveFrame();
    case Endpoint::Event::kPayload:
      FFR_TRY(FinishPiece());
      return true;
    default:
      return false;
  }
}

Result<bool> RingProgress::ReceiveFrame() {
  switch (previous().header().type) {
    case FrameType::kCollectiveData: {
      auto data = RingData::Decode(previous().body());
      if (!data) return OfRank(ring_.previous(), std::move(data).error());
      current_ = data.value();
      return ReceiveData();
    }
    case FrameType::kPing: {
      const auto waiting = RingWaiting::Decode(previous().body());
      if (!waiting) return OfRank(ring_.previous(), waiting.error());
      FFR_TRY(NoteWaiting(waiting.value().rank));
      return true;
    }
    case FrameType::kError:
      return LastWord(ring_.previous(), previous());
    default:
      return Unexpected("sent a frame of type " +
                        std::to_string(static_cast<int>(previous().header().type)));
  }
}

// `current_` has arrived, its payload has not.
Result<bool> RingProgress::ReceiveData() {
  Active* const active = receiving();
  if (active == nullptr && current_.sequence == next_sequence_) {
    is_held_ = true;  // We are behind: the frame waits where it is until we submit.
    return false;
  }
  if (active == nullptr || current_.sequence != active->operation.sequence)
    return Unexpected("is at operation " + std::to_string(current_.sequence));
  if (current_.count != active->operation.count || current_.type != active->operation.type ||
      current_.op != active->operation.op)
    return Differs(active->operation, current_);
  const std::uint64_t count =
      PieceCount(active->operation, SegmentReceived(*active), active->first_received);
  const std::uint64_t size_bytes = count * SizeOf(active->operation.type);
  if (current_.step != active->step_received || current_.first != active->first_received ||
      previous().header().payload_size_bytes != size_bytes)
    return Unexpected("sent a piece out of order");

  data_at_ = Clock::now();
  counters_->bytes_received.fetch_add(
      net::FrameHeader::kEncodedSizeBytes + previous().body().size() + size_bytes,
      std::memory_order_relaxed);
  if (size_bytes == 0) {
    FFR_TRY(FinishPiece());
    return true;
  }
  std::byte* const place =
      ring_.Reduces(current_.step) ? scratch_->data() : At(active->operation, current_.first);
  const std::span<std::byte> places[] = {{place, size_bytes}};
  FFR_TRY(previous().ReceivePayload(places));
  return true;
}

// The payload of `current_` has landed.
Result<void> RingProgress::FinishPiece() {
  Active& active = *receiving();
  const RingOperation& operation = active.operation;
  const std::uint64_t count = PieceCount(operation, SegmentReceived(active), current_.first);
  const std::uint64_t size_bytes = count * SizeOf(operation.type);
  std::byte* const place = At(operation, current_.first);
  const bool reduces = ring_.Reduces(current_.step);
  if (Xxh3({reduces ? scratch_->data() : place, size_bytes}) != current_.payload_check)
    return Error{ErrorCode::kCorruption, Describe(operation) + ": a piece from rank " +
                                             std::to_string(ring_.previous()) +
                                             " fails its check: bytes changed in flight"};

  std::optional<std::uint64_t> check = current_.payload_check;
  if (reduces) {
    const bool divides = operation.op == ReduceOp::kAverage && ring_.Completes(current_.step);
    const auto before = Clock::now();
    Reduce(operation.type, operation.op, divides ? ring_.world_size : 1, count, scratch_->data(),
           place);
    const std::chrono::nanoseconds took = Clock::now() - before;
    counters_->reduce_ns.fetch_add(static_cast<std::uint64_t>(took.count()),
                                   std::memory_order_relaxed);
    check = Xxh3({place, size_bytes});  // Now, while it is in the cache.
  }
  data_at_ = Clock::now();
  if (current_.step + 1 < step_count_)
    PushPiece(active, current_.step + 1, current_.first, count, check);
  active.first_received += count;
  if (active.first_received >= SegmentReceived(active).end) {
    ++active.step_received;
    if (!IsReceived(active)) active.first_received = SegmentReceived(active).begin;
  }
  return {};
}

// --- Time and blame ------------------------------------------------------------------------------

std::uint32_t RingProgress::Blamed(Clock::time_point now) {
  if (receiving() == nullptr) return ring_.next();  // All has come; it does not take ours.
  if (now - heard_at_ < kHeardTicks * tick_ && heard_rank_ != ring_.rank) return heard_rank_;
  return ring_.previous();
}

// The previous rank is held up too. The word travels on until it reaches the one it is about.
Result<void> RingProgress::NoteWaiting(std::uint32_t rank) {
  if (rank >= ring_.world_size) return Unexpected("waits for rank " + std::to_string(rank));
  const bool is_new = heard_rank_ != rank;
  heard_rank_ = rank;
  heard_at_ = Clock::now();
  if (is_new && heard_at_ - data_at_ >= tick_) TellWaiting(heard_at_);
  return {};
}

void RingProgress::TellWaiting(Clock::time_point now) {
  told_at_ = now;
  // A queue that stands would only grow: the next rank is not listening.
  if (receiving() == nullptr || next_gone_ || next().bytes_queued() > 0) return;
  const auto body = RingWaiting{Blamed(now)}.Encode();
  if (next().Send({.type = FrameType::kPing}, body, {})) bytes_given_ += next().bytes_queued();
}

Result<void> RingProgress::CheckTime() {
  if (active_.empty()) return {};
  const auto now = Clock::now();
  if (now >= active_.front().deadline) {
    return Error{ErrorCode::kDeadlineExceeded,
                 Describe(active_.front().operation) + ": no end within " +
                     std::to_string(timeout_.count()) + " ms: rank " + std::to_string(Blamed(now)) +
                     " does not answer or has not joined the operation"};
  }
  if (now - data_at_ < tick_ || now - told_at_ < tick_) return {};
  TellWaiting(now);
  FFR_TRY(PollNext());
  return {};
}

// --- Errors --------------------------------------------------------------------------------------

std::string RingProgress::Describe(const RingOperation& operation) {
  return "all-reduce " + std::to_string(operation.sequence) + " (" +
         std::string(NameOf(operation.op)) + " of " + std::to_string(operation.count) + " " +
         std::string(NameOf(operation.type)) + ")";
}

Error RingProgress::Differs(const RingOperation& ours, const RingData& theirs) const {
  const RingOperation other{theirs.sequence, nullptr, theirs.count, theirs.type, theirs.op};
  return {ErrorCode::kInvalidArgument,
          "rank " + std::to_string(ring_.previous()) + " submitted " + Describe(other) +
              " but rank " + std::to_string(ring_.rank) + " " + Describe(ours) +
              "; all ranks must submit the same operations in the same order"};
}

Error RingProgress::Gone(std::uint32_t rank, const Error* why) const {
  const Endpoint& neighbour = rank == ring_.next() ? next() : previous();
  return {ErrorCode::kUnavailable,
          "rank " + std::to_string(rank) + " at " + neighbour.peer() +
              " has left the group: its process ended or was killed, or it closed its engine" +
              (why != nullptr ? " (" + why->message + ")" : "")};
}

Error RingProgress::Unexpected(const std::string& what) const {
  return {ErrorCode::kCorruption, "rank " + std::to_string(ring_.previous()) + " " + what +
                                      ", which rank " + std::to_string(ring_.rank) +
                                      " does not understand; do all ranks run the same version?"};
}

// --- Closing -------------------------------------------------------------------------------------

void RingProgress::Close(const Error& why) {
  const auto deadline = Clock::now() + kFarewell;
  const std::array<Endpoint*, 2> both{&next(), &previous()};
  for (Endpoint* neighbour : both)
    if (neighbour->fd() >= 0) SendLastWord(*neighbour, why);
  for (;;) {
    std::array<pollfd, 2> unsent{};
    for (std::size_t i = 0; i < both.size(); ++i) {
      // Errors are no news here, and what still comes in is of no use.
      if (both[i]->fd() >= 0 && both[i]->bytes_queued() > 0) (void)both[i]->Poll();
      unsent[i] = {both[i]->bytes_queued() > 0 ? both[i]->fd() : -1, POLLOUT, 0};
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if ((unsent[0].fd < 0 && unsent[1].fd < 0) || left <= 0) break;
    (void)::poll(unsent.data(), unsent.size(), static_cast<int>(left));
  }
  Close();
}

void RingProgress::Close() {
  next().Close();
  previous().Close();
}

}  // namespace ffrecord::client
