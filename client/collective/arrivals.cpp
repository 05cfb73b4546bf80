#include "client/collective/arrivals.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "libffrecord/base/checksum.h"

namespace ffrecord::client {
namespace {

using namespace exchange;

// Small pieces are not worth a word each.
constexpr std::uint32_t kUntoldPiecesMax = 32;
// A stream on which a piece stands for so many ticks while it has come on another is given up.
constexpr int kStandingTicks = 8;

std::uint32_t WaitedUs(Clock::duration waited) {
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(waited).count(), 0,
      std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace

Arrivals::Arrivals(std::vector<Channel> links, const ExchangeGroup& group, const PieceWork& work,
                   ExchangeCounters& counters, Operations& operations,
                   std::deque<PeerStreams>& peers, Blame& blame)
    : group_(group),
      tick_(group.tick()),
      work_(work),
      counters_(counters),
      operations_(operations),
      peers_(peers),
      blame_(blame) {
  for (Channel& link : links) {
    const bool tells_taken =
        link.shared_piece_size_bytes == 0 && (group.streams > 1 || link.is_rdma);
    links_.push_back({.channel = std::move(link), .tells_taken = tells_taken});
  }
}

bool Arrivals::HasWaiting() const {
  return !set_aside_.empty() || std::ranges::any_of(links_, &Incoming::is_held);
}

const Error* Arrivals::AllGone() const {
  const bool may_come =
      links_.empty() || HasWaiting() ||
      !std::ranges::all_of(links_, [](const Incoming& each) { return each.gone.has_value(); });
  return may_come ? nullptr : &*links_.front().gone;
}

// --- Pieces come ---------------------------------------------------------------------------------

Result<void> Arrivals::Take(Step& step, const FrameCame& came) {
  Incoming& in = links_[came.link];
  if (in.channel.shared_piece_size_bytes != 0)
    return Unexpected(in, "sent data beside shared memory");
  in.data = came.data;
  in.form = Form::kFrame;
  in.size_bytes = came.size_bytes;
  in.frame_size_bytes = came.frame_size_bytes;
  return TakePiece(step, came.link);
}

// A piece that its sender has written into our memory.
Result<void> Arrivals::Take(Step& step, const PlacedCame& came) {
  Incoming& in = links_[came.link];
  const auto& [data, offset_bytes, size_bytes] = came.placed;
  const std::span<const std::byte> ring = in.channel.ring_here;
  if (ring.empty() || offset_bytes > ring.size() || size_bytes > ring.size() - offset_bytes ||
      size_bytes > group_.chunk_size_bytes)
    return Unexpected(in, "says that it wrote where it has no room");
  in.data = data;
  in.form = Form::kPlaced;
  in.payload = ring.subspan(offset_bytes, size_bytes);
  in.size_bytes = size_bytes;
  in.frame_size_bytes = came.frame_size_bytes;
  return TakePiece(step, came.link);
}

Result<void> Arrivals::Take(Step& step, const SharedCame& came) {
  Incoming& in = links_[came.link];
  in.data = came.data;
  in.form = Form::kShared;
  in.payload = came.payload;
  in.size_bytes = came.payload.size();
  in.is_held = true;
  step.moved = true;
  FFR_TRY(Place(step, came.link));
  return {};
}

Result<void> Arrivals::TakePiece(Step& step, std::size_t link) {
  Incoming& in = links_[link];
  in.is_held = true;
  in.come_at = in.held_at = step.now;
  ++in.pieces_come;
  step.moved = true;
  FFR_TRY(Place(step, link));
  return {};
}

// The head of a piece has arrived, its payload perhaps not. Lets it land, if it may.
Result<bool> Arrivals::Place(Step& step, std::size_t link) {
  Incoming& in = links_[link];
  Target target;
  const Due due = FFR_TRY(FindPlace(in, in.data, in.size_bytes, target));
  if (due == Due::kLater) return LandEarly(step, link, target);
  if (due == Due::kNow && in.tells_taken && !TakesOver(step, link, in.come_at, target))
    return false;

  in.is_held = false;
  step.moved = true;
  blame_.NoteTaken(step.now);
  if (due == Due::kNow) KeepSent(target, in.data.step);
  if (in.form == Form::kShared) {
    Add(step, target, in.data, in.payload);
    step.actions.emplace_back(Pop{link});
    return true;
  }
  in.waited = std::chrono::duration_cast<std::chrono::microseconds>(step.now - in.held_at);
  if (in.form != Form::kLanded) CountReceived(in);
  if (in.form == Form::kFrame) {
    FFR_TRY(LetLand(step, link, due, target));
    return true;
  }
  if (due == Due::kNow) {
    FFR_TRY(Check(in, target, in.data, in.payload));
    Add(step, target, in.data, in.payload);
  }
  if (in.tells_taken) TellTaken(step, link, in.pieces_come - 1, in.size_bytes);
  return true;
}

// A piece that is to be added lands in memory of the connection, so it may land before its place is
// free. Otherwise two ranks that exchange pieces larger than their socket buffers would deadlock:
// neither would read before its own piece, from the same place, has left.
Result<bool> Arrivals::LandEarly(Step& step, std::size_t link, const Target& target) {
  Incoming& in = links_[link];
  if (in.form != Form::kFrame || in.size_bytes == 0 || target.active == nullptr ||
      !LandsAside(target) || (in.tells_taken && !TakesOver(step, link, in.come_at, target)))
    return false;
  in.is_held = false;
  in.is_early = true;
  step.moved = true;
  CountReceived(in);
  FFR_TRY(LetLand(step, link, Due::kLater, target));
  return true;
}

void Arrivals::CountReceived(const Incoming& in) {
  counters_.bytes_received.fetch_add(in.frame_size_bytes + in.size_bytes,
                                     std::memory_order_relaxed);
}

Result<void> Arrivals::LetLand(Step& step, std::size_t link, Due due, const Target& target) {
  Incoming& in = links_[link];
  if (due == Due::kNever) in.aside = Aside::kDrop;
  in.landing = target;
  if (in.size_bytes == 0) return Finish(step, link);
  const bool lands_aside = due == Due::kNever || LandsAside(target);
  if (lands_aside && !in.scratch)
    in.scratch = FFR_TRY(BufferPool::Process().Take(group_.chunk_size_bytes));
  std::byte* const place =
      lands_aside ? in.scratch->data() : target.active->operation.At(target.piece.begin);
  step.actions.emplace_back(Receive{link, {place, in.size_bytes}});
  return {};
}

// Whether the piece is to be added to the array, or arrives as another type than the array has.
bool Arrivals::LandsAside(const Target& target) const {
  return target.active->schedule.arrivals[target.index].reduces ||
         group_.IsRounded(target.active->operation);
}

Result<void> Arrivals::Take(Step& step, const Landed& landed) {
  step.moved = true;
  return Finish(step, landed.link);
}

// The payload of `data` has landed.
Result<void> Arrivals::Finish(Step& step, std::size_t link) {
  Incoming& in = links_[link];
  const Target target = std::exchange(in.landing, {});
  const auto aside = std::exchange(in.aside, Aside::kNo);
  if (aside == Aside::kKeep) {
    KeepAside(link);
    return {};
  }
  if (aside == Aside::kNo) {
    const bool lands_aside = in.size_bytes > 0 && LandsAside(target);
    const std::span<const std::byte> landed(
        lands_aside ? in.scratch->data() : target.active->operation.At(target.piece.begin),
        in.size_bytes);
    if (std::exchange(in.is_early, false)) {
      in.is_held = true;
      in.form = Form::kLanded;
      in.payload = landed;
      in.held_at = step.now;
      FFR_TRY(Place(step, link));
      return {};
    }
    FFR_TRY(Check(in, target, in.data, landed));
    Add(step, target, in.data, landed);
  }
  if (in.tells_taken) TellTaken(step, link, in.pieces_come - 1, in.size_bytes);
  return {};
}

Result<void> Arrivals::Check(const Incoming& in, const Target& target, const CollectiveData& data,
                             std::span<const std::byte> bytes) const {
  ActiveOperation& active = *target.active;
  if (Xxh3(bytes) != data.payload_check)
    return Error{ErrorCode::kCorruption, active.operation.Describe() + ": a piece from rank " +
                                             std::to_string(in.channel.rank) +
                                             " fails its check: bytes changed in flight"};
  const Arrival& arrival = active.schedule.arrivals[target.index];
  if (arrival.reduces || target.piece.size() == 0) return {};
  auto& checks = active.arrivals[target.index].checks;
  const std::uint64_t index = (target.piece.begin - arrival.range.begin) /
                              operations_.PieceMax(active, in.channel.shared_piece_size_bytes);
  if (checks.size() <= index) checks.resize(index + 1);
  checks[index] = data.payload_check;
  return {};
}

void Arrivals::Add(Step& step, const Target& target, const CollectiveData& data,
                   std::span<const std::byte> bytes) {
  ActiveOperation& active = *target.active;
  work_.Place(active.operation, active.schedule.arrivals[target.index], target.piece, data.shift,
              bytes);
  blame_.NoteTaken(step.now);
  active.NoteArrived(target.index, target.piece);
}

// --- Where they belong ---------------------------------------------------------------------------

// Where a piece of so many bytes belongs, and whether that is free. Fails if there is no such
// place.
Result<Arrivals::Due> Arrivals::FindPlace(const Incoming& in, const CollectiveData& data,
                                          std::uint64_t size_bytes, Target& target) {
  // We are behind: the frame waits where it is until we submit.
  if (data.sequence >= operations_.next_sequence() &&
      (in.tells_taken || operations_.NextArrival(in.channel.rank).active == nullptr))
    return Due::kLater;
  ActiveOperation* const active = operations_.Of(data.sequence);
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
  const std::uint64_t most_bytes = in.channel.shared_piece_size_bytes;
  const bool is_in_range =
      data.first >= arrival.range.begin && data.first <= arrival.range.end &&
      (data.first - arrival.range.begin) % operations_.PieceMax(*active, most_bytes) == 0;
  if (data.step != arrival.step || !is_in_range || (data.first != progress.next && !in.tells_taken))
    return Unexpected(in, "sent a piece out of order");
  target = {active, *index, operations_.PieceAt(*active, most_bytes, arrival, data.first)};
  if (size_bytes != target.piece.size() * group_.WireSize(active->operation))
    return Unexpected(in, "sent a piece out of order");
  if (progress.is_done || (target.piece.size() > 0 && progress.Covers(target.piece)))
    return Due::kNever;
  return IsFree(*active, arrival.step, target.piece) ? Due::kNow : Due::kLater;
}

// Which of the arrivals of `active` it is a piece of.
std::optional<std::size_t> Arrivals::FindArrival(const Incoming& in, const ActiveOperation& active,
                                                 const CollectiveData& data) {
  if (!in.tells_taken) {
    const auto next = operations_.NextArrival(in.channel.rank);
    return next.active == &active ? std::optional(next.index) : std::nullopt;
  }
  for (std::size_t i = 0; i < active.arrivals.size(); ++i) {
    const Arrival& arrival = active.schedule.arrivals[i];
    if (arrival.peer == in.channel.rank && arrival.step == data.step &&
        data.first >= arrival.range.begin &&
        (data.first < arrival.range.end || arrival.range.size() == 0))
      return i;
  }
  return std::nullopt;
}

// All that comes to `piece` before that step has been placed, and all that is sent from there in it
// and before has left its memory.
bool Arrivals::IsFree(const ActiveOperation& active, std::uint32_t step, const Range& piece) const {
  if (!active.HasArrived(step, piece) || !active.WasGiven(step, piece)) return false;
  if (active.pieces_in_flight == 0) return true;
  return std::ranges::none_of(
      peers_, [&](const PeerStreams& peer) { return peer.Borrows(active, step, piece); });
}

void Arrivals::KeepSent(const Target& target, std::uint32_t until_step) {
  if (target.active->pieces_in_flight == 0) return;
  for (PeerStreams& peer : peers_) peer.KeepSent(*target.active, until_step, target.piece);
}

// Whether a piece of which the head has come on `link` at that time may be placed. If it is on its
// way on another stream too, one of the two is lost: should it be that one, it will break soon, or
// else not get on.
bool Arrivals::TakesOver(Step& step, std::size_t link, Time come_at, const Target& target) {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    Incoming& other = links_[i];
    if (i == link || other.channel.rank != links_[link].channel.rank ||
        other.landing.active != target.active || other.landing.index != target.index ||
        other.landing.piece != target.piece)
      continue;
    if (step.now - come_at < kStandingTicks * tick_) return false;
    step.actions.emplace_back(CloseLink{i});
    other.gone = Gone(other.channel, nullptr);
    other.landing = {};
  }
  return true;
}

// --- Words to senders ----------------------------------------------------------------------------

// Piece `number` of that stream is in its place.
void Arrivals::TellTaken(Step& step, std::size_t link, std::uint64_t number,
                         std::uint64_t size_bytes) {
  Incoming& in = links_[link];
  CollectiveTaken& untold = in.untold;
  if (untold.pieces > 0 && untold.first + untold.pieces != number) SendTaken(step, link);
  if (untold.pieces == 0) untold.first = number;
  ++untold.pieces;
  untold.waited_us = WaitedUs(in.waited);
  in.untold_bytes += size_bytes;
  // The sender waits for word of large ones, and has room for two chunks.
  if (size_bytes > kCopiedMax || untold.pieces >= kUntoldPiecesMax ||
      in.untold_bytes >= group_.chunk_size_bytes / 2)
    SendTaken(step, link);
}

void Arrivals::TellUntold(Step& step) {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    Incoming& in = links_[i];
    const auto held = step.now - in.come_at;
    if (in.untold.pieces == 0 || held < tick_) continue;
    // That was not the stream's slowness.
    in.untold.waited_us = WaitedUs(held);
    SendTaken(step, i);
  }
}

void Arrivals::TellAll(Step& step) {
  for (std::size_t i = 0; i < links_.size(); ++i)
    if (links_[i].untold.pieces > 0) SendTaken(step, i);
}

std::optional<Arrivals::Time> Arrivals::tells_at() const {
  std::optional<Time> at;
  for (const Incoming& in : links_)
    if (in.untold.pieces > 0) at = at ? std::min(*at, in.come_at + tick_) : in.come_at + tick_;
  return at;
}

void Arrivals::SendTaken(Step& step, std::size_t link) {
  Incoming& in = links_[link];
  const CollectiveTaken taken = std::exchange(in.untold, {});
  in.untold_bytes = 0;
  if (!in.gone) step.actions.emplace_back(exchange::SendTaken{link, taken});
}

// --- What waits ----------------------------------------------------------------------------------

Result<void> Arrivals::PlaceWaiting(Step& step) {
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (!links_[i].is_held) continue;
    if (!FFR_TRY(Place(step, i)) && links_[i].tells_taken) SetItAside(step, i);
  }
  return set_aside_.empty() ? Result<void>() : PlaceSetAside(step);
}

