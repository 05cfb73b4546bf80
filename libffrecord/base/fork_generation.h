#pragma once

#include <cstdint>

namespace ffrecord {

// How many forks lie between this process and the one that asked first. Rings, threads and locks
// belong to one generation: who finds another number than the one it noted is in a child and must
// make its own. Costs a load, where getpid() is a system call. Thread-safe. Blind to raw clone().
std::uint32_t ForkGeneration() noexcept;

}  // namespace ffrecord
