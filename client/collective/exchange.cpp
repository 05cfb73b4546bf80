#include "client/collective/exchange.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
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

// How long a last word may take: the peer reads it at once or is stuck itself.
constexpr auto kFarewell = 250ms;
// How many ticks a peer's word about who holds up is believed.
constexpr int kHeardTicks = 3;
// Operations that have queued all they send but still receive, and the one that sends.
constexpr std::size_t kActiveMax = 64;
// Queued on a link, half sent, just added, and what is left over at the end of the buffer.
constexpr std::uint64_t kStagedChunks = 5;

std::byte* At(const Operation& operation, std::uint64_t element) {
  return operation.data + element * SizeOf(operation.type);
}

}  // namespace

Exchange::Exchange(const Group& group, Links links, ExchangeCounters& counters)
    : group_(group),
      to_(links.to.size()),
      from_(links.from.size()),
      tick_(std::clamp<std::chrono::milliseconds>(group.timeout / 16, 5ms, 500ms)),
      counters_(&counters),
      data_at_(Clock::now()),
      told_at_(data_at_) {
  for (std::size_t i = 0; i < to_.size(); ++i) to_[i].link = std::move(links.to[i]);
  for (std::size_t i = 0; i < from_.size(); ++i) from_[i].link = std::move(links.from[i]);
}

Result<void> Exchange::Advance(std::vector<Ended>& ended) {
  for (bool moved = true; moved && ended.empty();) {
    moved = false;
    StartOperations();
    for (Outgoing& out : to_)
      if (FFR_TRY(Send(out))) moved = true;
    for (Incoming& in : from_)
      if (FFR_TRY(Receive(in))) moved = true;
    TakeEnded(ended);
  }
  return CheckTime();
}

Result<void> Exchange::Wait(int wake_fd) {
  std::vector<pollfd> waited{{wake_fd, POLLIN, 0}};
  for (const Outgoing& out : to_) {
    const int events = out.link.endpoint->wants_room() ? POLLIN | POLLOUT : POLLIN;
    waited.push_back({out.gone ? -1 : out.link.endpoint->fd(), static_cast<short>(events), 0});
  }
  for (const Incoming& in : from_)
    waited.push_back({in.gone || in.is_held ? -1 : in.link.endpoint->fd(), POLLIN, 0});

  const auto left = std::chrono::ceil<std::chrono::milliseconds>(wake_at() - Clock::now());
  const int count =
      ::poll(waited.data(), waited.size(), static_cast<int>(std::max(left, 0ms).count()));
  if (count < 0 && errno != EINTR)
    return Error{ErrorCode::kIo, std::string("poll failed: ") + std::strerror(errno), errno};
  for (std::size_t i = 0; i < to_.size(); ++i) to_[i].is_ready |= waited[1 + i].revents != 0;
  for (std::size_t i = 0; i < from_.size(); ++i)
    from_[i].is_ready |= waited[1 + to_.size() + i].revents != 0;
  return {};
}

net::Deadline Exchange::wake_at() const {
  if (active_.empty()) return Clock::now() + 1h;
  return std::min(active_.front().deadline, std::max(data_at_, told_at_) + tick_);
}

// --- Starting and ending -------------------------------------------------------------------------

void Exchange::StartOperations() {
  while (!submitted_.empty() && active_.size() < kActiveMax &&
         (active_.empty() || active_.back().sends_open == 0)) {
    const auto now = Clock::now();
    if (active_.empty()) data_at_ = now;  // Nobody was waited for until now.
    const Operation& operation = submitted_.front();
    FFR_ASSERT(operation.sequence == next_sequence_);
    ++next_sequence_;
    Active& active = active_.emplace_back(
        Active{.operation = operation,
               .schedule = MakeSchedule(operation.plan, group_.rank, group_.world_size),
               .sends = {},
               .arrivals = {},
               .began = now,
               .deadline = now + group_.timeout});
    submitted_.pop_front();
    for (const Transfer& send : active.schedule.sends)
      active.sends.push_back({.next = send.range.begin});
    for (const Arrival& arrival : active.schedule.arrivals)
      active.arrivals.push_back({.next = arrival.range.begin});
    active.sends_open = active.sends.size();
    active.arrivals_open = active.arrivals.size();
  }
}

