#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "libffrecord/source/file_window.h"

namespace ffrecord {

using Magic = std::array<std::uint8_t, 4>;

// The offset of the first of any of `magics`, which all begin with the same byte, at or behind
// `offset_bytes` of a file of `size_bytes`, or `size_bytes` if there is none. Blocks that cannot be
// read hold none.
std::uint64_t FindMagic(FileWindow& window, std::uint64_t size_bytes, std::span<const Magic> magics,
                        std::uint64_t offset_bytes);

inline std::uint64_t FindMagic(FileWindow& window, std::uint64_t size_bytes, const Magic& magic,
                               std::uint64_t offset_bytes) {
  return FindMagic(window, size_bytes, std::span(&magic, 1), offset_bytes);
}

}  // namespace ffrecord
