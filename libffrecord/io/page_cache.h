#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ffrecord {

// Whether all pages of these bytes of a mapped file are in memory; true where the kernel does not
// say. A system call for each MiB. A read that may not wait (RWF_NOWAIT) would tell too, but has
// the kernel fetch what is not there.
bool IsInMemory(std::span<const std::byte> mapped) noexcept;

// Whether the kernel tells this process which pages of the file are in memory: those who may not
// write to a file that is not theirs are told that all are.
bool TellsWhatIsInMemory(int fd) noexcept;

// How many bytes of files the page cache could hold now, as far as the machine and this container
// say; 0 if they do not.
std::uint64_t PageCacheRoomBytes();

// How many pages this thread waited for a device to fill, since it began. Costs one system call.
std::uint64_t MajorFaultsOfThread() noexcept;

// Says that pages of mapped memory are wanted one by one: else the kernel fetches, for each that it
// has to, as many around it as its read-ahead allows, up to some MiB. Only a hint.
void ExpectRandomAccess(std::span<const std::byte> mapped) noexcept;

// Asks the kernel to fetch the pages of mapped memory, without waiting for them. Only a hint.
void WillNeed(std::span<const std::byte> mapped) noexcept;

}  // namespace ffrecord
