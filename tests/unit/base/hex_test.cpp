// Goal: bytes and numbers have one spelling in names and messages, and it is read back.
// Method: a few by hand, and every digit there and back.

#include "libffrecord/base/hex.h"

#include <gtest/gtest.h>

#include <array>
#include <cctype>
#include <cstdint>
#include <string>
#include <string_view>

namespace ffrecord {
namespace {

TEST(HexTest, BytesAndNumbersAreWrittenMostSignificantFirst) {
  const std::array bytes{std::byte{0x0f}, std::byte{0xa0}, std::byte{0}};
  EXPECT_EQ(Hex(bytes), "0fa000");
  EXPECT_EQ(Hex(std::span<const std::byte>{}), "");
  EXPECT_EQ(Hex(std::uint64_t{0x12ab}), "00000000000012ab");
  EXPECT_EQ(Hex(~std::uint64_t{0}), "ffffffffffffffff");
}

TEST(HexTest, DigitsAreReadInEitherCase) {
  for (int value = 0; value < 16; ++value) {
    const char digit = Hex(static_cast<std::uint64_t>(value)).back();
    EXPECT_EQ(HexDigit(digit), value);
    EXPECT_EQ(HexDigit(static_cast<char>(std::toupper(digit))), value);
  }
  for (const char other : {'g', 'G', '@', '/', ':', '`', '\0', '\x10', '\x19', '\xe1'})
    EXPECT_EQ(HexDigit(other), -1) << int{other};
}

TEST(HexTest, BytesAreReadBackFromAsManyDigits) {
  std::array<std::byte, 3> bytes{};
  EXPECT_TRUE(FromHex("0fA07e", bytes));
  EXPECT_EQ(Hex(bytes), "0fa07e");
  EXPECT_TRUE(FromHex("", {}));
  for (const std::string_view other :
       {"", "0fa07", "0fa07e0", "0fa07e00", "0fa0g0", "0fa00g", " fa000"})
    EXPECT_FALSE(FromHex(other, bytes)) << other;
}

}  // namespace
}  // namespace ffrecord
