#pragma once

#include <cstddef>
#include <cstdint>

#include "libffrecord/base/mix.h"

namespace ffrecord {

// The parts of a permutation; format.md, "Order 1". Borrows the keys.
struct PermutationShape {
  const std::uint64_t* keys;  // Twelve.
  std::uint32_t low_bits;
  std::uint32_t high_bits;
};

// A value waits for two multiplications in each of twelve rounds. So many at once keep a core busy
// meanwhile, and its vectors full.
inline constexpr std::size_t kPermutedAbreast = 32;

// The rounds once for each of `values`, in place. Requires that `count` is a multiple of
// kPermutedAbreast.
using PermutationRounds = void (*)(const PermutationShape& shape, std::uint64_t* values,
                                   std::size_t count) noexcept;

// The fastest that this processor has; all give the same values.
PermutationRounds BestPermutationRounds() noexcept;

// The one body of them all, which the compiler makes vectors of; becomes part of its caller.
[[gnu::always_inline]] inline void PermuteAbreast(const PermutationShape& shape,
                                                  std::uint64_t* values,
                                                  std::size_t count) noexcept {
  const std::uint32_t low_bits = shape.low_bits;
  const std::uint64_t mask = (std::uint64_t{1} << low_bits) - 1;
  for (std::size_t done = 0; done < count; done += kPermutedAbreast, values += kPermutedAbreast) {
    std::uint64_t left[kPermutedAbreast];
    std::uint64_t right[kPermutedAbreast];
    for (std::size_t i = 0; i < kPermutedAbreast; ++i) {
      left[i] = values[i] >> low_bits;
      right[i] = values[i] & mask;
    }
    for (int round = 0; round < 12; round += 2) {
      for (std::size_t i = 0; i < kPermutedAbreast; ++i)
        left[i] ^= Mix64(right[i] ^ shape.keys[round]) >> (64 - shape.high_bits);
      for (std::size_t i = 0; i < kPermutedAbreast; ++i)
        right[i] ^= Mix64(left[i] ^ shape.keys[round + 1]) >> (64 - low_bits);
    }
    for (std::size_t i = 0; i < kPermutedAbreast; ++i) values[i] = left[i] << low_bits | right[i];
  }
}

}  // namespace ffrecord
