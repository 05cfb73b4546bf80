#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include <ffrecord/metadata.h>
#include <ffrecord/result.h>

namespace ffrecord {

// The list of what holds nulls; format.md, "Nested columns".
inline constexpr std::string_view kNullsMetadata = "ffrecord.nulls";

// The bytes of a metadata section. format.md, "User metadata". Fails with kInvalidArgument if
// a name is not 1 to 255 bytes of UTF-8 without NUL, or if all of it would exceed 16 MiB.
Result<std::vector<std::byte>> EncodeMetadata(const Metadata& metadata);

// Fails with kCorruption. Allocates no more than a small multiple of `bytes`.
Result<Metadata> DecodeMetadata(std::span<const std::byte> bytes);

}  // namespace ffrecord
