#pragma once

#include <cstdint>

#include <ffrecord/export.h>

namespace ffrecord {

// The part of an epoch that one rank will read. Positions [first, end) of the epoch's order are
// divided into steps of `step_size` records; the last step may have fewer. In a step of n records,
// rank r of w reads positions [r * n / w, (r + 1) * n / w). After the epoch's last position, the
// positions continue at its first. The order is that of Permutation, lane 0, or, if `block` and
// `window` are set, of BlockedPermutation, or, `in_file_order`, that of the records.
struct EpochPlan {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::uint64_t first = 0;
  std::uint64_t end = 0;
  std::uint32_t block = 0;
  std::uint32_t window = 0;
  std::uint32_t step_size = 1;
  std::uint32_t world_size = 1;
  std::uint32_t rank = 0;
  bool in_file_order = false;  // Without block and window.
};

// A prefetch hint that a daemon has accepted (RecordReader::HintEpoch). Destroying the object ends
// the hint. Thread-bound.
class FFR_EXPORT PrefetchHint {
 public:
  virtual ~PrefetchHint() = default;
  // Whether the daemon still has the hint, and this process gave it. Does not block.
  virtual bool alive() = 0;
};

}  // namespace ffrecord