void Exchange::TakeEnded(std::vector<Ended>& ended) {
  while (!active_.empty() && active_.front().sends_open == 0 &&
         active_.front().arrivals_open == 0 && active_.front().pieces_in_flight == 0) {
    ended.push_back({active_.front().operation.sequence, active_.front().began});
    active_.pop_front();
    if (!active_.empty()) active_.front().deadline = Clock::now() + group_.timeout;
    counters_->operations.fetch_add(1, std::memory_order_relaxed);
  }
}

Exchange::Active* Exchange::ActiveOf(std::uint64_t sequence) {
  if (active_.empty() || sequence < active_.front().operation.sequence) return nullptr;
  const std::uint64_t index = sequence - active_.front().operation.sequence;
  return index < active_.size() ? &active_[index] : nullptr;
}

bool Exchange::IsRounded(const Operation& operation) const {
  return group_.wire == WireType::kBf16 && operation.type == ReduceType::kF32 &&
         operation.plan.collective == Collective::kAllReduce;
}

std::uint64_t Exchange::WireSize(const Operation& operation) const {
  return IsRounded(operation) ? SizeOf(ReduceType::kBf16) : SizeOf(operation.type);
}

std::uint64_t Exchange::PieceMax(const Active& active) const {
  return group_.chunk_size_bytes / WireSize(active.operation);
}

Range Exchange::NextPiece(const Active& active, const Transfer& transfer,
                          const Progress& progress) const {
  return {progress.next,
          progress.next + std::min(transfer.range.end - progress.next, PieceMax(active))};
}

// --- Order ---------------------------------------------------------------------------------------

// Whether all that comes to `piece` before `step` has been placed.
bool Exchange::HasArrived(const Active& active, std::uint32_t step, const Range& piece) const {
  for (std::size_t i = 0; i < active.arrivals.size(); ++i) {
    const Arrival& arrival = active.schedule.arrivals[i];
    if (arrival.step >= step) return true;
    if (active.arrivals[i].is_done || !arrival.range.Touches(piece)) continue;
    if (active.arrivals[i].next < std::min(piece.end, arrival.range.end) ||
        piece.begin == piece.end)
      return false;
  }
  return true;
}

// Whether all that is sent from `piece` in `step` and before has left its memory.
bool Exchange::HasLeft(const Active& active, std::uint32_t step, const Range& piece) const {
  for (std::size_t i = 0; i < active.sends.size(); ++i) {
    const Transfer& send = active.schedule.sends[i];
    if (send.step > step) break;
    if (active.sends[i].is_done || !send.range.Touches(piece)) continue;
    if (active.sends[i].next < std::min(piece.end, send.range.end) || piece.begin == piece.end)
      return false;
  }
  if (active.pieces_in_flight == 0) return true;
  for (const Outgoing& out : to_)
    for (const InFlight& flying : out.in_flight)
      if (flying.active == &active && flying.step <= step && flying.range.Touches(piece))
        return false;
  return true;
}

Exchange::Next Exchange::NextSend(const Outgoing& out) {
  for (Active& active : active_) {
    if (active.sends_open == 0) continue;
    for (std::size_t i = 0; i < active.sends.size(); ++i)
      if (!active.sends[i].is_done && active.schedule.sends[i].peer == out.link.rank)
        return {&active, i};
  }
  return {};
}

Exchange::Next Exchange::NextArrival(const Incoming& in) {
  for (Active& active : active_) {
    if (active.arrivals_open == 0) continue;
    for (std::size_t i = 0; i < active.arrivals.size(); ++i)
      if (!active.arrivals[i].is_done && active.schedule.arrivals[i].peer == in.link.rank)
        return {&active, i};
  }
  return {};
}

// --- Sending -------------------------------------------------------------------------------------

Result<bool> Exchange::Send(Outgoing& out) {
  bool moved = FFR_TRY(SendPieces(out));
  if (out.gone || (!moved && !out.is_ready)) return moved;
  if (FFR_TRY(PollOutgoing(out))) moved = true;
  return moved;
}

