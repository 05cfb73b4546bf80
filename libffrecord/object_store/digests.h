#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>

namespace ffrecord::object_store {

// The sums that S3 knows. Pure. An OpenSSL without SHA-256 ends the process.
using Sha256Digest = std::array<std::byte, 32>;
using Sha1Digest = std::array<std::byte, 20>;
using Md5Digest = std::array<std::byte, 16>;

Sha256Digest Sha256(std::span<const std::byte> bytes);
Sha256Digest HmacSha256(std::span<const std::byte> key, std::span<const std::byte> bytes);
// The MD5 of a part, as S3 names it in its ETag; nothing where OpenSSL's settings forbid MD5. Not
// for anything that an enemy may choose.
std::optional<Md5Digest> Md5(std::span<const std::byte> bytes);

// Names the cached tokens of the AWS tools; nothing where OpenSSL's settings forbid SHA-1.
std::optional<Sha1Digest> Sha1(std::span<const std::byte> bytes);

}  // namespace ffrecord::object_store
