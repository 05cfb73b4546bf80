#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "server/cluster/view.h"

namespace ffrecord::server::cluster {

// The copies that a change of the cluster would make, before anything is changed.
struct MovePlan {
  struct Move {
    std::string from;  // The first node that is asked; empty: none that holds them is up.
    std::string to;
    // Without `from`: of their stripes so many members that are up, out of which they are computed.
    // 0: they cannot be had.
    std::size_t member_count = 0;
    std::uint64_t extent_count = 0;
    std::uint64_t size_bytes = 0;
  };
  std::vector<Move> moves;       // By `from`, `member_count`, `to`.
  std::uint64_t slot_count = 0;  // Places in rows that get another node.
  bool is_short = false;         // There would be fewer domains than nodes in a row.
};
struct PlannedChange {
  bool are_down_lost = false;     // As after the time for which nodes may be down.
  std::set<std::string> without;  // These drain.
};

// Between the slot map that data lies by, which is the previous one while a change of it is under
// way, and the one that `change` makes. Fails with kUnavailable while the map or a manifest is not
// known, with kNotFound if `without` names no member. Looks at every extent.
Result<MovePlan> PlanMoves(const View& view, const PlannedChange& change);

}  // namespace ffrecord::server::cluster
