#pragma once

#include <cstdint>

namespace ffrecord {

// How wanted ranges of a file become reads. The defaults are for a disk.
struct CoalescingOptions {
  // Neighbours whose gap is at most this are read together: a disk moves as many bytes in the time
  // of one more request.
  std::uint64_t gap_bytes_max = std::uint64_t{16} << 10;
  // A merged read does not grow beyond this, because its first record waits for its last byte.
  std::uint64_t merged_bytes_max = std::uint64_t{1} << 20;
  // A larger range is cut into reads of this size, which run in parallel.
  std::uint64_t piece_bytes_max = std::uint64_t{1} << 20;
};
inline constexpr CoalescingOptions kDiskCoalescing{};
// A daemon answers many ranges at once: each costs it and its client together about as much as
// 4 KiB do on a fast link. It merges for its disks itself.
inline constexpr CoalescingOptions kDaemonCoalescing{.gap_bytes_max = std::uint64_t{4} << 10};
// A request to a store costs tens of milliseconds, in which a connection carries much.
inline constexpr CoalescingOptions kStoreCoalescing{
    .gap_bytes_max = std::uint64_t{64} << 10,
    .merged_bytes_max = std::uint64_t{4} << 20,
    .piece_bytes_max = std::uint64_t{4} << 20,
};

// Bytes [begin, end) of one file that are read together. Grows at its end only: offer it ranges in
// order of their offsets.
struct CoalescedRead {
  std::uint64_t begin_bytes = 0;
  std::uint64_t end_bytes = 0;

  // Takes [begin, end) in, if it is near enough and the whole stays small enough. Requires
  // begin <= end.
  bool Absorb(std::uint64_t begin, std::uint64_t end, const CoalescingOptions& options) noexcept {
    if (begin < begin_bytes) return false;
    const bool near = begin <= end_bytes || begin - end_bytes <= options.gap_bytes_max;
    if (!near || (end > end_bytes && end - begin_bytes > options.merged_bytes_max)) return false;
    if (end > end_bytes) end_bytes = end;
    return true;
  }
};

}  // namespace ffrecord
