#pragma once

#include <cstdint>

namespace ffrecord {

// 2^64 divided by the golden ratio, made odd: the increment of SplitMix64.
inline constexpr std::uint64_t kGoldenGamma = 0x9E3779B97F4A7C15;

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection that mixes every bit. Part of
// file formats and of the order of epochs: never changes. Always inlined: a copy that was compiled
// for one processor must not be what the linker keeps for all.
[[gnu::always_inline]] constexpr std::uint64_t Mix64(std::uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

}  // namespace ffrecord
