#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ffrecord {

// Fills `bytes`, at most 256, from the kernel's generator: ids and secrets that nobody else will
// ever have. Thread-safe; never fails once the kernel's generator is seeded, for which it waits.
void FillRandom(std::span<std::byte> bytes) noexcept;

// An array of bytes, such as an id of 16.
template <class Array>
Array Random() noexcept {
  Array array;
  FillRandom(array);
  return array;
}

std::uint64_t RandomNumber() noexcept;

}  // namespace ffrecord
