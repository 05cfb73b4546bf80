// Goal: the order of an epoch is the specified bijection, in every build.
// Method: the golden vectors of format.md, and every position of many small counts.

#include <ffrecord/permutation.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace ffrecord {
namespace {

struct Golden {
  std::uint64_t seed, epoch, count;
  std::vector<std::uint64_t> first;
  std::uint64_t last;
};

TEST(PermutationTest, GivesTheGoldenVectors) {
  const std::vector<Golden> goldens = {
      {0, 0, 10, {7, 9, 3, 0}, 1},
      {0, 1, 10, {1, 2, 5, 0}, 3},
      {42, 3, 1000, {499, 64, 125, 649}, 569},
      {0, 0, 1281167, {515544, 726827, 1153306, 984601}, 218547},
      {~std::uint64_t{0},
       std::uint64_t{1} << 32,
       std::uint64_t{1} << 48,
       {244541229551114, 80583457655150, 232606719202841, 221934506865021},
       65248226150410}};
  for (const auto& golden : goldens) {
    const auto order = Permutation::Make(golden.seed, golden.epoch, 0, golden.count).value();
    for (std::uint64_t p = 0; p < golden.first.size(); ++p) EXPECT_EQ(order(p), golden.first[p]);
    EXPECT_EQ(order(golden.count - 1), golden.last);
  }
}

TEST(PermutationTest, IsABijectionAndItsInverseUndoesIt) {
  for (std::uint64_t count = 1; count <= 4096; count += count < 300 ? 1 : 97) {
    const auto order = Permutation::Make(count * 7, count % 5, 0, count).value();
    std::vector<bool> seen(count, false);
    for (std::uint64_t p = 0; p < count; ++p) {
      const std::uint64_t index = order(p);
      ASSERT_LT(index, count);
      ASSERT_FALSE(seen[index]) << "count " << count << ", position " << p;
      seen[index] = true;
      ASSERT_EQ(order.PositionOf(index), p);
    }
  }
}

TEST(PermutationTest, FillsAsManyCallsWouldWhereverItBegins) {
  for (const std::uint64_t count : {1U, 9U, 257U, 300U, 513U, 4096U}) {
    const auto order = Permutation::Make(3, 4, 0, count).value();
    const auto blocked = BlockedPermutation::Make(3, 4, count, 7, 3).value();
    for (std::uint64_t first = 0; first <= count; first += first < 20 ? 1 : 61) {
      for (const std::uint64_t size : {0U, 1U, 7U, 8U, 9U, 50U, 512U, 521U, 1100U}) {
        std::vector<std::uint64_t> indices(std::min(size, count - first));
        order.Fill(first, indices);
        for (std::uint64_t i = 0; i < indices.size(); ++i)
          ASSERT_EQ(indices[i], order(first + i)) << count << ' ' << first << ' ' << i;
        blocked.Fill(first, indices);
        for (std::uint64_t i = 0; i < indices.size(); ++i)
          ASSERT_EQ(indices[i], blocked(first + i)) << count << ' ' << first << ' ' << i;
      }
    }
  }
}

TEST(PermutationTest, RefusesCountsOutsideItsRange) {
  EXPECT_FALSE(Permutation::Make(0, 0, 0, 0));
  EXPECT_FALSE(Permutation::Make(0, 0, 0, (std::uint64_t{1} << 48) + 1));
}

TEST(BlockedPermutationTest, GivesTheGoldenVector) {
  const auto order = BlockedPermutation::Make(0, 0, 10, 4, 2).value();
  const std::vector<std::uint64_t> golden = {9, 4, 1, 2, 3, 0, 8, 5, 6, 7};
  for (std::uint64_t p = 0; p < golden.size(); ++p) EXPECT_EQ(order(p), golden[p]);
}

TEST(BlockedPermutationTest, IsABijectionForEveryTail) {
  for (std::uint64_t count = 1; count <= 200; ++count) {
    for (const std::uint64_t block : {1U, 3U, 8U, 300U}) {
      for (const std::uint64_t window : {1U, 2U, 7U}) {
        const auto order = BlockedPermutation::Make(5, 6, count, block, window).value();
        std::vector<bool> seen(count, false);
        for (std::uint64_t p = 0; p < count; ++p) {
          const std::uint64_t index = order(p);
          ASSERT_LT(index, count);
          ASSERT_FALSE(seen[index]) << count << ' ' << block << ' ' << window << ' ' << p;
          seen[index] = true;
        }
      }
    }
  }
}

TEST(BlockedPermutationTest, RefusesProductsThatOverflow) {
  EXPECT_FALSE(BlockedPermutation::Make(0, 0, 10, std::uint64_t{1} << 40, std::uint64_t{1} << 40));
  EXPECT_FALSE(BlockedPermutation::Make(0, 0, 10, 0, 1));
}

}  // namespace
}  // namespace ffrecord
