// Goal: checksums are those that the formats name.
// Method: vectors computed by other programs (zlib, xxhsum), and pieces against the whole.

#include "libffrecord/base/checksum.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace ffrecord {
namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(ChecksumTest, Crc32IsThatOfZlib) {
  EXPECT_EQ(Crc32(Bytes("abc")), 0x352441c2U);
  EXPECT_EQ(Crc32({}), 0U);
  EXPECT_EQ(Crc32(Bytes("c"), Crc32(Bytes("ab"))), 0x352441c2U);
}

TEST(ChecksumTest, Xxh3IsThatOfXxhsum) {
  EXPECT_EQ(Xxh3({}), 0x2d06800538d394c2U);
  EXPECT_EQ(Xxh3(Bytes("abc")), 0x78af5f94892f3950U);
}

TEST(ChecksumTest, StreamedDigestEqualsTheDigestOfTheWhole) {
  Xxh3Stream stream;
  stream.Update(Bytes("some "));
  stream.Update(Bytes("bytes"));
  EXPECT_EQ(stream.Finish(), Xxh3Digest(Bytes("some bytes")));
}

TEST(ChecksumTest, StreamedXxh3EqualsTheOneOfTheWholeAtEverySize) {
  std::vector<std::byte> bytes(2000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    const std::span<const std::byte> whole(bytes.data(), size);
    Xxh3Stream stream;
    stream.Update(whole.first(size / 3));
    stream.Update(whole.subspan(size / 3));
    ASSERT_EQ(stream.Finish64(), Xxh3(whole)) << size;
    ASSERT_EQ(stream.Finish(), Xxh3Digest(whole)) << size;
  }
}

TEST(ChecksumTest, PlaceSeedDependsOnIdAndNumber) {
  std::array<std::byte, 16> id{};
  const auto seed = PlaceSeed(id, 0);
  EXPECT_NE(seed, PlaceSeed(id, 1));
  id[15] = std::byte{1};
  EXPECT_NE(seed, PlaceSeed(id, 0));
}

}  // namespace
}  // namespace ffrecord
