#include "client/collective/exchange.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "client/collective/reduce.h"
#include "libffrecord/base/assert.h"

namespace ffrecord::client {
namespace {

using net::Clock;
using net::Endpoint;
using namespace std::chrono_literals;

// How long a last word may take: the peer reads it at once or is stuck itself.
constexpr auto kFarewell = 250ms;
// Operations that have queued all they send but still receive, and the one that sends.
constexpr std::size_t kActiveMax = 64;

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
  SetSleeps(true);
  // What came before was not rung for.
  const bool has_news = HasNews();
  if (!has_news) FFR_TRY(WaitForFds(wake_fd));
  SetSleeps(false);
  return {};
}

// Who shares memory with us rings only while we say that we sleep.
void Exchange::SetSleeps(bool sleeps) {
  for (const Outgoing& out : to_)
    if (out.link.ring_out && out.awaits_room) out.link.ring_out->WillSleep(sleeps);
  for (const Incoming& in : from_)
    if (in.link.ring_in && !in.is_held) in.link.ring_in->WillSleep(sleeps);
}

bool Exchange::HasNews() const {
  return std::ranges::any_of(to_,
                             [](const Outgoing& out) {
                               return out.link.ring_out && out.awaits_room &&
                                      out.link.ring_out->HasRoom();
                             }) ||
         std::ranges::any_of(from_, [](const Incoming& in) {
           return in.link.ring_in && !in.is_held && in.link.ring_in->HasPiece();
         });
}

Result<void> Exchange::WaitForFds(int wake_fd) {
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

bool Exchange::IsRounded(const Operation& operation) const {
  return group_.wire != WireType::kExact && operation.type == ReduceType::kF32 &&
         operation.plan.collective == Collective::kAllReduce;
}

std::uint64_t Exchange::WireSize(const Operation& operation) const {
  return IsRounded(operation) ? SizeOf(ReduceType::kBf16) : SizeOf(operation.type);
}

std::uint64_t Exchange::PieceMax(const Active& active, const Link& link) const {
  const std::uint64_t size_bytes = link.ring_out  ? link.ring_out->piece_size_bytes()
                                   : link.ring_in ? link.ring_in->piece_size_bytes()
                                                  : group_.chunk_size_bytes;
  return size_bytes / WireSize(active.operation);
}

Range Exchange::NextPiece(const Active& active, const Link& link, const Transfer& transfer,
                          const Progress& progress) const {
  return {progress.next,
          progress.next + std::min(transfer.range.end - progress.next, PieceMax(active, link))};
}

// --- Order ---------------------------------------------------------------------------------------

// Whether all that comes to `piece` before `step` has been placed.
bool Exchange::HasArrived(const Active& active, std::uint32_t step, const Range& piece) const {
  for (std::size_t i = active.arrivals_from; i < active.arrivals.size(); ++i) {
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
  for (std::size_t i = active.sends_from; i < active.sends.size(); ++i) {
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
    for (std::size_t i = active.sends_from; i < active.sends.size(); ++i)
      if (!active.sends[i].is_done && active.schedule.sends[i].peer == out.link.rank)
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
