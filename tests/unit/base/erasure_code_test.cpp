// Goal: any members of a stripe, as many as it has data members, give all others, by the code that
// is fixed for good. Method: golden vectors, arithmetic written out here, and every choice of lost
// members of small stripes.

#include "libffrecord/base/erasure_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace ffrecord {
namespace {

using Bytes = std::vector<std::byte>;

Bytes SomeBytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// By the definition, bit by bit.
std::uint8_t Multiply(unsigned a, unsigned b) {
  unsigned product = 0;
  for (; b != 0; b >>= 1, a = (a << 1) ^ ((a & 0x80) != 0 ? 0x11d : 0))
    if ((b & 1) != 0) product ^= a;
  return static_cast<std::uint8_t>(product);
}

// Data members, then parity members, which are as long as the longest.
std::vector<Bytes> Stripe(const ErasureCode& code, const std::vector<std::size_t>& sizes) {
  std::vector<Bytes> members;
  for (const std::size_t size : sizes) members.push_back(SomeBytes(size, members.size() + 1));
  const std::size_t longest = *std::ranges::max_element(sizes);
  for (std::size_t row = 0; row < code.parity; ++row) {
    Bytes parity(longest);
    for (std::size_t i = 0; i < sizes.size(); ++i)
      AddMultiple(code.Coefficient(row, i), members[i], parity);
    members.push_back(std::move(parity));
  }
  return members;
}

TEST(ErasureCodeTest, ItIsTheOneThatIsWrittenDown) {
  const ErasureCode code{4, 2};
  const std::vector<std::vector<std::uint8_t>> rows{{0x47, 0xa7, 0x7a, 0xba},
                                                    {0xa7, 0x47, 0xba, 0x7a}};
  for (std::size_t row = 0; row < rows.size(); ++row)
    for (std::size_t column = 0; column < 4; ++column)
      EXPECT_EQ(code.Coefficient(row, column), rows[row][column]);
  Bytes first(1), second(1);
  for (std::size_t i = 0; i < 4; ++i) {
    const Bytes data{static_cast<std::byte>(i + 1)};
    AddMultiple(code.Coefficient(0, i), data, first);
    AddMultiple(code.Coefficient(1, i), data, second);
  }
  EXPECT_EQ(first.front(), std::byte{0x48});
  EXPECT_EQ(second.front(), std::byte{0x0f});
}

TEST(ErasureCodeTest, MultiplesAreThoseOfTheFieldAtEveryLengthAndPlace) {
  for (const std::size_t size : {0U, 1U, 7U, 15U, 16U, 31U, 32U, 33U, 63U, 64U, 65U, 1000U, 4097U})
    for (const std::size_t offset : {0U, 1U, 13U}) {
      const Bytes from = SomeBytes(size + offset, size);
      Bytes to = SomeBytes(size + offset + 3, size + 1);
      Bytes expected = to;
      const auto coefficient = static_cast<std::uint8_t>(size * 37 + offset + 1);
      for (std::size_t i = 0; i < size; ++i)
        expected[offset + i] ^= static_cast<std::byte>(
            Multiply(coefficient, std::to_integer<unsigned>(from[offset + i])));
      AddMultiple(coefficient, std::span(from).subspan(offset), std::span(to).subspan(offset));
      EXPECT_EQ(to, expected) << size << " bytes at " << offset;
    }
}

TEST(ErasureCodeTest, AnyMembersGiveAllOthers) {
  const std::vector<std::pair<ErasureCode, std::vector<std::size_t>>> stripes{
      {{4, 2}, {100, 100, 100, 100}},
      {{4, 2}, {100, 31, 100, 1}},
      {{4, 2}, {50}},
      {{4, 2}, {64, 17}},
      {{2, 1}, {33, 33}},
      {{8, 3}, {9, 9, 9, 9, 9, 9, 9, 4}},
      {{3, 4}, {20, 40, 20}}};
  for (const auto& [code, sizes] : stripes) {
    const auto members = Stripe(code, sizes);
    const std::size_t longest = members.back().size();
    for (unsigned mask = 0; mask < 1U << members.size(); ++mask) {
      if (static_cast<std::size_t>(std::popcount(mask)) != sizes.size()) continue;
      std::vector<std::size_t> present;
      for (std::size_t i = 0; i < members.size(); ++i)
        if ((mask >> i & 1) != 0) present.push_back(i);
      for (std::size_t lost = 0; lost < members.size(); ++lost) {
        if ((mask >> lost & 1) != 0) continue;
        const auto coefficients = RebuildCoefficients(code, sizes.size(), lost, present);
        Bytes sum(longest);
        for (std::size_t i = 0; i < present.size(); ++i)
          AddMultiple(coefficients[i], members[present[i]], sum);
        Bytes expected = members[lost];
        expected.resize(longest);
        ASSERT_EQ(sum, expected) << "lost " << lost << ", mask " << mask;
      }
    }
  }
}

TEST(ErasureCodeTest, ItHasBounds) {
  EXPECT_TRUE((ErasureCode{2, 1}.is_valid()));
  EXPECT_TRUE((ErasureCode{16, 4}.is_valid()));
  for (const ErasureCode code : {ErasureCode{1, 1}, {17, 2}, {4, 0}, {4, 5}, {0, 0}})
    EXPECT_FALSE(code.is_valid());
  EXPECT_TRUE(ErasureCode{}.is_none());
}

}  // namespace
}  // namespace ffrecord
