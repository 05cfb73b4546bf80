#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace ffrecord {

// The memory of the machine, or the limit of the process's control groups where that is less. Reads
// some files.
std::uint64_t MachineMemoryBytes();

// The least limit of the control groups of version 1 or 2 that the process of this folder is in,
// such as /proc/self; none if there is no limit.
std::optional<std::uint64_t> GroupMemoryBytes(const std::filesystem::path& process);

// Memory that processes can still take: of the machine, or what the control groups of this process
// still allow where that is less; 0 if the kernel does not say. Pages of files count as free, since
// the kernel drops them when memory is short. Reads some files.
std::uint64_t FreeMemoryBytes();

// The same of the control groups alone, by the group with the least left; none if none has a limit.
std::optional<std::uint64_t> GroupFreeBytes(const std::filesystem::path& process);

}  // namespace ffrecord
