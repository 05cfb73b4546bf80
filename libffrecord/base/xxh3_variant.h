#pragma once

#include <cstddef>
#include <cstdint>

namespace ffrecord {

// XXH3 as compiled for one instruction set: the same values from each, at a speed of its own.
struct Xxh3Variant {
  const char* name;
  std::uint64_t (*hash64)(const void* bytes, std::size_t size, std::uint64_t seed) noexcept;
  // Writes 16 bytes, in canonical order.
  void (*hash128)(const void* bytes, std::size_t size, unsigned char* digest) noexcept;
  // Adds to an XXH3_state_t, for 64 and 128 bits alike.
  void (*update)(void* state, const void* bytes, std::size_t size) noexcept;
};

// libxxhash's own, for the least processor of the architecture.
extern const Xxh3Variant kXxh3Plain;

// The fastest that this processor has; chosen once.
const Xxh3Variant& BestXxh3() noexcept;

// Compiled with flags of their own, on x86-64 only: only BestXxh3 and tests may name these, and
// call them only where the processor has the instructions.
extern const Xxh3Variant kXxh3Avx2;
extern const Xxh3Variant kXxh3Avx512;

}  // namespace ffrecord
