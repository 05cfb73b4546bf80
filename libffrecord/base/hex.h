#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ffrecord {

// Two digits for each byte, lower case.
std::string Hex(std::span<const std::byte> bytes);
// 16 digits, lower case, the most significant first.
std::string Hex(std::uint64_t number);

// Of a lower-case digit, 0 to 15; -1 if it is none.
constexpr int HexDigit(char digit) noexcept {
  if (digit >= '0' && digit <= '9') return digit - '0';
  return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

}  // namespace ffrecord
