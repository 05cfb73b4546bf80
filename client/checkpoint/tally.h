#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "client/checkpoint/plan.h"

namespace ffrecord::client {

inline constexpr std::uint64_t kTallyPrime = (std::uint64_t{1} << 61) - 1;

// Sums over the boxes of one rank. Those of all ranks together are zero if every tensor to which
// the tree refers is covered exactly once, with one type and shape: ranks need not know each
// other's boxes. A sum that should not be zero is, by accident, once in 2^60.
//
// Numbers are those below a prime. Each index of a dimension has a fixed random weight,
// so the weight of a box, the product over its dimensions of what its indices weigh together, is
// the sum over its elements; boxes weigh as much as their tensor only if they divide it. A random
// factor for each key, type and shape keeps tensors apart.
struct BoxTally {
  std::uint64_t cover = 0;  // Boxes; minus whole tensors, told by the box of the first element.
  std::uint64_t keys = 0;   // Keys of those tensors; minus keys to which the tree refers.
  std::uint64_t odd = 0;    // Boxes that sums say nothing of: they have no elements.

  bool IsZero() const noexcept { return cover == 0 && keys == 0 && odd == 0; }
  BoxTally& operator+=(const BoxTally& other) noexcept;
  bool operator==(const BoxTally&) const = default;
};

// By a number of each key, to find the few tensors that are wrong.
inline constexpr std::size_t kTallyBuckets = 256;
using BoxTallies = std::array<BoxTally, kTallyBuckets>;

std::size_t BucketOf(std::string_view key) noexcept;

// Tallies `boxes`, and the keys to which the tree refers: the coordinator's alone, perhaps
// repeated.
BoxTallies TallyBoxes(std::span<const PlannedBox> boxes,
                      std::span<const std::string_view> references);

BoxTally SumOf(std::span<const BoxTally> tallies) noexcept;

}  // namespace ffrecord::client
