// Goal: the digest of a whole is the XOR of its parts' digests at their offsets, and equal on every
// processor. Method: against the definition, bit by bit; random cuts; both arithmetics.

#include "libffrecord/base/linear_digest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "seed.h"

namespace ffrecord {
namespace {

std::vector<std::byte> RandomBytes(std::mt19937_64& random, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// By the definition.
std::uint64_t Defined(std::span<const std::byte> bytes, std::uint64_t offset) {
  std::uint64_t digest = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    digest ^= MultiplyLinear(static_cast<std::uint64_t>(bytes[i]), PowerOfX(8 * (offset + i)));
  return digest;
}

TEST(LinearDigestTest, BytesCountByTheirPlaces) {
  std::mt19937_64 random(test::Seed());
  for (const std::size_t size : {0U, 1U, 2U, 7U, 8U, 15U, 16U, 17U, 31U, 127U, 128U, 129U, 300U}) {
    const auto bytes = RandomBytes(random, size);
    for (const std::uint64_t offset : {0UL, 1UL, 255UL, 256UL, 65'536UL, (1UL << 48) - 1}) {
      EXPECT_EQ(LinearDigest(bytes, offset), Defined(bytes, offset)) << size << " at " << offset;
    }
    EXPECT_EQ(kPlainLinear.digest(bytes), Defined(bytes, 0)) << size;
  }
}

TEST(LinearDigestTest, KnownBytesHaveTheDigestOfTheFormat) {
  const std::vector<std::byte> text{std::byte{'a'}, std::byte{'b'}, std::byte{'c'}};
  EXPECT_EQ(LinearDigest(text), 0x636261U);
  std::vector<std::byte> long_text(64, std::byte{1});
  EXPECT_EQ(LinearDigest(long_text), Defined(long_text, 0));
}

TEST(LinearDigestTest, AWholeIsTheSumOfItsPartsHoweverItIsCut) {
  std::mt19937_64 random(test::Seed());
  const auto bytes = RandomBytes(random, 100'000);
  const std::uint64_t whole = LinearDigest(bytes, 77);
  EXPECT_EQ(whole, BestLinear().multiply(kPlainLinear.digest(bytes), PowerOfX(8 * 77)));
  for (int round = 0; round < 20; ++round) {
    std::vector<std::size_t> cuts{0, bytes.size()};
    for (int i = 0; i < round; ++i) cuts.push_back(random() % bytes.size());
    std::ranges::sort(cuts);
    std::uint64_t sum = 0;
    for (std::size_t i = cuts.size() - 1; i > 0; --i)  // In any order.
      sum ^= LinearDigest(std::span(bytes).subspan(cuts[i - 1], cuts[i] - cuts[i - 1]),
                          77 + cuts[i - 1]);
    EXPECT_EQ(sum, whole) << round;
  }
}

TEST(LinearDigestTest, OneChangedBitOrTwoBytesExchangedChangeIt) {
  std::mt19937_64 random(test::Seed());
  auto bytes = RandomBytes(random, 5000);
  const std::uint64_t before = LinearDigest(bytes);
  for (int round = 0; round < 2000; ++round) {
    auto changed = bytes;
    const std::size_t at = random() % bytes.size();
    changed[at] ^= std::byte{1} << (random() % 8);
    EXPECT_NE(LinearDigest(changed), before);
    changed = bytes;
    const std::size_t other = random() % bytes.size();
    std::swap(changed[at], changed[other]);
    if (changed[at] != bytes[at]) {
      EXPECT_NE(LinearDigest(changed), before);
    }
  }
}

}  // namespace
}  // namespace ffrecord
