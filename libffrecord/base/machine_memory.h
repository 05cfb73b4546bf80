#pragma once

#include <cstdint>

namespace ffrecord {

// The memory of the machine, or the limit of the container where that is less. Reads a file.
std::uint64_t MachineMemoryBytes();

}  // namespace ffrecord
