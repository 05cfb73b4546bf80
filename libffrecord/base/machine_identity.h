#pragma once

#include <cstdint>
#include <optional>

namespace ffrecord {

// The identity of this machine: one boot of a kernel, and one network namespace of it, for only
// within that is a local socket reached. None if that cannot be found out. protocol.md, "Shared
// memory".
std::optional<std::uint64_t> MachineIdentity();

}  // namespace ffrecord
