#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include <ffrecord/result.h>

namespace ffrecord::server {

inline constexpr std::size_t kSecretSizeBytesMax = 64 << 10;

// The text of the file, of which no more is read than kSecretSizeBytesMax. Fails with kNotFound,
// kDenied if others than its owner may get at it, kInvalidArgument if it is no regular file, kIo.
Result<std::string> ReadSecret(const std::filesystem::path& path);

}  // namespace ffrecord::server
