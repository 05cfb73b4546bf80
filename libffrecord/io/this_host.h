#pragma once

#include <cstdint>
#include <string>

namespace ffrecord {

// Identifies this boot of this host, with one file system that is mounted there, in 16 hex digits.
// File locks (flock) may not reach other hosts, nor another mount of the same folder, as where two
// containers mount a bucket each: so the writer of a temporary file that has other digits may or
// may not be alive. `device`: the st_dev of the folder. If the kernel does not tell the boot, the
// digits are random.
std::string ThisHost(std::uint64_t device);

}  // namespace ffrecord
