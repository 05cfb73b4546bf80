#pragma once

#include <cstddef>
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

// `size` random bytes.
inline std::string RandomText(std::size_t size, std::mt19937_64& random) {
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

}  // namespace ffrecord::test
