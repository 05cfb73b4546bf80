#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace ffrecord {

// User metadata of a file: values of any bytes, under names of 1 to 255 bytes of UTF-8 without NUL.
// At most 16 MiB in all when encoded (format.md, "User metadata").
using Metadata = std::map<std::string, std::vector<std::byte>>;

}  // namespace ffrecord
