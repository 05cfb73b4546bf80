#include "client/collective/exchange.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "client/collective/reduce.h"
#include "libffrecord/base/assert.h"
#include "libffrecord/base/timed_waits.h"

namespace ffrecord::client {
namespace {

using net::Clock;
using net::Endpoint;
using namespace std::chrono_literals;

// How long a last word may take: the peer reads it at once or is stuck itself.
constexpr auto kFarewell = 250ms;
// Operations that have queued all they send but still receive, and the one that sends.
constexpr std::size_t kActiveMax = 64;
// How long one that closes waits for its last pieces to leave: a silent stream is found before.
constexpr std::chrono::milliseconds kLastPiecesMax = 10s;
constexpr auto kDeliveryPause = 2ms;

}  // namespace

Exchange::Exchange(const Group& group, Links links, std::unique_ptr<Replacements> replacements,
                   ExchangeCounters& counters)
    : group_(group),
      replacements_(std::move(replacements)),
      tick_(std::clamp<std::chrono::milliseconds>(group.timeout / 16, 5ms, 500ms)),
      counters_(&counters),
      data_at_(Clock::now()),
      sent_at_(data_at_),
      told_at_(data_at_) {
  for (Link& link : links.to) {
    if (to_.empty() || to_.back().rank() != link.rank) to_.emplace_back();
    to_.back().streams.emplace_back().link = std::move(link);
  }
  for (const Outgoing& out : to_)
    if (out.hears_taken())
      for (const Stream& stream : out.streams) ProbeWhenIdle(stream.link);
  for (Link& link : links.from) {
    Incoming& in = from_.emplace_back();
    in.link = std::move(link);
    in.tells_taken = in.link.ring_in == nullptr &&
                     (group.streams > 1 || in.link.endpoint->remote_memory() != nullptr);
  }
}

Result<void> Exchange::Advance(std::vector<Ended>& ended) {
  if (std::exchange(has_replacements_, false)) TakeReplacements();
  for (bool moved = true; moved && ended.empty();) {
    moved = false;
    StartOperations();
    for (Outgoing& out : to_)
      if (FFR_TRY(Send(out))) moved = true;
    for (Incoming& in : from_)
      if (FFR_TRY(Receive(in))) moved = true;
    if (!set_aside_.empty() && FFR_TRY(PlaceSetAside())) moved = true;
    TakeEnded(ended);
  }
  return CheckTime();
}

Result<void> Exchange::Wait(int wake_fd) {
  SetSleeps(true);
  // What came before was not rung for.
  const bool has_news = HasNews();
  if (!has_news) FFR_TRY(WaitForFds(wake_fd));
  if (has_news) has_replacements_ = true;  // Who has rung meanwhile does not ring again.
  SetSleeps(false);
  return {};
}

// Who shares memory with us rings only while we say that we sleep.
void Exchange::SetSleeps(bool sleeps) {
  for (const Outgoing& out : to_)
    if (out.ring() != nullptr && out.awaits_room) out.ring()->WillSleep(sleeps);
  for (const Incoming& in : from_)
    if (in.link.ring_in && !in.is_held) in.link.ring_in->WillSleep(sleeps);
}

bool Exchange::HasNews() const {
  return std::ranges::any_of(to_,
                             [](const Outgoing& out) {
                               return out.ring() != nullptr && out.awaits_room &&
                                      out.ring()->HasRoom();
                             }) ||
         std::ranges::any_of(from_, [](const Incoming& in) {
           return in.link.ring_in && !in.is_held && in.link.ring_in->HasPiece();
         });
}

Result<void> Exchange::WaitForFds(int wake_fd) {
  std::vector<pollfd> waited{{wake_fd, POLLIN, 0}};
  std::vector<bool*> are_ready;
  const auto add = [&](const Endpoint& endpoint, bool is_waited_for, bool& is_ready) {
    const int events = endpoint.wants_room() ? POLLIN | POLLOUT : POLLIN;
    waited.push_back({is_waited_for ? endpoint.fd() : -1, static_cast<short>(events), 0});
    are_ready.push_back(&is_ready);
  };
  for (Outgoing& out : to_)
    for (Stream& stream : out.streams) add(*stream.link.endpoint, !stream.gone, stream.is_ready);
  for (Incoming& in : from_) add(*in.link.endpoint, !in.gone && !in.is_held, in.is_ready);

  if (replacements_)
    for (const int fd : replacements_->fds()) waited.push_back({fd, POLLIN, 0});
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(wake_at() - Clock::now());
  const int count = PollFor(waited, left);
  if (count < 0 && errno != EINTR)
    return Error{ErrorCode::kIo, std::string("poll failed: ") + std::strerror(errno), errno};
  for (std::size_t i = 0; i < are_ready.size(); ++i)
    if (waited[1 + i].revents != 0) *are_ready[i] = true;
  // The thread that makes connections rings as those do who submit.
  has_replacements_ = waited[0].revents != 0;
  for (std::size_t i = 1 + are_ready.size(); i < waited.size(); ++i)
    has_replacements_ |= waited[i].revents != 0;
  return {};
}

net::Deadline Exchange::wake_at() const {
  if (!active_.empty()) return std::min(time_up_at(), std::max(data_at_, told_at_) + tick_);
  auto at = IsAwaited() ? told_at_ + tick_ : Clock::now() + 1h;
  if (AwaitsTaken()) at = std::min(at, checked_at_ + tick_);
  for (const Incoming& in : from_)
    if (in.untold.pieces > 0) at = std::min(at, in.come_at + tick_);
  return at;
}

// Whether another rank is at an operation that was not submitted here.
bool Exchange::IsAwaited() const {
  return active_.empty() && submitted_.empty() &&
         (!set_aside_.empty() ||
          std::ranges::any_of(from_, [](const Incoming& in) { return in.is_held; }));
}

// Progress puts it off.
net::Clock::time_point Exchange::time_up_at() const {
  return std::max(active_.front().deadline, std::max(data_at_, sent_at_) + group_.timeout);
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
    DivideOwn(operation);
    Active& active = active_.emplace_back(Active{
        .operation = operation,
        .schedule = MakeSchedule(operation.plan, group_.rank, group_.world_size, group_.machines),
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

std::byte* Exchange::At(const Operation& operation, std::uint64_t element) {
  return operation.data + element * SizeOf(operation.type);
}

bool Exchange::IsRounded(const Operation& operation) const {
  return group_.wire != WireType::kExact && operation.type == ReduceType::kF32 &&
         operation.plan.collective == Collective::kAllReduce;
}

std::uint64_t Exchange::WireSize(const Operation& operation) const {
  return IsRounded(operation) ? SizeOf(ReduceType::kBf16) : SizeOf(operation.type);
}

std::uint64_t Exchange::PieceMax(const Active& active, const Link& link) const {
  std::uint64_t size_bytes = active.operation.chunk_size_bytes;
  if (link.ring_out) size_bytes = std::min(size_bytes, link.ring_out->piece_size_bytes());
  if (link.ring_in) size_bytes = std::min(size_bytes, link.ring_in->piece_size_bytes());
  return size_bytes / WireSize(active.operation);
}

// The piece of a transfer that begins there.
Range Exchange::PieceAt(const Active& active, const Link& link, const Transfer& transfer,
                        std::uint64_t begin) const {
  return {begin, begin + std::min(PieceMax(active, link), transfer.range.end - begin)};
}

bool Exchange::Progress::Covers(Range range) const {
  if (range.end <= next) return true;
  range.begin = std::max(range.begin, next);
  return std::ranges::any_of(ahead, [&](const Range& placed) {
    return placed.begin <= range.begin && range.end <= placed.end;
  });
}

// `piece` of `all` is placed.
void Exchange::Progress::Note(Range piece, const Range& all) {
  if (piece.begin == next) {
    next = piece.end;
    if (!ahead.empty() && ahead.front().begin == next) {
      next = ahead.front().end;
      ahead.erase(ahead.begin());
    }
  } else {
    auto after =
        std::ranges::find_if(ahead, [&](const Range& placed) { return placed.begin >= piece.end; });
    if (after != ahead.begin() && std::prev(after)->end == piece.begin) {
      after = std::prev(after);
      after->end = piece.end;
    } else {
      after = ahead.insert(after, piece);
    }
    if (const auto beyond = std::next(after);
        beyond != ahead.end() && beyond->begin == after->end) {
      after->end = beyond->end;
      ahead.erase(beyond);
    }
  }
  is_done = next >= all.end;
}

// --- Order ---------------------------------------------------------------------------------------

// Whether all that comes to `piece` before `step` has been placed.
bool Exchange::HasArrived(const Active& active, std::uint32_t step, const Range& piece) const {
  for (std::size_t i = active.arrivals_from; i < active.arrivals.size(); ++i) {
    const Arrival& arrival = active.schedule.arrivals[i];
    if (arrival.step >= step) return true;
    if (active.arrivals[i].is_done || !arrival.range.Touches(piece)) continue;
    if (piece.begin == piece.end) return false;
    const Range needed{std::max(piece.begin, arrival.range.begin),
                       std::min(piece.end, arrival.range.end)};
    if (!active.arrivals[i].Covers(needed)) return false;
  }
  return true;
}

// Whether all that is sent from `piece` in `step` and before has left its memory.
bool Exchange::HasLeft(const Active& active, std::uint32_t step, const Range& piece) const {
  for (std::size_t i = active.sends_from; i < active.sends.size(); ++i) {
    const Transfer& send = active.schedule.sends[i];
    if (send.step > step) break;
    if (active.sends[i].is_done || !send.range.Touches(piece)) continue;
    if (active.sends[i].next < std::min(piece.end, send.range.end) || piece.begin == piece.end)
      return false;
  }
  if (active.pieces_in_flight == 0) return true;
  return std::ranges::none_of(to_, [&](const Outgoing& out) {
    return std::ranges::any_of(out.streams, [&](const Stream& stream) {
      const std::uint64_t left = stream.bytes_given - stream.link.endpoint->bytes_queued();
      return std::ranges::any_of(stream.in_flight, [&](const InFlight& flying) {
        return flying.mark > left && flying.Borrows(active, step, piece);
      });
    });
  });
}

Exchange::Next Exchange::NextSend(const Outgoing& out) {
  for (Active& active : active_) {
    if (active.sends_open == 0) continue;
    for (std::size_t i = active.sends_from; i < active.sends.size(); ++i)
      if (!active.sends[i].is_done && active.schedule.sends[i].peer == out.rank())
        return {&active, i};
  }
  return {};
}

Exchange::Next Exchange::NextArrival(const Incoming& in) {
  for (Active& active : active_) {
    if (active.arrivals_open == 0) continue;
    for (std::size_t i = active.arrivals_from; i < active.arrivals.size(); ++i)
      if (!active.arrivals[i].is_done && active.schedule.arrivals[i].peer == in.link.rank)
        return {&active, i};
  }
  return {};
}

// --- Closing -------------------------------------------------------------------------------------

void Exchange::Close(const Error& why) {
  const auto peers = Endpoints();
  for (Endpoint* peer : peers)
    if (peer->fd() >= 0) SendLastWord(*peer, why);
  Flush(peers);
  for (Endpoint* peer : peers) peer->Close();
}

void Exchange::Close() {
  // What was taken, so that nobody sends it again.
  for (Incoming& in : from_)
    if (in.untold.pieces > 0) (void)SendTaken(in);
  DeliverLast();
  std::vector<Endpoint*> senders;
  for (Incoming& in : from_) senders.push_back(in.link.endpoint.get());
  Flush(senders);
  for (Endpoint* peer : Endpoints()) peer->Close();
}

// An operation ends when copies of its small pieces are queued, and who has ended may close.
void Exchange::DeliverLast() {
  const auto deadline =
      Clock::now() + std::min<std::chrono::milliseconds>(group_.timeout, kLastPiecesMax);
  std::vector<Ended> ended;
  while (IsDelivering() && Clock::now() < deadline) {
    for (Outgoing& out : to_)
      for (Stream& stream : out.streams) stream.is_ready = true;
    if (!Advance(ended)) return;  // Whoever is gone needs nothing.
    // No event tells when the other machine has acknowledged.
    if (IsDelivering()) SleepFor(kDeliveryPause);
  }
}

// Whether something that was sent may not have reached its peer's machine.
bool Exchange::IsDelivering() const {
  return std::ranges::any_of(to_, [](const Outgoing& out) {
    if (out.gone || out.ring() != nullptr) return false;
    return !out.again.empty() || std::ranges::any_of(out.streams, [](const Stream& stream) {
      const Endpoint& endpoint = *stream.link.endpoint;
      return !stream.gone && (endpoint.bytes_queued() > 0 ||
                              (!stream.in_flight.empty() && HasUnacknowledged(endpoint.fd())));
    });
  });
}

void Exchange::Flush(const std::vector<Endpoint*>& peers) {
  const auto deadline = Clock::now() + kFarewell;
  for (;;) {
    std::vector<pollfd> unsent;
    for (Endpoint* peer : peers) {
      // Errors are no news here, and what still comes in is of no use.
      if (peer->fd() >= 0 && peer->bytes_queued() > 0) (void)peer->Poll();
      if (peer->fd() >= 0 && peer->bytes_queued() > 0) unsent.push_back({peer->fd(), POLLOUT, 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (unsent.empty() || left.count() <= 0) break;
    (void)PollFor(unsent, left);
  }
}

std::vector<Endpoint*> Exchange::Endpoints() {
  std::vector<Endpoint*> endpoints;
  for (const Outgoing& out : to_)
    for (const Stream& stream : out.streams) endpoints.push_back(stream.link.endpoint.get());
  for (const Incoming& in : from_) endpoints.push_back(in.link.endpoint.get());
  return endpoints;
}

}  // namespace ffrecord::client
