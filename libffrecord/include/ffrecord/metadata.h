#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace ffrecord {

// What a user keeps with a file: values of any bytes under names of 1 to 255 bytes of UTF-8 without
// NUL. Encoded, all of it has at most 16 MiB (format.md, "User metadata").
using Metadata = std::map<std::string, std::vector<std::byte>>;

}  // namespace ffrecord