Result<bool> Exchange::SendPieces(Outgoing& out) {
  bool moved = false;
  while (out.link.endpoint->bytes_queued() < kQueuedChunksMax * group_.chunk_size_bytes) {
    const Next next = NextSend(out);
    if (next.active == nullptr) break;
    if (out.gone) return *out.gone;
    const Transfer& transfer = next.active->schedule.sends[next.index];
    const Range piece = NextPiece(*next.active, transfer, next.active->sends[next.index]);
    if (!HasArrived(*next.active, transfer.step, piece)) break;
    FFR_TRY(SendPiece(out, *next.active, next.index, piece));
    moved = true;
  }
  return moved;
}

Result<void> Exchange::SendPiece(Outgoing& out, Active& active, std::size_t index, Range piece) {
  const Operation& operation = active.operation;
  const Transfer& transfer = active.schedule.sends[index];
  Endpoint& endpoint = *out.link.endpoint;
  const std::span<const std::byte> bytes = FFR_TRY(WireBytes(out, operation, piece));
  const auto check =
      KnownCheck(active, transfer, (piece.begin - transfer.range.begin) / PieceMax(active));
  const CollectiveData data{.sequence = operation.sequence,
                            .count = operation.plan.count,
                            .first = piece.begin,
                            .payload_check = check ? *check : Xxh3(bytes),
                            .step = transfer.step,
                            .type = operation.type,
                            .op = operation.op,
                            .collective = operation.plan.collective,
                            .algorithm = operation.plan.algorithm,
                            .root = operation.plan.root};
  const std::uint64_t queued_before = endpoint.bytes_queued();
  auto sent = endpoint.Send({.type = FrameType::kCollectiveData}, data.Encode(), {&bytes, 1});
  if (!sent) return Gone(out.link, &sent.error());
  const std::uint64_t size_bytes = endpoint.bytes_queued() - queued_before;
  out.bytes_given += size_bytes;
  out.in_flight.push_back({&active, transfer.step, piece, out.bytes_given});
  ++active.pieces_in_flight;
  counters_->bytes_sent.fetch_add(size_bytes, std::memory_order_relaxed);

  Progress& progress = active.sends[index];
  progress.next = piece.end;
  progress.is_done = piece.end >= transfer.range.end;
  if (progress.is_done) --active.sends_open;
  return {};
}

// What only passes through us has been checked, and needs no second hash.
std::optional<std::uint64_t> Exchange::KnownCheck(const Active& active, const Transfer& send,
                                                  std::uint64_t piece_index) {
  for (std::size_t i = 0; i < active.arrivals.size(); ++i) {
    const Arrival& arrival = active.schedule.arrivals[i];
    if (arrival.step >= send.step) break;
    if (!arrival.reduces && arrival.range == send.range)
      return active.arrivals[i].checks[piece_index];
  }
  return std::nullopt;
}

// Where the piece is sent from. What is rounded for the wire is rounded in the array too, so that
// all ranks go on with the same bits.
Result<std::span<const std::byte>> Exchange::WireBytes(Outgoing& out, const Operation& operation,
                                                       Range piece) const {
  const std::uint64_t size_bytes = piece.size() * WireSize(operation);
  if (!IsRounded(operation))
    return std::span<const std::byte>(At(operation, piece.begin), size_bytes);
  if (!out.staging)
    out.staging = FFR_TRY(BufferPool::Process().Take(kStagedChunks * group_.chunk_size_bytes));
  if (out.staging_next + size_bytes > out.staging->size()) out.staging_next = 0;
  std::byte* const place = out.staging->data() + out.staging_next;
  out.staging_next += size_bytes;
  RoundToBf16(piece.size(), At(operation, piece.begin), place);
  return std::span<const std::byte>(place, size_bytes);
}

void Exchange::TakeSent(Outgoing& out) {
  const std::uint64_t left = out.bytes_given - out.link.endpoint->bytes_queued();
  while (!out.in_flight.empty() && out.in_flight.front().mark <= left) {
    --out.in_flight.front().active->pieces_in_flight;
    out.in_flight.pop_front();
  }
}

