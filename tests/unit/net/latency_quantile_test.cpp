// Goal: the latencies that half of all reads, and 99 of 100, stay below are learned from reads of
// the recent past.
// Method: known latencies in, the bound of the quantile out.

#include "libffrecord/net/replicas/latency_quantile.h"

#include <gtest/gtest.h>

#include <chrono>

namespace ffrecord::net {
namespace {

using namespace std::chrono_literals;

TEST(LatencyQuantileTest, TheBoundLiesJustAboveTheNinetyNinthOfAHundred) {
  LatencyQuantile quantile;
  EXPECT_FALSE(quantile.P99());
  for (int i = 0; i < 990; ++i) quantile.Note(1ms);
  for (int i = 0; i < 10; ++i) quantile.Note(100ms);
  ASSERT_TRUE(quantile.P99());
  EXPECT_GE(*quantile.P99(), 1ms);
  EXPECT_LE(*quantile.P99(), 1300us);
  for (int i = 0; i < 30; ++i) quantile.Note(100ms);
  EXPECT_GE(*quantile.P99(), 100ms);
  EXPECT_LE(*quantile.P99(), 130ms);
}

TEST(LatencyQuantileTest, FewLateReadsDoNotMoveTheMedian) {
  LatencyQuantile quantile;
  EXPECT_FALSE(quantile.Median());
  for (int i = 0; i < 60; ++i) quantile.Note(1ms);
  for (int i = 0; i < 40; ++i) quantile.Note(1s);
  ASSERT_TRUE(quantile.Median());
  EXPECT_GE(*quantile.Median(), 1ms);
  EXPECT_LE(*quantile.Median(), 1300us);
}

TEST(LatencyQuantileTest, ItForgets) {
  LatencyQuantile quantile;
  for (int i = 0; i < 10'000; ++i) quantile.Note(1s);
  for (int i = 0; i < 100'000; ++i) quantile.Note(1ms);
  EXPECT_LE(*quantile.P99(), 1300us);
}

TEST(LatencyQuantileTest, AnyTimeHasABucket) {
  LatencyQuantile quantile;
  for (int i = 0; i < 50; ++i) quantile.Note(std::chrono::nanoseconds(-5));
  for (int i = 0; i < 50; ++i) quantile.Note(std::chrono::nanoseconds::max());
  EXPECT_GT(*quantile.P99(), 1s);
}

}  // namespace
}  // namespace ffrecord::net
