#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ffrecord {

// Whether the byte at `offset_bytes` of `fd`, opened without O_DIRECT, can be read now without
// waiting for a device. Costs one system call. True where the file system cannot tell.
bool IsInPageCache(int fd, std::uint64_t offset_bytes) noexcept;

// How many pages this thread waited for a device to fill, since it began. Costs one system call.
std::uint64_t MajorFaultsOfThread() noexcept;

// Asks the kernel to fetch the pages of mapped memory, without waiting for them. Only a hint.
void WillNeed(std::span<const std::byte> mapped) noexcept;

}  // namespace ffrecord
