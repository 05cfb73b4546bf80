// Goal: the copies of a node together keep to its rate, time that was not used is made up for in
// part only, and nothing waits without a rate.
// Method: a clock that the test moves.

#include "server/service/cluster/pull_pace.h"

#include <gtest/gtest.h>

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;

constexpr PullPace::Time kStart{1000s};

TEST(PullPaceTest, BytesThatFollowWaitForThoseBefore) {
  PullPace pace(1'000'000);
  EXPECT_EQ(pace.Take(kStart, 500'000), kStart - PullPace::kUnusedMax);
  EXPECT_EQ(pace.Take(kStart, 2'000'000), kStart + 500ms - PullPace::kUnusedMax);
  EXPECT_EQ(pace.Take(kStart, 1), kStart + 2500ms - PullPace::kUnusedMax);
}

TEST(PullPaceTest, ALongPauseIsMadeUpForInPartOnly) {
  PullPace pace(1'000'000);
  pace.Take(kStart, 1'000'000);
  const auto later = kStart + 1h;
  EXPECT_EQ(pace.Take(later, 1'000'000), later - PullPace::kUnusedMax);
  EXPECT_EQ(pace.Take(later, 1), later + 1s - PullPace::kUnusedMax);
}

TEST(PullPaceTest, AShortPauseIsMadeUpFor) {
  PullPace pace(1'000'000);
  const auto first = pace.Take(kStart, 1'000'000);
  EXPECT_EQ(pace.Take(first + 1100ms, 1'000'000), first + 1s);
}

TEST(PullPaceTest, WithoutARateNothingWaits) {
  PullPace pace(0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(pace.Take(kStart, 1ULL << 40), kStart);
}

TEST(PullPaceTest, LargeSizesDoNotOverflow) {
  PullPace pace(1ULL << 20);
  pace.Take(kStart, 1ULL << 40);  // The whole of a large disk.
  EXPECT_EQ(pace.Take(kStart, 1), kStart - PullPace::kUnusedMax + std::chrono::seconds(1 << 20));
}

}  // namespace
}  // namespace ffrecord::server
