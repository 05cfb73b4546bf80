// Goal: each member of a stripe is computed from any others that are enough, and from nothing that
// is not; too few say how many.
// Method: stripes of random members, the last of them shorter; sources that fail.

#include "server/service/cluster/stripe_rebuild.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "bytes.h"
#include "libffrecord/base/checksum.h"
#include "seed.h"

namespace ffrecord::server {
namespace {

using Bytes = std::vector<std::byte>;

// Its data members have 1,000 bytes, the last one 700.
struct SomeStripe {
  SomeStripe(ErasureCode code, std::size_t data_count, std::mt19937_64& random) {
    part.code = code;
    part.stripe.data_count = data_count;
    members.assign(data_count + code.parity, Bytes(1'000));
    for (std::size_t column = 0; column < data_count; ++column) {
      const std::string text = test::RandomText(column + 1 == data_count ? 700 : 1'000, random);
      const auto bytes = test::AsBytes(text);
      members[column].assign(bytes.begin(), bytes.end());
      for (std::size_t row = 0; row < code.parity; ++row)
        AddMultiple(code.Coefficient(row, column), bytes, members[data_count + row]);
    }
    for (std::uint32_t i = 0; i < members.size(); ++i)
      part.stripe.members.push_back({MakeExtentId(7, 0, i), members[i].size(), Xxh3(members[i])});
    order.resize(members.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
  }
  // But those of `lost`. What is asked for is counted.
  Result<Bytes> Rebuild(std::size_t member, const std::set<std::size_t>& lost) {
    part.member = member;
    return RebuildMember(part, order, [&](std::size_t other) -> Result<Bytes> {
      asked.push_back(other);
      if (lost.contains(other)) return Error{ErrorCode::kUnavailable, "nobody has it"};
      return members[other];
    });
  }

  cluster::StripePart part;
  std::vector<Bytes> members;
  std::vector<std::size_t> order, asked;
};

TEST(StripeRebuildTest, EachMemberIsComputedWhateverOthersAreLostToo) {
  std::mt19937_64 random(test::Seed());
  for (const std::size_t data_count : {1U, 3U, 4U}) {
    SomeStripe some({4, 2}, data_count, random);
    for (std::size_t member = 0; member < some.members.size(); ++member)
      for (std::size_t lost = 0; lost < some.members.size(); ++lost) {
        std::ranges::shuffle(some.order, random);
        const auto bytes = some.Rebuild(member, {member, lost});
        ASSERT_TRUE(bytes) << bytes.error().message;
        EXPECT_EQ(bytes.value(), some.members[member]) << member << " without " << lost;
      }
  }
}

TEST(StripeRebuildTest, ThoseNamedFirstAreTakenAndNoMoreThanNeeded) {
  std::mt19937_64 random(test::Seed());
  SomeStripe some({4, 2}, 4, random);
  some.order = {5, 3, 0, 1, 2, 4};
  EXPECT_TRUE(some.Rebuild(0, {}));
  EXPECT_EQ(some.asked, (std::vector<std::size_t>{5, 3, 1, 2}));
}

TEST(StripeRebuildTest, TooFewSayHowManyThereAreAndAreNotFound) {
  std::mt19937_64 random(test::Seed());
  SomeStripe some({4, 2}, 4, random);
  const auto bytes = some.Rebuild(1, {0, 5});
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().code, ErrorCode::kNotFound);
  EXPECT_NE(bytes.error().message.find("3 of the 4 other members"), std::string::npos)
      << bytes.error().message;
  EXPECT_NE(bytes.error().message.find("nobody has it"), std::string::npos);
}

TEST(StripeRebuildTest, WhatIsNotTheMemberIsNotReturned) {
  std::mt19937_64 random(test::Seed());
  SomeStripe some({2, 1}, 2, random);
  some.members[2][5] ^= std::byte{1};  // The publisher computed other parity.
  const auto bytes = some.Rebuild(0, {});
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().code, ErrorCode::kCorruption);
}

}  // namespace
}  // namespace ffrecord::server
