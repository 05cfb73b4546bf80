#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <vector>

#include <ffrecord/result.h>

#include "client/collective/exchange_steps.h"
#include "client/collective/group_messages.h"
#include "client/collective/operations.h"
#include "client/collective/peer_streams.h"

namespace ffrecord::client {

// Finds the rank that holds an operation up, and when the operation has taken too long. A rank that
// waits tells the ranks that wait for it which rank it blames; they pass that on, until it reaches
// the rank that is blamed. Part of ExchangeMachine.
class Blame {
 public:
  using Time = exchange::Time;

  // `ranks`: the other end of each link.
  Blame(const ExchangeGroup& group, std::vector<std::uint32_t> ranks, Time now);

  // Progress puts the time limit off.
  void NoteTaken(Time now) { taken_at_ = now; }
  void NoteGiven(Time now) { given_at_ = now; }
  void NoteTold(Time now) { told_at_ = now; }
  void NoteReplaced(std::size_t link) { heard_[link].at = {}; }

  // The other end of a link says whom it waits for. Returns whether to pass that on at once.
  bool NoteHeard(std::size_t link, const GroupWaiting& said, Time now);
  // The rank that an operation waits for, as far as this one knows.
  GroupWaiting Blamed(const ActiveOperation& oldest, const std::deque<PeerStreams>& peers,
                      Time now) const;

  // While this rank waits for others.
  bool IsTimeToTell(Time now) const { return now >= tells_at(); }
  Time tells_at() const;
  // While others wait for an operation that was not submitted here.
  bool IsTimeToExcuse(Time now) const { return now >= excuses_at(); }
  Time excuses_at() const;

  Time time_up_at(const ActiveOperation& oldest) const;
  Error TimeIsUp(const ActiveOperation& oldest, const GroupWaiting& blamed) const;

 private:
  GroupWaiting Believed(std::uint32_t peer, Time now) const;

  struct Heard {  // Believed for a few ticks.
    std::uint32_t from;
    Time at{};
    GroupWaiting said{};
  };

  const ExchangeGroup& group_;
  const std::chrono::milliseconds tick_;
  std::vector<Heard> heard_;  // By link.
  Time taken_at_;             // The newest piece that was taken,
  Time given_at_;             // and that found room to be sent.
  Time told_at_;
};

}  // namespace ffrecord::client
