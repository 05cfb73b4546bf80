#pragma once

#include <string_view>

namespace ffrecord {

// This host since it was booted, in 16 hex digits. Locks of files (flock) may be a matter of one
// host, so who finds a temporary file of another host, or of this one before its last boot, cannot
// know whether its writer lives. Digits that nobody else has if the kernel does not say.
std::string_view ThisHost();

}  // namespace ffrecord
