#pragma once

#include <cstdint>

#include <ffrecord/export.h>

namespace ffrecord {

// What one rank is going to read of an epoch: positions [first, end) of its order go in steps of
// `step_size` records (the last one may have fewer), and of a step of n records rank r of w reads
// positions [r * n / w, (r + 1) * n / w). Behind the epoch's last position its first one follows.
// The order is the one of Permutation, lane 0, or, with `block` and `window`, of
// BlockedPermutation.
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
};

// A plan that a daemon has been told, RecordReader::Announce; it ends when this does. Thread-bound.
class FFR_EXPORT Announcement {
 public:
  virtual ~Announcement() = default;
  // Whether the daemon still knows it, in this process: looks without waiting.
  virtual bool alive() = 0;
};

}  // namespace ffrecord
