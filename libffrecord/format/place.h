#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/checksum.h"

namespace ffrecord {

// The random 16 bytes that tell one version 2 file from every other.
using FileId = std::array<std::byte, 16>;

// The kind of thing that a checksum of a version 2 file covers; format.md, "Seeds".
enum class PlaceTag : std::uint8_t {
  kRecord = 0,          // number: record index
  kRecordHeader = 1,    // number: file offset
  kIndexPage = 2,       // number: page number
  kSection = 3,         // number: file offset
  kFooter = 4,          // number: file offset
  kTail = 5,            // number: file offset
  kSectionHeader = 6,   // number: file offset
  kKeyBlockHeader = 7,  // number: file offset
  kKey = 10,            // number: 0
  kKeyPage = 11,        // number: file offset
  kKeyBlock = 12,       // number: file offset
  kColumnChunk = 13,    // number: file offset
};

// The seed of the checksum of `tag` number `number` in the file `id`. Requires number < 2^56.
inline std::uint64_t SeedOf(const FileId& id, PlaceTag tag, std::uint64_t number) noexcept {
  FFR_ASSERT(number >> 56 == 0);
  return PlaceSeed(id, static_cast<std::uint64_t>(tag) << 56 | number);
}

}  // namespace ffrecord
