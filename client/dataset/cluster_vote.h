#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "client/dataset/cluster_view.h"

namespace ffrecord::client {

// Which cluster an address of one or more daemons stands for, by what each daemon has said so far.
// A state machine: it owns no thread and reads no clock. Not thread-safe.
//
// A daemon speaks for its own address: it is a node of a cluster, or of none. The view of a node
// also speaks for the addresses that it gives to other nodes. A silent daemon may still say
// anything, so a few quick answers never decide against it; a daemon that is away has no say.
class ClusterVote {
 public:
  // `addresses`: one or more, each once, as net::Address::ToString() spells them.
  explicit ClusterVote(std::vector<std::string> addresses);

  // The daemon at address `i` is a node, with this view of its cluster; or, without one, of no
  // cluster. The last word about an address counts.
  void NoteAnswer(std::size_t i, std::optional<ClusterView> view);
  // Nobody serves at address `i`, or the daemon there cannot say of which cluster it is.
  void NoteAway(std::size_t i, Error why);
  // Why the daemon at address `i` has not answered so far. It may still do so.
  void NoteSilent(std::size_t i, Error why);

  enum class State : std::uint8_t {
    kOpen,     // Daemons that are silent can change the result.
    kLikely,   // No daemon has contradicted the one cluster of all answers, and too few of those
               // that are silent are at addresses that its view does not name.
    kCertain,  // Most of the addresses are of one cluster, or all daemons have answered.
  };
  State state() const;

  // The newest view of the cluster; none if all daemons have said that they are of none. Otherwise
  // fails with kConflict, naming both, if all that are there are heard and disagree; and with
  // kUnavailable, or what a failure says instead, if too few of them have answered.
  Result<std::optional<ClusterView>> Decide() const;

 private:
  struct Seat {
    enum class Standing : std::uint8_t { kSilent, kAway, kAnswered };
    std::string address;
    Standing standing = Standing::kSilent;
    std::optional<ClusterView> view;  // If it has answered; none: it is of no cluster.
    std::optional<Error> why;         // Why it has not.
  };
  // Counts of the addresses that speak for and against the cluster of a view.
  struct Tally {
    std::size_t answered = 0;     // As nodes of it.
    std::size_t said_up = 0;      // Otherwise, and the view says that its node there is up.
    std::size_t spoken_for = 0;   // Not answered, and a node's by the view.
    std::size_t unaccounted = 0;  // Silent, and not a node's by the view.
    std::size_t against = 0;      // Answered as something else.
  };
  Tally Count(const ClusterView& view) const;
  bool IsCertain(const Tally& tally) const;
  static bool IsLikely(const Tally& tally);
  std::size_t CountOf(Seat::Standing standing) const;
  // The newest view of each cluster that has answered.
  std::vector<const ClusterView*> Candidates() const;
  // The first that has not answered like one before it; null: all of them agree.
  const Seat* FindDissent() const;
  const Seat* FindFirst() const;  // That has answered; null: none has.
  Error TooFew() const;

  std::vector<Seat> seats_;
};

}  // namespace ffrecord::client
