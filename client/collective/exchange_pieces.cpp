#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "client/collective/exchange.h"
#include "client/collective/reduce.h"
#include "client/collective/wire.h"
#include "libffrecord/base/checksum.h"

namespace ffrecord::client {
namespace {

using net::Clock;
using net::Endpoint;
using net::FrameType;

// Queued on a link, half sent, just added, and what is left over at the end of the buffer.
constexpr std::uint64_t kStagedChunks = 5;

std::byte* At(const Operation& operation, std::uint64_t element) {
  return operation.data + element * SizeOf(operation.type);
}

}  // namespace

// --- Sending -------------------------------------------------------------------------------------

Result<bool> Exchange::Send(Outgoing& out) {
  bool moved = FFR_TRY(SendPieces(out));
  // Pieces in shared memory are there at once, and leave nothing for the socket to do.
  const bool has_sent = moved && out.link.ring_out == nullptr;
  if (out.gone || (!has_sent && !out.is_ready)) return moved;
  if (FFR_TRY(PollOutgoing(out))) moved = true;
  return moved;
}

Result<bool> Exchange::SendPieces(Outgoing& out) {
  bool moved = false;
  out.awaits_room = false;
  for (;;) {
    const Next next = NextSend(out);
    if (next.active == nullptr) break;
    if (out.gone) return *out.gone;
    const Transfer& transfer = next.active->schedule.sends[next.index];
    const Range piece = NextPiece(*next.active, out.link, transfer, next.active->sends[next.index]);
    if (!HasArrived(*next.active, transfer.step, piece)) break;
    out.awaits_room = !HasRoom(out);
    if (out.awaits_room) break;
    FFR_TRY(SendPiece(out, *next.active, next.index, piece));
    moved = true;
  }
  return moved;
}

bool Exchange::HasRoom(const Outgoing& out) const {
  if (out.link.ring_out) return out.link.ring_out->HasRoom();
  return out.link.endpoint->bytes_queued() < kQueuedChunksMax * group_.chunk_size_bytes;
}

Result<void> Exchange::SendPiece(Outgoing& out, Active& active, std::size_t index, Range piece) {
  const Operation& operation = active.operation;
  const Transfer& transfer = active.schedule.sends[index];
  const CollectiveData data{.sequence = operation.sequence,
                            .count = operation.plan.count,
                            .first = piece.begin,
                            .step = transfer.step,
                            .type = operation.type,
                            .op = operation.op,
                            .collective = operation.plan.collective,
                            .algorithm = operation.plan.algorithm,
                            .root = operation.plan.root,
                            .shift = IsRounded(operation) ? WireShift(group_.wire, piece.size(),
                                                                      At(operation, piece.begin))
                                                          : 0};
  if (out.link.ring_out)
    ShareData(out, operation, piece, data);
  else
    FFR_TRY(SendData(out, active, index, piece, data));

  Progress& progress = active.sends[index];
  progress.next = piece.end;
  progress.is_done = piece.end >= transfer.range.end;
  if (!progress.is_done) return {};
  --active.sends_open;
  while (active.sends_from < active.sends.size() && active.sends[active.sends_from].is_done)
    ++active.sends_from;
  return {};
}

// Memory has checks of its own: no hash.
void Exchange::ShareData(Outgoing& out, const Operation& operation, Range piece,
                         const CollectiveData& data) {
  const std::uint64_t size_bytes = piece.size() * WireSize(operation);
  std::byte* const bytes = At(operation, piece.begin);
  std::byte* const place = out.link.ring_out->Room().data();
  if (IsRounded(operation))
    EncodeWire(group_.wire, data.shift, piece.size(), bytes, place);
  else if (size_bytes > 0)
    std::memcpy(place, bytes, size_bytes);
  out.link.ring_out->Publish(data.Encode(), size_bytes);
  counters_->bytes_shared.fetch_add(size_bytes, std::memory_order_relaxed);
}

Result<void> Exchange::SendData(Outgoing& out, Active& active, std::size_t index, Range piece,
                                CollectiveData data) {
  const Transfer& transfer = active.schedule.sends[index];
  Endpoint& endpoint = *out.link.endpoint;
  const std::span<const std::byte> bytes =
      FFR_TRY(WireBytes(out, active.operation, piece, data.shift));
  const auto check = KnownCheck(active, transfer,
                                (piece.begin - transfer.range.begin) / PieceMax(active, out.link));
  data.payload_check = check ? *check : Xxh3(bytes);
  const std::uint64_t queued_before = endpoint.bytes_queued();
  auto sent = endpoint.Send({.type = FrameType::kCollectiveData}, data.Encode(), {&bytes, 1});
  if (!sent) return Gone(out.link, &sent.error());
  const std::uint64_t size_bytes = endpoint.bytes_queued() - queued_before;
  out.bytes_given += size_bytes;
  out.in_flight.push_back({&active, transfer.step, piece, out.bytes_given});
  ++active.pieces_in_flight;
  counters_->bytes_sent.fetch_add(size_bytes, std::memory_order_relaxed);
  return {};
}

// What only passes through us has been checked, and needs no second hash.
std::optional<std::uint64_t> Exchange::KnownCheck(const Active& active, const Transfer& send,
                                                  std::uint64_t piece_index) {
  for (std::size_t i = 0; i < active.arrivals.size(); ++i) {
    const Arrival& arrival = active.schedule.arrivals[i];
    if (arrival.step >= send.step) break;
    const auto& checks = active.arrivals[i].checks;  // None of what came through shared memory.
    if (!arrival.reduces && arrival.range == send.range && piece_index < checks.size())
      return checks[piece_index];
  }
  return std::nullopt;
}

// Where the piece is sent from. What is rounded for the wire is rounded in the array too, so that
// all ranks go on with the same bits.
Result<std::span<const std::byte>> Exchange::WireBytes(Outgoing& out, const Operation& operation,
                                                       Range piece, std::int32_t shift) const {
  const std::uint64_t size_bytes = piece.size() * WireSize(operation);
  if (!IsRounded(operation))
    return std::span<const std::byte>(At(operation, piece.begin), size_bytes);
  if (!out.staging)
    out.staging = FFR_TRY(BufferPool::Process().Take(kStagedChunks * group_.chunk_size_bytes));
  if (out.staging_next + size_bytes > out.staging->size()) out.staging_next = 0;
  std::byte* const place = out.staging->data() + out.staging_next;
  out.staging_next += size_bytes;
  EncodeWire(group_.wire, shift, piece.size(), At(operation, piece.begin), place);
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
  if (in.is_held) return Place(in);
  if (in.link.ring_in && in.link.ring_in->HasPiece()) return TakeShared(in);
  if (in.gone) {
    if (NextArrival(in).active != nullptr) return *in.gone;
    return false;
  }
  if (!in.is_ready) return false;
  auto event = in.link.endpoint->Poll();
  if (!event || event.value() == Endpoint::Event::kClosed) {
    // Not a lost connection but a frame that cannot be right.
    if (!event && event.error().code == ErrorCode::kCorruption)
      return OfRank(in.link.rank, std::move(event).error());
    const Error gone = Gone(in.link, event ? nullptr : &event.error());
    // What it had left in shared memory is still there.
    const bool has_left = in.link.ring_in && in.link.ring_in->HasPiece();
    if (NextArrival(in).active != nullptr && !has_left) return gone;
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

Result<bool> Exchange::TakeShared(Incoming& in) {
  const auto piece = in.link.ring_in->Front();
  if (!piece) return OfRank(in.link.rank, piece.error());
  auto data = CollectiveData::Decode(piece.value().head());
  if (!data) return OfRank(in.link.rank, std::move(data).error());
  in.data = data.value();
  in.shared = piece.value().payload;
  in.is_held = true;
  FFR_TRY(Place(in));
  return true;
}

Result<bool> Exchange::ReceiveFrame(Incoming& in) {
  const Endpoint& endpoint = *in.link.endpoint;
  switch (endpoint.header().type) {
    case FrameType::kCollectiveData: {
      if (in.link.ring_in) return Unexpected(in, "sent data beside shared memory");
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
  const Range piece = NextPiece(*active, in.link, arrival, active->arrivals[next.index]);
  const std::uint64_t size_bytes = piece.size() * WireSize(active->operation);
  Endpoint& endpoint = *in.link.endpoint;
  const std::uint64_t came_bytes =
      in.link.ring_in ? in.shared.size() : endpoint.header().payload_size_bytes;
  if (data.step != arrival.step || data.first != piece.begin || came_bytes != size_bytes)
    return Unexpected(in, "sent a piece out of order");
  if (!HasArrived(*active, arrival.step, piece) || !HasLeft(*active, arrival.step, piece))
    return false;

  in.is_held = false;
  in.landing_for = active;
  in.landing = next.index;
  data_at_ = Clock::now();
  if (in.link.ring_in) {
    Take(in, in.shared);
    in.link.ring_in->Pop();
    return true;
  }
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
  Active& active = *in.landing_for;
  const Arrival& arrival = active.schedule.arrivals[in.landing];
  const Range piece = NextPiece(active, in.link, arrival, active.arrivals[in.landing]);
  const std::uint64_t size_bytes = piece.size() * WireSize(active.operation);
  const bool lands_aside = size_bytes > 0 && (arrival.reduces || IsRounded(active.operation));
  const std::span<const std::byte> landed(
      lands_aside ? in.scratch->data() : At(active.operation, piece.begin), size_bytes);
  if (Xxh3(landed) != in.data.payload_check)
    return Error{ErrorCode::kCorruption, Describe(active.operation) + ": a piece from rank " +
                                             std::to_string(in.link.rank) +
                                             " fails its check: bytes changed in flight"};
  if (!arrival.reduces) active.arrivals[in.landing].checks.push_back(in.data.payload_check);
  Take(in, landed);
  return {};
}

// Adds or copies `bytes`, the payload of `in.data`, to where they belong, if they are not there.
void Exchange::Take(Incoming& in, std::span<const std::byte> bytes) {
  Active& active = *std::exchange(in.landing_for, nullptr);
  const Operation& operation = active.operation;
  const Arrival& arrival = active.schedule.arrivals[in.landing];
  Progress& progress = active.arrivals[in.landing];
  const Range piece = NextPiece(active, in.link, arrival, progress);
  std::byte* const place = At(operation, piece.begin);
  if (arrival.reduces && piece.size() > 0)
    AddPiece(operation, arrival, piece, in.data.shift, bytes);
  else if (IsRounded(operation))
    DecodeWire(group_.wire, in.data.shift, piece.size(), bytes.data(), place);
  else if (!bytes.empty() && bytes.data() != place)
    std::memcpy(place, bytes.data(), bytes.size());

  data_at_ = Clock::now();
  progress.next = piece.end;
  progress.is_done = piece.end >= arrival.range.end;
  if (!progress.is_done) return;
  --active.arrivals_open;
  while (active.arrivals_from < active.arrivals.size() &&
         active.arrivals[active.arrivals_from].is_done)
    ++active.arrivals_from;
}

void Exchange::AddPiece(const Operation& operation, const Arrival& arrival, Range piece,
                        std::int32_t shift, std::span<const std::byte> bytes) {
  std::byte* const place = At(operation, piece.begin);
  const bool divides = operation.op == ReduceOp::kAverage && arrival.completes;
  const std::uint32_t divisor = divides ? group_.world_size : 1;
  const auto before = Clock::now();
  if (IsRounded(operation)) {
    ReduceFromWire(group_.wire, shift, operation.op, divisor, piece.size(), bytes.data(), place);
    // As all get it who are sent it.
    if (arrival.completes) RoundAsSent(group_.wire, piece.size(), place);
  } else {
    Reduce(operation.type, operation.op, divisor, piece.size(), bytes.data(), place);
  }
  const std::chrono::nanoseconds took = Clock::now() - before;
  counters_->reduce_ns.fetch_add(static_cast<std::uint64_t>(took.count()),
                                 std::memory_order_relaxed);
}

}  // namespace ffrecord::client
