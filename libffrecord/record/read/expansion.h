#pragma once

#include <cstdint>

namespace ffrecord {

// What a batch must expand, in bytes, to be worth waking the process's helpers
// (libffrecord/base/shared_work.h), and what makes a good piece of it.
inline constexpr std::uint64_t kExpandedBytesMin = std::uint64_t{512} << 10;
inline constexpr std::uint64_t kExpandedPieceBytes = std::uint64_t{64} << 10;

}  // namespace ffrecord
