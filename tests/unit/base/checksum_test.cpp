// Goal: checksums are those that the formats name.
// Method: vectors computed by other programs (zlib, xxhsum), pieces against the whole, and what was
// chosen for this processor against libxxhash itself.

#include "libffrecord/base/checksum.h"

#include <gtest/gtest.h>

#include <xxhash.h>

#include <array>
#include <iostream>
#include <random>
#include <string_view>
#include <vector>

#include "libffrecord/base/xxh3_variant.h"
#include "seed.h"

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

TEST(ChecksumTest, TheVariantOfThisProcessorGivesTheValuesOfLibxxhash) {
  std::mt19937_64 random(test::Seed());
  const Xxh3Variant& best = BestXxh3();
  std::cout << "variant " << best.name << "\n";
  std::vector<std::byte> bytes(std::size_t{1} << 20);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const auto check = [&](std::size_t begin, std::size_t size) {
    const std::byte* first = bytes.data() + begin;
    const std::uint64_t hash_seed = random() % 4 == 0 ? 0 : random();
    ASSERT_EQ(best.hash64(first, size, hash_seed), XXH3_64bits_withSeed(first, size, hash_seed))
        << size;
    std::array<unsigned char, 16> ours{};
    std::array<unsigned char, 16> plain{};
    best.hash128(first, size, ours.data());
    kXxh3Plain.hash128(first, size, plain.data());
    ASSERT_EQ(ours, plain) << size;
    Xxh3Stream stream;
    stream.Update(std::span(first, size / 2));
    stream.Update(std::span(first + size / 2, size - size / 2));
    ASSERT_EQ(stream.Finish64(), XXH3_64bits(first, size)) << size;
  };
  for (std::size_t size = 0; size <= 5000; ++size) check(random() % 64, size);
  for (int round = 0; round < 200; ++round) {
    const std::size_t begin = random() % 4096;
    check(begin, random() % (bytes.size() - begin));
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
