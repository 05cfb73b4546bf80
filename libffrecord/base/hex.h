#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ffrecord {

// Two digits for each byte, lower case.
std::string Hex(std::span<const std::byte> bytes);
// 16 digits, lower case, the most significant first.
std::string Hex(std::uint64_t number);

// The value of a hexadecimal digit in either case, 0 to 15; -1 if it is none.
constexpr int HexDigit(char digit) noexcept {
  if (digit >= '0' && digit <= '9') return digit - '0';
  const int value = (digit | 0x20) - 'a';
  return value >= 0 && value < 6 ? value + 10 : -1;
}
// Fills `bytes` with those that `text` spells, in either case. False if `text` is anything else
// than two digits for each byte.
bool FromHex(std::string_view text, std::span<std::byte> bytes) noexcept;

}  // namespace ffrecord
