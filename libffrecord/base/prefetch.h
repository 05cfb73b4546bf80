#pragma once

namespace ffrecord {

// Asks for the cache line of `address`, which need not be valid, without waiting for it.
inline void Prefetch(const void* address) noexcept {
  __builtin_prefetch(address);
  // To g++ a function that only prefetches has no effect, and calls of it may go.
  asm volatile("" : : "r"(address));
}

}  // namespace ffrecord