// Makes room: the piece that a link holds has waited so long that the one it waits for may stand
// behind it.
void Arrivals::SetItAside(Step& step, std::size_t link) {
  Incoming& in = links_[link];
  if (step.now - in.come_at < tick_) return;
  in.is_held = false;
  step.moved = true;
  if (in.form != Form::kFrame) {
    in.kept.assign(in.payload.begin(), in.payload.end());
    KeepAside(link);
    return;
  }
  in.aside = Aside::kKeep;
  in.kept.resize(in.size_bytes);
  if (in.size_bytes == 0)
    KeepAside(link);
  else
    step.actions.emplace_back(Receive{link, in.kept});
}

void Arrivals::KeepAside(std::size_t link) {
  Incoming& in = links_[link];
  in.aside = Aside::kNo;
  set_aside_.push_back({link, in.pieces_come - 1, in.come_at, in.data, std::exchange(in.kept, {})});
}

Result<void> Arrivals::PlaceSetAside(Step& step) {
  for (auto piece = set_aside_.begin(); piece != set_aside_.end();) {
    Incoming& in = links_[piece->link];
    Target target;
    const Due due = FFR_TRY(FindPlace(in, piece->data, piece->bytes.size(), target));
    if (due == Due::kLater ||
        (due == Due::kNow && !TakesOver(step, piece->link, piece->come_at, target))) {
      ++piece;
      continue;
    }
    if (due == Due::kNow) {
      KeepSent(target, piece->data.step);
      FFR_TRY(Check(in, target, piece->data, piece->bytes));
      Add(step, target, piece->data, piece->bytes);
    }
    TellTaken(step, piece->link, piece->number, piece->bytes.size());
    piece = set_aside_.erase(piece);
    step.moved = true;
  }
  return {};
}

