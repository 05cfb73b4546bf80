#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ffrecord {

// Whether all pages of these bytes of a mapped file are in memory; true where the kernel does not
// tell. Costs a system call for each MiB. A read with RWF_NOWAIT would tell too, but it makes the
// kernel fetch the missing pages.
bool IsInMemory(std::span<const std::byte> mapped) noexcept;

// Share of the pages of mapped bytes, which are not empty, that are in memory; of more than 4 GiB,
// an estimate from 4,096 pieces of 1 MiB. Costs a system call for each piece.
double ResidentShare(std::span<const std::byte> mapped) noexcept;

// Whether the kernel tells this process which pages of the file are in memory. To a process that
// neither owns the file nor may write to it, the kernel reports all pages as present.
bool TellsWhatIsInMemory(int fd) noexcept;

// How many times this thread has waited for a device to fill a page. Costs one system call.
std::uint64_t MajorFaultsOfThread() noexcept;

// Tells the kernel that mapped pages will be read one by one. Otherwise it fetches the pages around
// each one too, as far as its read-ahead allows, up to some MiB. Only a hint.
void ExpectRandomAccess(std::span<const std::byte> mapped) noexcept;

// Asks the kernel to fetch the pages of mapped memory, without waiting for them. Only a hint.
void WillNeed(std::span<const std::byte> mapped) noexcept;

}  // namespace ffrecord
