#pragma once

#include <algorithm>
#include <cstdint>

namespace ffrecord::client {

// Who sends which part of an array when, in a ring all-reduce. Pure arithmetic.
//
// The array is cut into as many segments as there are ranks. Segment k starts at rank k and travels
// once around: each rank adds its own part, and the last one, rank k - 1, owns the sum. Then it
// travels once more and is copied. So in each of 2 (n - 1) steps a rank sends one segment to the
// next rank and receives another from the one before, and what it received in a step is what it
// sends in the following one.
struct Ring {
  std::uint32_t rank;
  std::uint32_t world_size;

  std::uint32_t next() const { return (rank + 1) % world_size; }
  std::uint32_t previous() const { return (rank + world_size - 1) % world_size; }

  std::uint32_t step_count() const { return 2 * (world_size - 1); }
  // What arrives in this step is added to our part; else it is final and copied.
  bool Reduces(std::uint32_t step) const { return step < world_size - 1; }
  // The sum that this step makes is complete: ours to average, and final for all.
  bool Completes(std::uint32_t step) const { return step + 2 == world_size; }

  std::uint32_t SegmentSent(std::uint32_t step) const {
    // (rank - step) modulo n; step is below 2 n.
    return (rank + 2 * world_size - step) % world_size;
  }
  std::uint32_t SegmentReceived(std::uint32_t step) const { return SegmentSent(step + 1); }

  // Elements [begin, end) of an array of `count`; sizes differ by one at most.
  struct Segment {
    std::uint64_t begin;
    std::uint64_t end;
  };
  Segment SegmentOf(std::uint64_t count, std::uint32_t index) const {
    return {Begin(count, index), Begin(count, index + 1)};
  }

 private:
  std::uint64_t Begin(std::uint64_t count, std::uint32_t index) const {
    return count / world_size * index + std::min<std::uint64_t>(index, count % world_size);
  }
};

}  // namespace ffrecord::client
