#pragma once

#include <cstdint>

namespace ffrecord {

// To a multiple of `alignment`, a power of two.
constexpr std::uint64_t AlignDown(std::uint64_t value, std::uint64_t alignment) noexcept {
  return value & ~(alignment - 1);
}
// Requires value + alignment - 1 not to overflow.
constexpr std::uint64_t AlignUp(std::uint64_t value, std::uint64_t alignment) noexcept {
  return AlignDown(value + alignment - 1, alignment);
}

}  // namespace ffrecord
