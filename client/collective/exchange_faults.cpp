#include <algorithm>
#include <string>

#include "client/collective/exchange.h"
#include "client/collective/reduce.h"

namespace ffrecord::client {
namespace {

using net::Clock;
using net::FrameType;

// How many ticks a peer's word about who holds up is believed.
constexpr int kHeardTicks = 3;

}  // namespace

// --- Time and blame ------------------------------------------------------------------------------

// The rank that the oldest operation waits for, as far as we know.
GroupWaiting Exchange::Blamed(Clock::time_point now) {
  const Active& active = active_.front();
  for (std::size_t i = 0; i < active.arrivals.size(); ++i) {
    if (active.arrivals[i].is_done) continue;
    const std::uint32_t peer = active.schedule.arrivals[i].peer;
    const auto said = std::ranges::find_if(from_, [&](const Incoming& in) {
      return in.link.rank == peer && now - in.heard_at < kHeardTicks * tick_ &&
             in.heard.rank != group_.rank;
    });
    return said != from_.end() ? said->heard : GroupWaiting{peer};
  }
  // All has come. Somebody does not take ours.
  for (const Outgoing& out : to_) {
    const auto is_sending = [](const Stream& stream) {
      return stream.link.endpoint->bytes_queued() > 0 || !stream.in_flight.empty();
    };
    if (out.awaits_room || std::ranges::any_of(out.streams, is_sending)) return {out.rank()};
  }
  return {group_.rank};
}

// A peer is held up too. The word travels on until it reaches the one it is about.
Result<void> Exchange::NoteWaiting(Incoming& in, const GroupWaiting& said) {
  if (said.rank >= group_.world_size)
    return Unexpected(in, "waits for rank " + std::to_string(said.rank));
  const bool is_new = in.heard != said;
  in.heard = said;
  in.heard_at = Clock::now();
  if (is_new && in.heard_at - data_at_ >= tick_) TellWaiting(in.heard_at);
  return {};
}

// Those to whom something is owed, for they wait too.
void Exchange::TellWaiting(Clock::time_point now) {
  told_at_ = now;
  if (active_.empty() || active_.front().arrivals_open == 0) return;
  Tell(Blamed(now), true);
}

void Exchange::Tell(const GroupWaiting& waiting, bool owed_only) {
  const auto body = waiting.Encode();
  for (Outgoing& out : to_) {
    if (owed_only && NextSend(out).active == nullptr) continue;
    // A queue that stands would only grow: that rank is not listening.
    const auto free = std::ranges::find_if(out.streams, [](const Stream& stream) {
      return !stream.gone && stream.link.endpoint->bytes_queued() == 0;
    });
    if (free == out.streams.end()) continue;
    if (!free->link.endpoint->Send({.type = FrameType::kPing}, body, {})) continue;
    free->bytes_given += free->link.endpoint->bytes_queued();
    free->is_ready = true;
  }
}

Error Exchange::TimeIsUp(Clock::time_point now) {
  const GroupWaiting blamed = Blamed(now);
  return {ErrorCode::kDeadlineExceeded,
          Describe(active_.front().operation) + ": timed out: nothing has moved for " +
              std::to_string(group_.timeout.count()) + " ms: rank " + std::to_string(blamed.rank) +
              (blamed.is_absent ? " answers but has not joined the operation: its program is busy"
                                  " elsewhere, or has not called it"
                                : " does not answer: it is stopped, hung or cut off")};
}

Result<void> Exchange::CheckTime() {
  const auto now = Clock::now();
  if (!active_.empty() && now >= time_up_at()) return TimeIsUp(now);
  if (now - checked_at_ >= tick_ && (!active_.empty() || AwaitsTaken())) {
    checked_at_ = now;
    FFR_TRY(CheckStreams(now));
  }
  FFR_TRY(TellUntold(now));
  if (active_.empty()) {
    if (!IsAwaited() || now - told_at_ < tick_) return {};
    told_at_ = now;
    Tell({group_.rank, true}, false);
  } else {
    if (now - data_at_ < tick_ || now - told_at_ < tick_) return {};
    TellWaiting(now);
  }
  for (Outgoing& out : to_)
    for (Stream& stream : out.streams)
      if (stream.is_ready && !stream.gone) FFR_TRY(PollOutgoing(out, stream));
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

Error Exchange::Differs(const Incoming& in, const CollectiveData& data,
                        const Operation& ours) const {
  const Operation theirs{
      data.sequence, nullptr, {data.collective, data.algorithm, data.root, data.count},
      data.type,     data.op, ours.chunk_size_bytes};
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

}  // namespace ffrecord::client
