#include "client/collective/blame.h"

#include <algorithm>
#include <string>

namespace ffrecord::client {
namespace {

// How many ticks a peer's word about who holds up is believed.
constexpr int kHeardTicks = 3;

}  // namespace

Blame::Blame(const ExchangeGroup& group, std::vector<std::uint32_t> ranks, Time now)
    : group_(group), tick_(group.tick()), taken_at_(now), given_at_(now), told_at_(now) {
  for (const std::uint32_t rank : ranks) heard_.push_back({.from = rank});
}

bool Blame::NoteHeard(std::size_t link, const GroupWaiting& said, Time now) {
  Heard& heard = heard_[link];
  const bool is_new = heard.said != said;
  heard.said = said;
  heard.at = now;
  return is_new && now - taken_at_ >= tick_;
}

GroupWaiting Blame::Blamed(const ActiveOperation& oldest, const std::deque<PeerStreams>& peers,
                           Time now) const {
  for (std::size_t i = 0; i < oldest.arrivals.size(); ++i)
    if (!oldest.arrivals[i].is_done) return Believed(oldest.schedule.arrivals[i].peer, now);
  // All has come. Another rank does not take what is sent to it.
  for (const PeerStreams& peer : peers)
    if (peer.awaits_room || peer.IsSending()) return Believed(peer.rank(), now);
  return {group_.rank};
}

// A peer that is waited for may have said that it waits for another rank.
GroupWaiting Blame::Believed(std::uint32_t peer, Time now) const {
  const auto heard = std::ranges::find_if(heard_, [&](const Heard& each) {
    return each.from == peer && now - each.at < kHeardTicks * tick_ &&
           each.said.rank != group_.rank;
  });
  return heard != heard_.end() ? heard->said : GroupWaiting{peer};
}

Blame::Time Blame::tells_at() const { return std::max(taken_at_, told_at_) + tick_; }

Blame::Time Blame::excuses_at() const { return told_at_ + tick_; }

Blame::Time Blame::time_up_at(const ActiveOperation& oldest) const {
  return std::max(oldest.deadline, std::max(taken_at_, given_at_) + group_.timeout);
}

Error Blame::TimeIsUp(const ActiveOperation& oldest, const GroupWaiting& blamed) const {
  return {ErrorCode::kDeadlineExceeded,
          oldest.operation.Describe() + ": timed out: nothing has moved for " +
              std::to_string(group_.timeout.count()) + " ms: rank " + std::to_string(blamed.rank) +
              (blamed.is_absent ? " answers but has not joined the operation: its program is busy"
                                  " elsewhere, or has not called it"
                                : " does not answer: it is stopped, hung or cut off")};
}

}  // namespace ffrecord::client
