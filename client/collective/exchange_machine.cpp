#include "client/collective/exchange_machine.h"

#include <algorithm>
#include <utility>

namespace ffrecord::client {
namespace {

using namespace exchange;

std::vector<std::uint32_t> RanksOf(const std::vector<Channel>& channels) {
  std::vector<std::uint32_t> ranks;
  for (const Channel& channel : channels) ranks.push_back(channel.rank);
  return ranks;
}

}  // namespace

ExchangeMachine::ExchangeMachine(const ExchangeGroup& group, std::vector<Channel> to,
                                 std::vector<Channel> from, ExchangeCounters& counters, Time now)
    : group_(group),
      counters_(counters),
      work_(group_, counters),
      operations_(group_),
      blame_(group_, RanksOf(from), now),
      arrivals_(std::move(from), group_, work_, counters, operations_, peers_, blame_) {
  for (auto begin = to.begin(); begin != to.end();) {
    const auto end = std::find_if(begin, to.end(),
                                  [&](const Channel& each) { return each.rank != begin->rank; });
    peers_.emplace_back(std::vector<Channel>(begin, end), peers_.size(), group_, work_, counters);
    begin = end;
  }
}

void ExchangeMachine::TellAll(Time now, Actions& actions) {
  Step step{now, actions};
  arrivals_.TellAll(step);
}

// --- Turns ---------------------------------------------------------------------------------------

Result<void> ExchangeMachine::On(Step& step, const Go&) {
  for (bool is_first = operations_.empty(); operations_.has_submitted(); is_first = false) {
    const ActiveOperation* const started = operations_.Start(step.now);
    if (started == nullptr) break;
    if (is_first) blame_.NoteTaken(step.now);  // No rank was waited for until now.
    work_.DivideOwn(started->operation);
  }
  for (PeerStreams& peer : peers_) FFR_TRY(SendPieces(step, peer));
  return {};
}

Result<void> ExchangeMachine::On(Step& step, const Settle&) {
  FFR_TRY(arrivals_.PlaceWaiting(step));
  while (!operations_.empty() && operations_.oldest().has_ended()) {
    const auto ended = operations_.TakeOldest(step.now);
    counters_.operations.fetch_add(1, std::memory_order_relaxed);
    step.actions.emplace_back(Complete{ended});
  }
  return {};
}

Result<void> ExchangeMachine::On(Step& step, const Tick&) {
  if (oldest() != nullptr && step.now >= blame_.time_up_at(*oldest()))
    return blame_.TimeIsUp(*oldest(), blame_.Blamed(*oldest(), peers_, step.now));
  if (step.now - checked_at_ >= group_.tick() && (oldest() != nullptr || AwaitsTaken())) {
    checked_at_ = step.now;
    LookForSilence(step);
  }
  arrivals_.TellUntold(step);
  if (oldest() != nullptr) {
    if (blame_.IsTimeToTell(step.now)) TellWaiting(step);
  } else if (IsAwaited() && blame_.IsTimeToExcuse(step.now)) {
    blame_.NoteTold(step.now);
    for (PeerStreams& peer : peers_) peer.SendWaiting(step, {group_.rank, true});
  }
  return {};
}

ExchangeMachine::Time ExchangeMachine::NextTime() const {
  if (oldest() != nullptr) return std::min(blame_.time_up_at(*oldest()), blame_.tells_at());
  Time at = IsAwaited() ? blame_.excuses_at() : Time::max();
  if (AwaitsTaken()) at = std::min(at, checked_at_ + group_.tick());
  return std::min(at, arrivals_.tells_at().value_or(Time::max()));
}

// --- Sending -------------------------------------------------------------------------------------

Result<void> ExchangeMachine::SendPieces(Step& step, PeerStreams& peer) {
  if (peer.has_again()) FFR_TRY(peer.SendAgain(step));
  peer.awaits_room = false;
  for (;;) {
    const auto next = operations_.NextSend(peer.rank());
    if (next.active == nullptr) return {};
    if (peer.gone()) return *peer.gone();
    if (peer.has_untold()) peer.TellLost(step);
    const ActiveOperation& active = *next.active;
    const Transfer& transfer = active.schedule.sends[next.index];
    const Range piece = operations_.PieceAt(active, peer.piece_size_bytes_max(), transfer,
                                            active.sends[next.index].next);
    if (!active.HasArrived(transfer.step, piece)) return {};
    const std::uint64_t element_bytes = group_.WireSize(active.operation);
    const auto stream = peer.Choose(step.now, piece.size() * element_bytes,
                                    (transfer.range.end - piece.end) * element_bytes);
    peer.awaits_room = !stream.has_value();
    if (!stream) return {};
    FFR_TRY(SendPiece(step, peer, *stream, next, piece));
  }
}

Result<void> ExchangeMachine::SendPiece(Step& step, PeerStreams& peer, std::size_t stream,
                                        const Operations::Next& next, Range piece) {
  ActiveOperation& active = *next.active;
  const Operation& operation = active.operation;
  const CollectiveData data{.sequence = operation.sequence,
                            .count = operation.plan.count,
                            .first = piece.begin,
                            .step = active.schedule.sends[next.index].step,
                            .type = operation.type,
                            .op = operation.op,
                            .collective = operation.plan.collective,
                            .algorithm = operation.plan.algorithm,
                            .root = operation.plan.root,
                            .shift = work_.Shift(operation, piece)};
  FFR_TRY(peer.Send(step, stream, active, next.index, piece, data));
  blame_.NoteGiven(step.now);
  active.NoteGiven(next.index, piece);
  return {};
}

Result<void> ExchangeMachine::On(Step& step, const Room& room) {
  PeerStreams& peer = peers_[room.peer];
  peer.NoteRoom(room.place);
  return SendPieces(step, peer);
}

Result<void> ExchangeMachine::On(Step& step, const Left& left) {
  peers_[left.peer].NoteLeft(step, left);
  return {};
}

Result<void> ExchangeMachine::On(Step& step, const Taken& taken) {
  return peers_[taken.peer].NoteTaken(step, taken);
}

Result<void> ExchangeMachine::On(Step& step, const StreamLost& lost) {
  PeerStreams& peer = peers_[lost.peer];
  return peer.Lose(step, lost, Owes(peer));
}

Result<void> ExchangeMachine::On(Step& step, const StreamMade& made) {
  peers_[made.peer].Replace(step, made);
  return {};
}

bool ExchangeMachine::Owes(const PeerStreams& peer) {
  return operations_.NextSend(peer.rank()).active != nullptr;
}

// Whether a stream may hold something that its peer waits for.
bool ExchangeMachine::AwaitsTaken() const {
  return std::ranges::any_of(peers_, &PeerStreams::AwaitsTaken);
}

// --- Arrivals ------------------------------------------------------------------------------------

Result<void> ExchangeMachine::On(Step& step, const FrameCame& came) {
  return arrivals_.Take(step, came);
}

Result<void> ExchangeMachine::On(Step& step, const PlacedCame& came) {
  return arrivals_.Take(step, came);
}

Result<void> ExchangeMachine::On(Step& step, const SharedCame& came) {
  return arrivals_.Take(step, came);
}

Result<void> ExchangeMachine::On(Step& step, const Landed& landed) {
  return arrivals_.Take(step, landed);
}

Result<void> ExchangeMachine::On(Step& step, const LinkLost& lost) {
  return arrivals_.Lose(step, lost);
}

Result<void> ExchangeMachine::On(Step&, const LinkMade& made) {
  arrivals_.Replace(made);
  blame_.NoteReplaced(made.link);
  return {};
}

// --- Waiting -------------------------------------------------------------------------------------

// A peer is held up too. The word travels on until it reaches the one it is about.
Result<void> ExchangeMachine::On(Step& step, const WaitingCame& came) {
  step.moved = true;
  if (came.waiting.rank >= group_.world_size)
    return Unexpected(arrivals_.RankOf(came.link), group_.rank,
                      "waits for rank " + std::to_string(came.waiting.rank));
  if (blame_.NoteHeard(came.link, came.waiting, step.now)) TellWaiting(step);
  return {};
}

// All peers: they may wait for this rank in an operation that it has not come to.
void ExchangeMachine::TellWaiting(Step& step) {
  blame_.NoteTold(step.now);
  if (oldest() == nullptr) return;
  const GroupWaiting blamed = blame_.Blamed(*oldest(), peers_, step.now);
  for (PeerStreams& peer : peers_) peer.SendWaiting(step, blamed);
}

bool ExchangeMachine::IsAwaited() const {
  return operations_.empty() && !operations_.has_submitted() && arrivals_.HasWaiting();
}

// Streams whose other end may be silent are given up if it is.
void ExchangeMachine::LookForSilence(Step& step) {
  for (std::size_t i = 0; i < peers_.size(); ++i)
    for (std::size_t stream = 0; stream < peers_[i].size(); ++stream)
      if (peers_[i].SilenceMax(step.now, stream, oldest()))
        step.actions.emplace_back(LookWhetherSilent{i, stream});
}

Result<void> ExchangeMachine::On(Step& step, const Silent& silent) {
  PeerStreams& peer = peers_[silent.peer];
  // Streams may have been lost since.
  const auto most = peer.SilenceMax(step.now, silent.stream, oldest());
  if (!most || silent.time <= *most) return {};
  step.moved = true;
  return peer.GiveUp(step, silent.stream, *most, Owes(peer));
}

// --- Errors --------------------------------------------------------------------------------------

Error exchange::Gone(const Channel& channel, const Error* why) {
  return {ErrorCode::kUnavailable,
          "rank " + std::to_string(channel.rank) + " at " + channel.address +
              " has left the group: its process ended or was killed, or it closed its engine" +
              (why != nullptr ? " (" + why->message + ")" : "")};
}

Error exchange::Unexpected(std::uint32_t sender, std::uint32_t own, const std::string& what) {
  return {ErrorCode::kCorruption, "rank " + std::to_string(sender) + " " + what + ", which rank " +
                                      std::to_string(own) +
                                      " does not understand; do all ranks run the same version?"};
}

}  // namespace ffrecord::client
