#pragma once

#include <cstdint>

#include "libffrecord/pace/gate.h"
#include "libffrecord/source/range_queue.h"

namespace ffrecord::net {

// Waits for the turn of a group that is to be read from daemons, as what this thread reads; at once
// if that is what the program waits for, or if pacing is off.
inline void AwaitTurn(RangeGroup& group) {
  if (!pace::IsOn()) return;
  std::uint64_t size_bytes = 0;
  for (const RangeRead& range : group.ranges()) size_bytes += range.destination.size();
  pace::AwaitWhole(pace::TrafficScope::OfReads(), size_bytes);
}

}  // namespace ffrecord::net
