#pragma once

#include <cstdint>

namespace ffrecord {

// What a batch must decompress, in bytes, to be worth waking the process's workers
// (libffrecord/base/shared_work.h), and what makes a good piece of it.
inline constexpr std::uint64_t kDecompressedBytesMin = std::uint64_t{512} << 10;
inline constexpr std::uint64_t kDecompressedPieceBytes = std::uint64_t{64} << 10;

}  // namespace ffrecord
