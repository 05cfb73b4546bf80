// Goal: bytes and numbers have one spelling in names and messages, and it is read back.
// Method: a few by hand, and every digit there and back.

#include "libffrecord/base/hex.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>

namespace ffrecord {
namespace {

TEST(HexTest, BytesAndNumbersAreWrittenMostSignificantFirst) {
  const std::array bytes{std::byte{0x0f}, std::byte{0xa0}, std::byte{0}};
  EXPECT_EQ(Hex(bytes), "0fa000");
  EXPECT_EQ(Hex(std::span<const std::byte>{}), "");
  EXPECT_EQ(Hex(std::uint64_t{0x12ab}), "00000000000012ab");
  EXPECT_EQ(Hex(~std::uint64_t{0}), "ffffffffffffffff");
}

TEST(HexTest, DigitsAreReadInLowerCaseOnly) {
  for (int value = 0; value < 16; ++value)
    EXPECT_EQ(HexDigit(Hex(static_cast<std::uint64_t>(value)).back()), value);
  for (const char other : {'g', 'A', '/', ':', '`', '\0'}) EXPECT_EQ(HexDigit(other), -1);
}

}  // namespace
}  // namespace ffrecord
