#pragma once

#include <cstdint>

namespace ffrecord {

// How wanted ranges of a file become reads, for embedded readers and for the daemon alike.
//
// Neighbours whose gap is at most this are read in one piece: a disk moves so many bytes in the
// time that one more request costs.
inline constexpr std::uint64_t kMergeGapBytesMax = std::uint64_t{16} << 10;
// A merged read does not grow beyond this: what is read together arrives together.
inline constexpr std::uint64_t kMergedReadBytesMax = std::uint64_t{1} << 20;
// A larger range is read in pieces of this size, side by side.
inline constexpr std::uint64_t kPieceBytesMax = std::uint64_t{1} << 20;

// Bytes [begin, end) of one file that are read together. Grows at its end only: offer it ranges in
// order of their offsets.
struct CoalescedRead {
  std::uint64_t begin_bytes = 0;
  std::uint64_t end_bytes = 0;

  // Takes [begin, end) in, if it is near enough and the whole stays small enough. Requires
  // begin <= end.
  bool Absorb(std::uint64_t begin, std::uint64_t end) noexcept {
    if (begin < begin_bytes) return false;
    const bool near = begin <= end_bytes || begin - end_bytes <= kMergeGapBytesMax;
    if (!near || (end > end_bytes && end - begin_bytes > kMergedReadBytesMax)) return false;
    if (end > end_bytes) end_bytes = end;
    return true;
  }
};

constexpr std::uint64_t AlignDown(std::uint64_t value, std::uint64_t alignment) noexcept {
  return value & ~(alignment - 1);
}
// Requires value + alignment - 1 not to overflow.
constexpr std::uint64_t AlignUp(std::uint64_t value, std::uint64_t alignment) noexcept {
  return AlignDown(value + alignment - 1, alignment);
}

}  // namespace ffrecord
