#pragma once

#include <cstddef>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>

namespace ffrecord::test {

// Text as bytes, borrowed, and back.
inline std::span<const std::byte> AsBytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}
inline std::string AsString(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Comparing and filling many bytes. The algorithms of std go byte by byte where tests are not
// optimised: 60 MB took a second under the sanitizers.
inline bool AreSame(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}
inline void Fill(std::span<std::byte> bytes, std::byte value) {
  if (!bytes.empty()) std::memset(bytes.data(), std::to_integer<int>(value), bytes.size());
}

// `size` random bytes.
inline std::string RandomText(std::size_t size, std::mt19937_64& random) {
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

}  // namespace ffrecord::test
