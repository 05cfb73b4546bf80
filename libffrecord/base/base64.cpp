#include "libffrecord/base/base64.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace ffrecord {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint32_t kNoDigit = 64;

constexpr std::array<std::uint8_t, 256> kDigits = [] {
  std::array<std::uint8_t, 256> digits{};
  digits.fill(kNoDigit);
  for (std::size_t i = 0; i < kAlphabet.size(); ++i)
    digits[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
  return digits;
}();

}  // namespace

std::string EncodeBase64(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (i < count ? std::to_integer<std::uint32_t>(bytes[at + i]) : 0);
    for (std::size_t i = 0; i < 4; ++i)
      text += i <= count ? kAlphabet[bits >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

std::optional<std::vector<std::byte>> DecodeBase64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (std::size_t at = 0; at < text.size(); at += 4) {
    const std::size_t digit_count = at + 4 == text.size() ? 4 - padding : 4;
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint32_t digit =
          i < digit_count ? kDigits[static_cast<unsigned char>(text[at + i])] : 0;
      if (digit == kNoDigit) return std::nullopt;
      bits = bits << 6 | digit;
    }
    for (std::size_t i = 0; i + 1 < digit_count; ++i)
      bytes.push_back(static_cast<std::byte>(bits >> (16 - 8 * i) & 0xFF));
    // The unused bits of the last digit must be 0, or two texts would mean the same.
    if ((bits & ((1U << (8 * (4 - digit_count))) - 1)) != 0) return std::nullopt;
  }
  return bytes;
}

}  // namespace ffrecord
