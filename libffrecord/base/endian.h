#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "libffrecord/base/assert.h"

namespace ffrecord {

// All formats are little-endian. A big-endian port changes the functions below and nothing else.
static_assert(std::endian::native == std::endian::little);

// Loads an integer of `width_bytes` (default: all of T) at `offset`, at any alignment. Requires
// that it lies within `bytes`: decoders check sizes first.
template <class T>
requires std::is_integral_v<T> T LoadLittleEndian(std::span<const std::byte> bytes,
                                                  std::size_t offset,
                                                  std::size_t width_bytes = sizeof(T)) {
  FFR_ASSERT(width_bytes <= sizeof(T));
  FFR_ASSERT(offset <= bytes.size() && width_bytes <= bytes.size() - offset);
  T value = 0;
  std::memcpy(&value, bytes.data() + offset, width_bytes);
  return value;
}

// Stores the low `width_bytes` of `value` at `offset`. Requires that they fit within `bytes`.
template <class T>
requires std::is_integral_v<T>
void StoreLittleEndian(std::span<std::byte> bytes, std::size_t offset, T value,
                       std::size_t width_bytes = sizeof(T)) {
  FFR_ASSERT(width_bytes <= sizeof(T));
  FFR_ASSERT(offset <= bytes.size() && width_bytes <= bytes.size() - offset);
  std::memcpy(bytes.data() + offset, &value, width_bytes);
}

}  // namespace ffrecord
