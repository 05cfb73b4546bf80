#pragma once

#include <string_view>

namespace ffrecord {

// Identifies this boot of this host, in 16 hex digits. File locks (flock) may not reach other
// hosts, so the writer of a temporary file of another host, or of an earlier boot, may or may not
// be alive. If the kernel does not tell, the digits are random.
std::string_view ThisHost();

}  // namespace ffrecord
