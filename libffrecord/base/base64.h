#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ffrecord {

// The standard alphabet of RFC 4648, with padding.
std::string EncodeBase64(std::span<const std::byte> bytes);
// None if `text` is anything else than what EncodeBase64() makes of some bytes.
std::optional<std::vector<std::byte>> DecodeBase64(std::string_view text);

}  // namespace ffrecord
