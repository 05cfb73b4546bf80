#pragma once

#include <cstddef>
#include <span>

namespace ffrecord {

// Copies `from` to the start of `to` past the processor's caches, for what is not read again soon:
// a store that goes through them reads each line of memory before it writes it, a half more
// traffic. glibc's memcpy does so too, but from a size on that depends on the machine, as large as
// 192 MiB. Any alignment; they must not overlap. Requires to.size() >= from.size().
void StreamingCopy(std::span<std::byte> to, std::span<const std::byte> from) noexcept;

}  // namespace ffrecord
