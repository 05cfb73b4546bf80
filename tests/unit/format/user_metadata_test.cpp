// Goal: metadata comes back as it was given; nothing else is taken for it.
// Method: the page's layout by hand; limits on both sides; every bit flipped, every cut tried.

#include "libffrecord/format/user_metadata.h"

#include <gtest/gtest.h>

#include <string>

#include "bytes.h"

namespace ffrecord {
namespace {

using test::AsBytes;

std::vector<std::byte> Bytes(std::string_view text) {
  return {AsBytes(text).begin(), AsBytes(text).end()};
}

TEST(MetadataTest, LayoutIsThatOfThePage) {
  const Metadata metadata{{"b", Bytes("xyz")}, {"a", {}}};
  const std::string expected(
      "\2\0\0\0"
      "\1a\0\0\0\0"
      "\1b\3\0\0\0xyz",
      19);
  EXPECT_EQ(test::AsString(EncodeMetadata(metadata).value()), expected);
  EXPECT_EQ(DecodeMetadata(AsBytes(expected)).value(), metadata);
  EXPECT_TRUE(DecodeMetadata(EncodeMetadata({}).value()).value().empty());
}

TEST(MetadataTest, ForeignNamesAreRefusedOnBothSides) {
  const std::string long_name(256, 'n');
  for (const std::string& name : {std::string(), long_name, std::string("a\0b", 3),
                                  std::string("\xff"), std::string("\xed\xa0\x80")})
    EXPECT_EQ(EncodeMetadata({{name, {}}}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_TRUE(EncodeMetadata({{std::string(255, 'n'), {}}}));
  EXPECT_FALSE(DecodeMetadata(AsBytes(std::string("\1\0\0\0\0\0\0\0\0", 9))));
  EXPECT_FALSE(DecodeMetadata(AsBytes(std::string("\1\0\0\0\1\xff\0\0\0\0", 10))));
}

TEST(MetadataTest, OrderIsKept) {
  const std::string twice(
      "\2\0\0\0"
      "\1a\0\0\0\0"
      "\1a\0\0\0\0",
      16);
  const std::string down(
      "\2\0\0\0"
      "\1b\0\0\0\0"
      "\1a\0\0\0\0",
      16);
  EXPECT_FALSE(DecodeMetadata(AsBytes(twice)));
  EXPECT_FALSE(DecodeMetadata(AsBytes(down)));
}

TEST(MetadataTest, SixteenMebibytesAreTheLimit) {
  const std::size_t room = (16 << 20) - 4 - 1 - 1 - 4;
  const auto largest = EncodeMetadata({{"a", std::vector<std::byte>(room)}});
  ASSERT_TRUE(largest);
  EXPECT_EQ(largest.value().size(), 16U << 20);
  EXPECT_TRUE(DecodeMetadata(largest.value()));
  EXPECT_EQ(EncodeMetadata({{"a", std::vector<std::byte>(room + 1)}}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(DecodeMetadata(std::vector<std::byte>((16 << 20) + 1)));
}

TEST(MetadataTest, CutAndLengthenedSectionsAreRefused) {
  const auto encoded = EncodeMetadata({{"one", Bytes("1")}, {"two", Bytes("22")}}).value();
  for (std::size_t size = 0; size < encoded.size(); ++size)
    EXPECT_FALSE(DecodeMetadata(std::span(encoded).first(size))) << size;
  auto longer = encoded;
  longer.push_back({});
  EXPECT_FALSE(DecodeMetadata(longer));
}

TEST(MetadataTest, WhatIsDecodedIsEncodedTheSame) {
  const auto encoded = EncodeMetadata({{"one", Bytes("1")}, {"two", Bytes("22")}}).value();
  for (std::size_t bit = 0; bit < encoded.size() * 8; ++bit) {
    auto flipped = encoded;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    const auto decoded = DecodeMetadata(flipped);
    if (decoded) {
      EXPECT_EQ(EncodeMetadata(decoded.value()).value(), flipped) << bit;
    }
  }
}

}  // namespace
}  // namespace ffrecord