// --- Links that are lost -------------------------------------------------------------------------

Result<void> Arrivals::Lose(Step& step, const LinkLost& lost) {
  Incoming& in = links_[lost.link];
  if (!in.gone) {
    in.gone = Gone(in.channel, lost.why ? &*lost.why : nullptr);
    in.landing = {};
    in.aside = Aside::kNo;
    in.is_early = false;
    step.moved = true;
  }
  const std::uint32_t rank = in.channel.rank;
  if (NothingComesFrom(rank) && operations_.NextArrival(rank).active != nullptr) return *in.gone;
  return {};
}

// Whether nothing can come from that rank any more, nor has come and waits for its place.
bool Arrivals::NothingComesFrom(std::uint32_t rank) const {
  const auto is_its = [&](const SetAside& piece) {
    return links_[piece.link].channel.rank == rank;
  };
  return std::ranges::none_of(set_aside_, is_its) &&
         std::ranges::all_of(links_, [&](const Incoming& each) {
           return each.channel.rank != rank || each.gone.has_value();
         });
}

void Arrivals::Replace(const LinkMade& made) {
  // Pieces that came on the old link and have no place yet are sent again: this rank has not
  // acknowledged them.
  std::erase_if(set_aside_, [&](const SetAside& piece) { return piece.link == made.link; });
  Channel channel = std::move(links_[made.link].channel);
  channel.address = made.address;
  links_[made.link] = Incoming{.channel = std::move(channel), .tells_taken = true};
}

// --- Errors --------------------------------------------------------------------------------------

Error Arrivals::Differs(const Incoming& in, const CollectiveData& data,
                        const Operation& ours) const {
  const Operation theirs{
      data.sequence, nullptr, {data.collective, data.algorithm, data.root, data.count},
      data.type,     data.op, ours.chunk_size_bytes};
  return {ErrorCode::kInvalidArgument,
          "rank " + std::to_string(in.channel.rank) + " submitted " + theirs.Describe() +
              " but rank " + std::to_string(group_.rank) + " " + ours.Describe() +
              "; all ranks must submit the same operations in the same order"};
}

Error Arrivals::Unexpected(const Incoming& in, const std::string& what) const {
  return exchange::Unexpected(in.channel.rank, group_.rank, what);
}

}  // namespace ffrecord::client
