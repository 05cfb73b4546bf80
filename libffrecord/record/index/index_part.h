#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace ffrecord {

// Bytes of the index of one file that have to be read before some of its records can be located.
struct IndexPart {
  // A part of this number is the file's dictionaries, any other a segment of index pages.
  static constexpr std::uint64_t kDictionaries = std::numeric_limits<std::uint64_t>::max();

  struct Piece {
    std::uint64_t offset_bytes = 0;
    std::uint64_t size_bytes = 0;
  };

  std::uint32_t file = 0;
  std::uint64_t number = 0;
  std::vector<Piece> pieces;  // All lie inside the file, at any alignment.
};

}  // namespace ffrecord