// Sends what is queued. Who takes our data says nothing but its last word.
Result<bool> Exchange::PollOutgoing(Outgoing& out) {
  out.is_ready = false;
  Endpoint& endpoint = *out.link.endpoint;
  const std::uint64_t queued_before = endpoint.bytes_queued();
  const auto event = endpoint.Poll();
  TakeSent(out);
  if (event && event.value() == Endpoint::Event::kNone)
    return endpoint.bytes_queued() < queued_before;
  if (event && event.value() == Endpoint::Event::kFrame) {
    if (endpoint.header().type == FrameType::kError) return LastWord(out.link);
    return Error{ErrorCode::kCorruption, "rank " + std::to_string(out.link.rank) +
                                             " sent a frame against the data's direction"};
  }
  const Error gone = Gone(out.link, event ? nullptr : &event.error());
  if (endpoint.bytes_queued() > 0 || NextSend(out).active != nullptr) return gone;
  out.gone = gone;  // It may have ended in good order: nothing is owed to it.
  return true;
}

// --- Receiving -----------------------------------------------------------------------------------

Result<bool> Exchange::Receive(Incoming& in) {
  if (in.gone) {
    if (NextArrival(in).active != nullptr) return *in.gone;
    return false;
  }
  if (in.is_held) return Place(in);
  if (!in.is_ready) return false;
  auto event = in.link.endpoint->Poll();
  if (!event || event.value() == Endpoint::Event::kClosed) {
    // Not a lost connection but a frame that cannot be right.
    if (!event && event.error().code == ErrorCode::kCorruption)
      return OfRank(in.link.rank, std::move(event).error());
    const Error gone = Gone(in.link, event ? nullptr : &event.error());
    if (NextArrival(in).active != nullptr) return gone;
    in.gone = gone;
    return true;
  }
  switch (event.value()) {
    case Endpoint::Event::kFrame:
      return ReceiveFrame(in);
    case Endpoint::Event::kPayload:
      FFR_TRY(FinishPiece(in));
      return true;
    default:
      in.is_ready = false;
      return false;
  }
}

Result<bool> Exchange::ReceiveFrame(Incoming& in) {
  const Endpoint& endpoint = *in.link.endpoint;
  switch (endpoint.header().type) {
    case FrameType::kCollectiveData: {
      auto data = CollectiveData::Decode(endpoint.body());
      if (!data) return OfRank(in.link.rank, std::move(data).error());
      in.data = data.value();
      in.is_held = true;
      FFR_TRY(Place(in));
      return true;
    }
    case FrameType::kPing: {
      const auto waiting = GroupWaiting::Decode(endpoint.body());
      if (!waiting) return OfRank(in.link.rank, waiting.error());
      FFR_TRY(NoteWaiting(in, waiting.value().rank));
      return true;
    }
    case FrameType::kError:
      return LastWord(in.link);
    default:
      return Unexpected(
          in, "sent a frame of type " + std::to_string(static_cast<int>(endpoint.header().type)));
  }
}

// `in.data` has arrived, its payload has not. Lets it land, if it may.
Result<bool> Exchange::Place(Incoming& in) {
  const CollectiveData& data = in.data;
  if (data.sequence >= next_sequence_ && NextArrival(in).active == nullptr)
    return false;  // We are behind: the frame waits where it is until we submit.
  Active* const active = ActiveOf(data.sequence);
  if (active != nullptr) {
    const Operation& ours = active->operation;
    const Plan theirs{data.collective, data.algorithm, data.root, data.count};
    if (theirs != ours.plan || data.type != ours.type || data.op != ours.op)
      return Differs(in, ours);
  }
  const Next next = NextArrival(in);
  if (active == nullptr || next.active != active)
    return Unexpected(in, "is at operation " + std::to_string(data.sequence));
  const Arrival& arrival = active->schedule.arrivals[next.index];
  const Range piece = NextPiece(*active, arrival, active->arrivals[next.index]);
  const std::uint64_t size_bytes = piece.size() * WireSize(active->operation);
  Endpoint& endpoint = *in.link.endpoint;
  if (data.step != arrival.step || data.first != piece.begin ||
      endpoint.header().payload_size_bytes != size_bytes)
    return Unexpected(in, "sent a piece out of order");
  if (!HasArrived(*active, arrival.step, piece) || !HasLeft(*active, arrival.step, piece))
    return false;

  in.is_held = false;
  in.landing_for = active;
  in.landing = next.index;
  data_at_ = Clock::now();
  counters_->bytes_received.fetch_add(
      net::FrameHeader::kEncodedSizeBytes + endpoint.body().size() + size_bytes,
      std::memory_order_relaxed);
  if (size_bytes == 0) {
    FFR_TRY(FinishPiece(in));
    return true;
  }
  const bool lands_aside = arrival.reduces || IsRounded(active->operation);
  if (lands_aside && !in.scratch)
    in.scratch = FFR_TRY(BufferPool::Process().Take(group_.chunk_size_bytes));
  std::byte* const place = lands_aside ? in.scratch->data() : At(active->operation, piece.begin);
  const std::span<std::byte> places[] = {{place, size_bytes}};
  FFR_TRY(endpoint.ReceivePayload(places));
  return true;
}

