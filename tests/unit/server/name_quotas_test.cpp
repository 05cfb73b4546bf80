// Goal: a quota stops growth past it and nothing else.
// Method: the check itself, with names of given sizes.

#include "server/metadata/name_quotas.h"

#include <gtest/gtest.h>

namespace ffrecord::server {
namespace {

// 8 of 10 bytes under a/ are taken by other names, and 3 of 4 under a/b/.
Result<void> Check(const std::string& name, std::uint64_t own_bytes, std::uint64_t size_bytes) {
  return CheckNameQuotas(
      {{"a/", 10}, {"a/b/", 4}}, name, own_bytes, size_bytes,
      [](const std::string& prefix) -> std::uint64_t { return prefix == "a/" ? 8 : 3; });
}

TEST(QuotaCheckTest, BindsUnderEachPrefixOfTheName) {
  EXPECT_TRUE(Check("a/x", 0, 2));
  EXPECT_FALSE(Check("a/x", 0, 3));
  EXPECT_TRUE(Check("a/b/x", 0, 1));
  EXPECT_FALSE(Check("a/b/x", 0, 2));
  EXPECT_TRUE(Check("b/x", 0, 1'000));
}

TEST(QuotaCheckTest, ARefusalNamesPrefixAndFigures) {
  const auto refused = Check("a/x", 1, 3);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().system_errno, EDQUOT);
  for (const char* const part : {"a/x has 3 bytes", "other 8 bytes", "'a/'", "quota of 10"})
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
}

TEST(QuotaCheckTest, ANameThatDoesNotGrowIsNotHeldUpAboveTheQuota) {
  EXPECT_TRUE(Check("a/x", 50, 50));
  EXPECT_TRUE(Check("a/x", 50, 20));
  EXPECT_FALSE(Check("a/x", 50, 51));
}

}  // namespace
}  // namespace ffrecord::server
