#pragma once

#include <cstdint>

namespace ffrecord {

// From how many bytes to decompress a batch wakes the process's workers
// (libffrecord/base/shared_work.h), and how many bytes make a piece of their work.
inline constexpr std::uint64_t kDecompressedBytesMin = std::uint64_t{512} << 10;
inline constexpr std::uint64_t kDecompressedPieceBytes = std::uint64_t{64} << 10;

}  // namespace ffrecord