// The payload of `in.data` has landed.
Result<void> Exchange::FinishPiece(Incoming& in) {
  Active& active = *std::exchange(in.landing_for, nullptr);
  const Operation& operation = active.operation;
  const Arrival& arrival = active.schedule.arrivals[in.landing];
  Progress& progress = active.arrivals[in.landing];
  const Range piece = NextPiece(active, arrival, progress);
  const std::uint64_t size_bytes = piece.size() * WireSize(operation);
  std::byte* const place = At(operation, piece.begin);
  const bool is_rounded = IsRounded(operation);
  const bool lands_aside = size_bytes > 0 && (arrival.reduces || is_rounded);
  if (Xxh3({lands_aside ? in.scratch->data() : place, size_bytes}) != in.data.payload_check)
    return Error{ErrorCode::kCorruption, Describe(operation) + ": a piece from rank " +
                                             std::to_string(in.link.rank) +
                                             " fails its check: bytes changed in flight"};
  if (lands_aside && !arrival.reduces) ExpandBf16(piece.size(), in.scratch->data(), place);
  if (lands_aside && arrival.reduces) {
    const bool divides = operation.op == ReduceOp::kAverage && arrival.completes;
    const std::uint32_t divisor = divides ? group_.world_size : 1;
    const auto before = Clock::now();
    if (is_rounded)
      ReduceFromBf16(operation.op, divisor, arrival.completes, piece.size(), in.scratch->data(),
                     place);
    else
      Reduce(operation.type, operation.op, divisor, piece.size(), in.scratch->data(), place);
    const std::chrono::nanoseconds took = Clock::now() - before;
    counters_->reduce_ns.fetch_add(static_cast<std::uint64_t>(took.count()),
                                   std::memory_order_relaxed);
  }
  data_at_ = Clock::now();
  if (!arrival.reduces) progress.checks.push_back(in.data.payload_check);
  progress.next = piece.end;
  progress.is_done = piece.end >= arrival.range.end;
  if (progress.is_done) --active.arrivals_open;
  return {};
}

// --- Time and blame ------------------------------------------------------------------------------

// The rank that the oldest operation waits for, as far as we know.
std::uint32_t Exchange::Blamed(Clock::time_point now) {
  const Active& active = active_.front();
  for (std::size_t i = 0; i < active.arrivals.size(); ++i) {
    if (active.arrivals[i].is_done) continue;
    const std::uint32_t peer = active.schedule.arrivals[i].peer;
    const auto& in =
        *std::ranges::find_if(from_, [&](const Incoming& each) { return each.link.rank == peer; });
    const bool has_said = now - in.heard_at < kHeardTicks * tick_ && in.heard_rank != group_.rank;
    return has_said ? in.heard_rank : peer;
  }
  // All has come. Somebody does not take ours.
  for (const Outgoing& out : to_)
    if (out.link.endpoint->bytes_queued() > 0) return out.link.rank;
  return group_.rank;
}

// A peer is held up too. The word travels on until it reaches the one it is about.
Result<void> Exchange::NoteWaiting(Incoming& in, std::uint32_t rank) {
  if (rank >= group_.world_size) return Unexpected(in, "waits for rank " + std::to_string(rank));
  const bool is_new = in.heard_rank != rank;
  in.heard_rank = rank;
  in.heard_at = Clock::now();
  if (is_new && in.heard_at - data_at_ >= tick_) TellWaiting(in.heard_at);
  return {};
}

// Those to whom something is owed, for they wait too.
void Exchange::TellWaiting(Clock::time_point now) {
  told_at_ = now;
  if (active_.empty() || active_.front().arrivals_open == 0) return;
  const auto body = GroupWaiting{Blamed(now)}.Encode();
  for (Outgoing& out : to_) {
    // A queue that stands would only grow: that rank is not listening.
    if (out.gone || out.link.endpoint->bytes_queued() > 0 || NextSend(out).active == nullptr)
      continue;
    if (!out.link.endpoint->Send({.type = FrameType::kPing}, body, {})) continue;
    out.bytes_given += out.link.endpoint->bytes_queued();
    out.is_ready = true;
  }
}

