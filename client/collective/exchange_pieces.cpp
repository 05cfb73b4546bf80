#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "client/collective/exchange.h"
#include "client/collective/reduce.h"
#include "client/collective/wire.h"
#include "libffrecord/base/checksum.h"
#include "libffrecord/net/transport/remote_memory.h"

namespace ffrecord::client {
namespace {

using net::Clock;
using net::Endpoint;
using net::FrameType;

// Queued on a link, half sent, just added, and what is left over at the end of the buffer.
constexpr std::uint64_t kStagedChunks = 5;

}  // namespace

// --- Sending -------------------------------------------------------------------------------------

Result<bool> Exchange::Send(Outgoing& out) {
  bool moved = FFR_TRY(SendPieces(out));
  // Pieces in shared memory are there at once, and leave nothing for the socket to do.
  const bool has_sent = moved && out.ring() == nullptr;
  for (Stream& stream : out.streams) {
    if (stream.gone || (!has_sent && !stream.is_ready)) continue;
    if (FFR_TRY(PollOutgoing(out, stream))) moved = true;
  }
  return moved;
}

Result<bool> Exchange::SendPieces(Outgoing& out) {
  bool moved = !out.again.empty() && FFR_TRY(SendAgain(out));
  out.awaits_room = false;
  for (;;) {
    const Next next = NextSend(out);
    if (next.active == nullptr) break;
    if (out.gone) return *out.gone;
    TellLost(out);
    Active& active = *next.active;
    const Transfer& transfer = active.schedule.sends[next.index];
    const Progress& progress = active.sends[next.index];
    const Range piece = PieceAt(active, out.link(), transfer, progress.next);
    if (!HasArrived(active, transfer.step, piece)) break;
    const std::uint64_t element_bytes = WireSize(active.operation);
    Stream* const stream = ChooseStream(out, piece.size() * element_bytes,
                                        (transfer.range.end - piece.end) * element_bytes);
    out.awaits_room = stream == nullptr;
    if (out.awaits_room) break;
    FFR_TRY(SendPiece(out, *stream, active, next.index, piece));
    moved = true;
  }
  return moved;
}

bool Exchange::HasRoom(const Outgoing& out, const Stream& stream) const {
  if (out.ring() != nullptr) return out.ring()->HasRoom();
  const std::uint64_t window_bytes = kQueuedChunksMax * group_.chunk_size_bytes;
  return stream.link.endpoint->bytes_queued() < window_bytes &&
         stream.untaken_bytes < window_bytes && stream.in_flight.size() < kUntakenPiecesMax;
}

Result<void> Exchange::SendPiece(Outgoing& out, Stream& stream, Active& active, std::size_t index,
                                 Range piece) {
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
  if (out.ring() != nullptr)
    ShareData(out, operation, piece, data);
  else
    FFR_TRY(SendData(out, stream, active, index, piece, data));

  sent_at_ = Clock::now();
  Progress& progress = active.sends[index];
  progress.Note(piece, transfer.range);
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
  std::byte* const place = out.ring()->Room().data();
  if (IsRounded(operation))
    EncodeWire(group_.wire, data.shift, piece.size(), bytes, place);
  else if (size_bytes > 0)
    std::memcpy(place, bytes, size_bytes);
  out.ring()->Publish(data.Encode(), size_bytes);
  counters_->bytes_shared.fetch_add(size_bytes, std::memory_order_relaxed);
}

Result<void> Exchange::SendData(Outgoing& out, Stream& stream, Active& active, std::size_t index,
                                Range piece, CollectiveData data) {
  const Transfer& transfer = active.schedule.sends[index];
  std::span<const std::byte> bytes =
      FFR_TRY(WireBytes(stream, active.operation, piece, data.shift));
  const auto check = KnownCheck(
      active, transfer, (piece.begin - transfer.range.begin) / PieceMax(active, out.link()));
  data.payload_check = check ? *check : Xxh3(bytes);
  InFlight flying{.active = &active,
                  .step = transfer.step,
                  .range = piece,
                  .size_bytes = bytes.size(),
                  .data = data};
  if (out.hears_taken() && bytes.size() <= kCopiedMax) {
    flying.active = nullptr;
    flying.copy.assign(bytes.begin(), bytes.end());
    bytes = flying.copy;
  } else {
    ++active.pieces_in_flight;
  }
  return Give(out, stream, std::move(flying), bytes);
}

// Queues the frame. It goes over another stream if this one turns out to be gone.
Result<void> Exchange::Give(Outgoing& out, Stream& stream, InFlight flying,
                            std::span<const std::byte> bytes) {
  Endpoint& endpoint = *stream.link.endpoint;
  const std::uint64_t queued_before = endpoint.bytes_queued();
  flying.place = PlaceFor(stream, bytes.size());
  auto sent = flying.place ? Write(stream, flying, bytes)
                           : endpoint.Send({.type = FrameType::kCollectiveData},
                                           flying.data.Encode(), {&bytes, 1});
  if (!sent) {
    if (!out.hears_taken()) return Gone(stream.link, &sent.error());
    out.again.push_back(std::move(flying));
    return LoseStream(out, stream, sent.error().message);
  }
  const std::uint64_t size_bytes = endpoint.bytes_queued() - queued_before;
  stream.bytes_given += size_bytes;
  flying.mark = stream.bytes_given;
  flying.number = stream.pieces_given++;
  flying.given_at = Clock::now();
  if (out.hears_taken()) stream.untaken_bytes += bytes.size();
  stream.in_flight.push_back(std::move(flying));
  counters_->bytes_sent.fetch_add(size_bytes, std::memory_order_relaxed);
  return {};
}

// Where the peer has room for a piece to be written, if it has.
std::optional<Range> Exchange::PlaceFor(const Stream& stream, std::uint64_t size_bytes) {
  const auto& ring = stream.link.ring_there;
  if (!ring || size_bytes <= kWrittenMin) return std::nullopt;
  for (const std::uint64_t begin : {stream.place_next, std::uint64_t{0}}) {
    const Range place{begin, begin + size_bytes};
    const auto is_taken = [&](const InFlight& flying) {
      return flying.place && flying.place->Touches(place);
    };
    if (place.end <= ring->size_bytes && std::ranges::none_of(stream.in_flight, is_taken))
      return place;
  }
  return std::nullopt;
}

Result<void> Exchange::Write(Stream& stream, const InFlight& flying,
                             std::span<const std::byte> bytes) {
  const Range& place = *flying.place;
  stream.place_next = (place.end + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
  const GroupRing& ring = *stream.link.ring_there;
  const net::RemoteMemory::PlacedPiece piece{{.bytes = bytes},
                                             {ring.memory.address + place.begin, ring.memory.key}};
  return stream.link.endpoint->remote_memory()->SendPlaced(
      {.type = FrameType::kCollectivePlaced},
      CollectivePlaced{flying.data, place.begin, bytes.size()}.Encode(), {&piece, 1});
}

// What only passes through us has been checked, and needs no second hash.
std::optional<std::uint64_t> Exchange::KnownCheck(const Active& active, const Transfer& send,
                                                  std::uint64_t piece_index) {
  for (std::size_t i = 0; i < active.arrivals.size(); ++i) {
    const Arrival& arrival = active.schedule.arrivals[i];
    if (arrival.step >= send.step) break;
    const auto& checks = active.arrivals[i].checks;  // None of what came through shared memory.
    if (!arrival.reduces && arrival.range == send.range && piece_index < checks.size())
      return checks[piece_index];  // None if that one has not come yet.
  }
  return std::nullopt;
}

// Where the piece is sent from. What is rounded for the wire is rounded in the array too, so that
// all ranks go on with the same bits.
Result<std::span<const std::byte>> Exchange::WireBytes(Stream& stream, const Operation& operation,
                                                       Range piece, std::int32_t shift) const {
  const std::uint64_t size_bytes = piece.size() * WireSize(operation);
  if (!IsRounded(operation))
    return std::span<const std::byte>(At(operation, piece.begin), size_bytes);
  if (!stream.staging)
    stream.staging = FFR_TRY(BufferPool::Process().Take(kStagedChunks * group_.chunk_size_bytes));
  if (stream.staging_next + size_bytes > stream.staging->size()) stream.staging_next = 0;
  std::byte* const place = stream.staging->data() + stream.staging_next;
  stream.staging_next += size_bytes;
  EncodeWire(group_.wire, shift, piece.size(), At(operation, piece.begin), place);
  return std::span<const std::byte>(place, size_bytes);
}

void Exchange::TakeSent(Stream& stream) {
  const std::uint64_t left = stream.bytes_given - stream.link.endpoint->bytes_queued();
  while (!stream.in_flight.empty() && stream.in_flight.front().mark <= left) {
    --stream.in_flight.front().active->pieces_in_flight;
    stream.in_flight.pop_front();
  }
}

// Sends what is queued. Who takes our data says that it has, where there are several streams, and
// else nothing but its last word.
Result<bool> Exchange::PollOutgoing(Outgoing& out, Stream& stream) {
  stream.is_ready = false;
  Endpoint& endpoint = *stream.link.endpoint;
  const std::uint64_t queued_before = endpoint.bytes_queued();
  auto event = endpoint.Poll();
  bool moved = false;
  while (event && event.value() == Endpoint::Event::kFrame) {
    if (endpoint.header().type == FrameType::kError) return LastWord(stream.link);
    if (endpoint.header().type != FrameType::kCollectiveTaken || !out.hears_taken())
      return Error{ErrorCode::kCorruption, "rank " + std::to_string(out.rank()) +
                                               " sent a frame against the data's direction"};
    FFR_TRY(TakeTaken(stream));
    moved = true;
    event = endpoint.Poll();
  }
  if (!out.hears_taken()) TakeSent(stream);
  if (event && event.value() == Endpoint::Event::kNone)
    return moved || endpoint.bytes_queued() < queued_before;
  if (out.hears_taken()) {
    FFR_TRY(LoseStream(out, stream, event ? "it was closed" : event.error().message));
    return true;
  }
  const Error gone = Gone(stream.link, event ? nullptr : &event.error());
  if (endpoint.bytes_queued() > 0 || NextSend(out).active != nullptr) return gone;
  stream.gone = out.gone = gone;  // It may have ended in good order: nothing is owed to it.
  return true;
}

// --- Receiving -----------------------------------------------------------------------------------

Result<bool> Exchange::Receive(Incoming& in) {
  if (in.is_held) {
    if (FFR_TRY(Place(in))) return true;
    return in.tells_taken && SetItAside(in);
  }
  if (in.link.ring_in && in.link.ring_in->HasPiece()) return TakeShared(in);
  if (in.gone) {
    if (IsGone(in) && NextArrival(in).active != nullptr) return *in.gone;
    return false;
  }
  if (std::exchange(in.link.has_frame, false)) return ReceiveFrame(in);
  if (!in.is_ready) return false;
  auto event = in.link.endpoint->Poll();
  if (!event || event.value() == Endpoint::Event::kClosed) {
    // Not a lost connection but a frame that cannot be right.
    if (!event && event.error().code == ErrorCode::kCorruption)
      return OfRank(in.link.rank, std::move(event).error());
    in.gone = Gone(in.link, event ? nullptr : &event.error());
    in.landing = {};
    in.aside = Incoming::Aside::kNo;
    // What it had left in shared memory is still there.
    const bool has_left = in.link.ring_in && in.link.ring_in->HasPiece();
    if (IsGone(in) && NextArrival(in).active != nullptr && !has_left) return *in.gone;
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
    case FrameType::kCollectiveData:
      return TakeData(in);
    case FrameType::kCollectivePlaced:
      return TakePlaced(in);
    case FrameType::kPing: {
      const auto waiting = GroupWaiting::Decode(endpoint.body());
      if (!waiting) return OfRank(in.link.rank, waiting.error());
      FFR_TRY(NoteWaiting(in, waiting.value()));
      return true;
    }
    case FrameType::kError:
      return LastWord(in.link);
    default:
      return Unexpected(
          in, "sent a frame of type " + std::to_string(static_cast<int>(endpoint.header().type)));
  }
}

Result<bool> Exchange::TakeData(Incoming& in) {
  if (in.link.ring_in) return Unexpected(in, "sent data beside shared memory");
  auto data = CollectiveData::Decode(in.link.endpoint->body());
  if (!data) return OfRank(in.link.rank, std::move(data).error());
  in.is_placed = false;
  return TakePiece(in, data.value());
}

// A piece that its sender has written into our memory.
Result<bool> Exchange::TakePlaced(Incoming& in) {
  auto placed = CollectivePlaced::Decode(in.link.endpoint->body());
  if (!placed) return OfRank(in.link.rank, std::move(placed).error());
  const auto& [data, offset_bytes, size_bytes] = placed.value();
  const std::span<const std::byte> ring = in.link.ring_here.bytes();
  if (ring.empty() || offset_bytes > ring.size() || size_bytes > ring.size() - offset_bytes ||
      size_bytes > group_.chunk_size_bytes)
    return Unexpected(in, "says that it wrote where it has no room");
  in.shared = ring.subspan(offset_bytes, size_bytes);
  in.is_placed = true;
  return TakePiece(in, data);
}

Result<bool> Exchange::TakePiece(Incoming& in, const CollectiveData& data) {
  in.data = data;
  in.is_held = true;
  in.come_at = Clock::now();
  ++in.pieces_come;
  FFR_TRY(Place(in));
  return true;
}

// `in.data` has arrived, its payload has not. Lets it land, if it may.
Result<bool> Exchange::Place(Incoming& in) {
  Endpoint& endpoint = *in.link.endpoint;
  const std::uint64_t size_bytes =
      in.link.ring_in || in.is_placed ? in.shared.size() : endpoint.header().payload_size_bytes;
  Target target;
  const Due due = FFR_TRY(FindPlace(in, in.data, size_bytes, target));
  if (due == Due::kLater) return false;
  if (due == Due::kNow && in.tells_taken && !TakesOver(in, in.come_at, target)) return false;

  in.is_held = false;
  data_at_ = Clock::now();
  if (due == Due::kNow) KeepSent(*target.active, in.data.step, target.piece);
  if (in.link.ring_in) {
    Take(target, in.data, in.shared);
    in.link.ring_in->Pop();
    return true;
  }
  in.waited = std::chrono::duration_cast<std::chrono::microseconds>(data_at_ - in.come_at);
  counters_->bytes_received.fetch_add(
      net::FrameHeader::kEncodedSizeBytes + endpoint.body().size() + size_bytes,
      std::memory_order_relaxed);
  if (in.is_placed) {
    if (due == Due::kNow) {
      FFR_TRY(CheckPiece(in, target, in.data, in.shared));
      Take(target, in.data, in.shared);
    }
    FFR_TRY(TellTaken(in, in.pieces_come - 1, size_bytes));
    return true;
  }
  if (due == Due::kNever) in.aside = Incoming::Aside::kDrop;
  in.landing = target;
  if (size_bytes == 0) {
    FFR_TRY(FinishPiece(in));
    return true;
  }
  const bool lands_aside = due == Due::kNever || LandsAside(target);
  if (lands_aside && !in.scratch)
    in.scratch = FFR_TRY(BufferPool::Process().Take(group_.chunk_size_bytes));
  std::byte* const place =
      lands_aside ? in.scratch->data() : At(target.active->operation, target.piece.begin);
  const std::span<std::byte> places[] = {{place, size_bytes}};
  FFR_TRY(endpoint.ReceivePayload(places));
  return true;
}

// What is added, or comes as another type.
bool Exchange::LandsAside(const Target& target) const {
  return target.active->schedule.arrivals[target.index].reduces ||
         IsRounded(target.active->operation);
}

// Where a piece of so many bytes belongs, and whether that is free. Fails if there is no such
// place.
Result<Exchange::Due> Exchange::FindPlace(const Incoming& in, const CollectiveData& data,
                                          std::uint64_t size_bytes, Target& target) {
  // We are behind: the frame waits where it is until we submit.
  if (data.sequence >= next_sequence_ && (in.tells_taken || NextArrival(in).active == nullptr))
    return Due::kLater;
  Active* const active = ActiveOf(data.sequence);
  if (active != nullptr) {
    const Operation& ours = active->operation;
    const Plan theirs{data.collective, data.algorithm, data.root, data.count};
    if (theirs != ours.plan || data.type != ours.type || data.op != ours.op)
      return Differs(in, data, ours);
  }
  if (active == nullptr && in.tells_taken) return Due::kNever;
  const auto index = active != nullptr ? FindArrival(in, *active, data) : std::nullopt;
  if (!index) return Unexpected(in, "is at operation " + std::to_string(data.sequence));
  const Arrival& arrival = active->schedule.arrivals[*index];
  const Progress& progress = active->arrivals[*index];
  const bool is_in_range = data.first >= arrival.range.begin && data.first <= arrival.range.end &&
                           (data.first - arrival.range.begin) % PieceMax(*active, in.link) == 0;
  if (data.step != arrival.step || !is_in_range || (data.first != progress.next && !in.tells_taken))
    return Unexpected(in, "sent a piece out of order");
  target = {active, *index, PieceAt(*active, in.link, arrival, data.first)};
  if (size_bytes != target.piece.size() * WireSize(active->operation))
    return Unexpected(in, "sent a piece out of order");
  if (progress.is_done || (target.piece.size() > 0 && progress.Covers(target.piece)))
    return Due::kNever;
  const bool is_free = HasArrived(*active, arrival.step, target.piece) &&
                       HasLeft(*active, arrival.step, target.piece);
  return is_free ? Due::kNow : Due::kLater;
}

// Which of the arrivals of `active` it is a piece of.
std::optional<std::size_t> Exchange::FindArrival(const Incoming& in, const Active& active,
                                                 const CollectiveData& data) {
  if (!in.tells_taken) {
    const Next next = NextArrival(in);
    return next.active == &active ? std::optional(next.index) : std::nullopt;
  }
  for (std::size_t i = 0; i < active.arrivals.size(); ++i) {
    const Arrival& arrival = active.schedule.arrivals[i];
    if (arrival.peer == in.link.rank && arrival.step == data.step &&
        data.first >= arrival.range.begin &&
        (data.first < arrival.range.end || arrival.range.size() == 0))
      return i;
  }
  return std::nullopt;
}

// The payload of `in.data` has landed.
Result<void> Exchange::FinishPiece(Incoming& in) {
  const Target target = std::exchange(in.landing, {});
  const auto aside = std::exchange(in.aside, Incoming::Aside::kNo);
  if (aside == Incoming::Aside::kKeep) {
    KeepAside(in);
    return {};
  }
  const std::uint64_t size_bytes = in.link.endpoint->header().payload_size_bytes;
  if (aside == Incoming::Aside::kNo) {
    const bool lands_aside = size_bytes > 0 && LandsAside(target);
    const std::span<const std::byte> landed(
        lands_aside ? in.scratch->data() : At(target.active->operation, target.piece.begin),
        size_bytes);
    FFR_TRY(CheckPiece(in, target, in.data, landed));
    Take(target, in.data, landed);
  }
  if (!in.tells_taken) return {};
  return TellTaken(in, in.pieces_come - 1, size_bytes);
}

Result<void> Exchange::CheckPiece(const Incoming& in, const Target& target,
                                  const CollectiveData& data, std::span<const std::byte> bytes) {
  Active& active = *target.active;
  if (Xxh3(bytes) != data.payload_check)
    return Error{ErrorCode::kCorruption, Describe(active.operation) + ": a piece from rank " +
                                             std::to_string(in.link.rank) +
                                             " fails its check: bytes changed in flight"};
  const Arrival& arrival = active.schedule.arrivals[target.index];
  if (arrival.reduces || target.piece.size() == 0) return {};
  auto& checks = active.arrivals[target.index].checks;
  const std::uint64_t index =
      (target.piece.begin - arrival.range.begin) / PieceMax(active, in.link);
  if (checks.size() <= index) checks.resize(index + 1);
  checks[index] = data.payload_check;
  return {};
}

// Adds or copies `bytes`, the payload of `data`, to where they belong, if they are not there.
void Exchange::Take(const Target& target, const CollectiveData& data,
                    std::span<const std::byte> bytes) {
  Active& active = *target.active;
  const Operation& operation = active.operation;
  const Arrival& arrival = active.schedule.arrivals[target.index];
  const Range& piece = target.piece;
  std::byte* const place = At(operation, piece.begin);
  if (arrival.reduces && piece.size() > 0)
    AddPiece(operation, arrival, piece, data.shift, bytes);
  else if (IsRounded(operation))
    DecodeWire(group_.wire, data.shift, piece.size(), bytes.data(), place);
  else if (!bytes.empty() && bytes.data() != place)
    std::memcpy(place, bytes.data(), bytes.size());

  data_at_ = Clock::now();
  Progress& progress = active.arrivals[target.index];
  progress.Note(piece, arrival.range);
  if (!progress.is_done) return;
  --active.arrivals_open;
  while (active.arrivals_from < active.arrivals.size() &&
         active.arrivals[active.arrivals_from].is_done)
    ++active.arrivals_from;
}

void Exchange::AddPiece(const Operation& operation, const Arrival& arrival, Range piece,
                        std::int32_t shift, std::span<const std::byte> bytes) {
  std::byte* const place = At(operation, piece.begin);
  const auto before = Clock::now();
  if (IsRounded(operation)) {
    ReduceFromWire(group_.wire, shift, operation.op, piece.size(), bytes.data(), place);
    // As all get it who are sent it.
    if (arrival.completes) RoundAsSent(group_.wire, piece.size(), place);
  } else {
    Reduce(operation.type, operation.op, piece.size(), bytes.data(), place);
  }
  CountReducing(before);
}

// What this rank adds to an average is divided before it is sent or added to.
void Exchange::DivideOwn(const Operation& operation) {
  if (operation.op != ReduceOp::kAverage) return;
  const auto before = Clock::now();
  Divide(operation.type, group_.world_size, operation.plan.count, operation.data);
  CountReducing(before);
}

void Exchange::CountReducing(Clock::time_point since) {
  const std::chrono::nanoseconds took = Clock::now() - since;
  counters_->reduce_ns.fetch_add(static_cast<std::uint64_t>(took.count()),
                                 std::memory_order_relaxed);
}

}  // namespace ffrecord::client