Result<void> Exchange::CheckTime() {
  if (active_.empty()) return {};
  const auto now = Clock::now();
  if (now >= active_.front().deadline) {
    return Error{ErrorCode::kDeadlineExceeded,
                 Describe(active_.front().operation) + ": no end within " +
                     std::to_string(group_.timeout.count()) + " ms: rank " +
                     std::to_string(Blamed(now)) +
                     " does not answer or has not joined the operation"};
  }
  if (now - data_at_ < tick_ || now - told_at_ < tick_) return {};
  TellWaiting(now);
  for (Outgoing& out : to_)
    if (out.is_ready && !out.gone) FFR_TRY(PollOutgoing(out));
  return {};
}

// --- Errors --------------------------------------------------------------------------------------

std::string Exchange::Describe(const Operation& operation) {
  const Plan& plan = operation.plan;
  const std::string of =
      " of " + std::to_string(plan.count) + " " + std::string(NameOf(operation.type));
  const std::string number = std::to_string(operation.sequence);
  const std::string reduced = number + " (" + std::string(NameOf(operation.op)) + of + ")";
  const std::string moved = number + " (" + of.substr(4) + ")";
  switch (plan.collective) {
    case Collective::kAllReduce:
      return "all-reduce " + reduced;
    case Collective::kReduceScatter:
      return "reduce-scatter " + reduced;
    case Collective::kAllGather:
      return "all-gather " + moved;
    case Collective::kBroadcast:
      break;
  }
  return "broadcast from rank " + std::to_string(plan.root) + " " + moved;
}

Error Exchange::Differs(const Incoming& in, const Operation& ours) const {
  const CollectiveData& data = in.data;
  const Operation theirs{data.sequence,
                         nullptr,
                         {data.collective, data.algorithm, data.root, data.count},
                         data.type,
                         data.op};
  return {ErrorCode::kInvalidArgument,
          "rank " + std::to_string(in.link.rank) + " submitted " + Describe(theirs) + " but rank " +
              std::to_string(group_.rank) + " " + Describe(ours) +
              "; all ranks must submit the same operations in the same order"};
}

Error Exchange::Gone(const Link& link, const Error* why) {
  return {ErrorCode::kUnavailable,
          "rank " + std::to_string(link.rank) + " at " + link.endpoint->peer() +
              " has left the group: its process ended or was killed, or it closed its engine" +
              (why != nullptr ? " (" + why->message + ")" : "")};
}

Error Exchange::Unexpected(const Incoming& in, const std::string& what) const {
  return {ErrorCode::kCorruption, "rank " + std::to_string(in.link.rank) + " " + what +
                                      ", which rank " + std::to_string(group_.rank) +
                                      " does not understand; do all ranks run the same version?"};
}

// --- Closing -------------------------------------------------------------------------------------

void Exchange::Close(const Error& why) {
  const auto deadline = Clock::now() + kFarewell;
  std::vector<Endpoint*> peers;
  for (const Outgoing& out : to_) peers.push_back(out.link.endpoint.get());
  for (const Incoming& in : from_) peers.push_back(in.link.endpoint.get());
  for (Endpoint* peer : peers)
    if (peer->fd() >= 0) SendLastWord(*peer, why);
  for (;;) {
    std::vector<pollfd> unsent;
    for (Endpoint* peer : peers) {
      // Errors are no news here, and what still comes in is of no use.
      if (peer->fd() >= 0 && peer->bytes_queued() > 0) (void)peer->Poll();
      if (peer->fd() >= 0 && peer->bytes_queued() > 0) unsent.push_back({peer->fd(), POLLOUT, 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (unsent.empty() || left <= 0) break;
    (void)::poll(unsent.data(), unsent.size(), static_cast<int>(left));
  }
  Close();
}

void Exchange::Close() {
  for (const Outgoing& out : to_) out.link.endpoint->Close();
  for (const Incoming& in : from_) in.link.endpoint->Close();
}

}  // namespace ffrecord::client
