// Goal: a client that fails again and again fills no log, and no fault goes untold.
// Method: a clock that the test moves.

#include "server/service/core/fault_lines.h"

#include <gtest/gtest.h>

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;

constexpr FaultLines::Time kStart{1000s};

std::uint64_t TakeMany(FaultLines& lines, FaultLines::Time now, std::uint64_t count) {
  std::uint64_t said = 0;
  for (std::uint64_t i = 0; i < count; ++i) said += lines.Take(now) ? 1 : 0;
  return said;
}

TEST(FaultLinesTest, AFewFaultsAllGetALine) {
  FaultLines lines;
  EXPECT_EQ(TakeMany(lines, kStart, FaultLines::kLinesMax), FaultLines::kLinesMax);
  EXPECT_EQ(lines.TakeUnsaid(kStart + 1h), 0);
}

TEST(FaultLinesTest, TheRestOfAnIntervalIsCountedAndToldOnce) {
  FaultLines lines;
  EXPECT_EQ(TakeMany(lines, kStart, 5000), FaultLines::kLinesMax);
  EXPECT_EQ(lines.TakeUnsaid(kStart + FaultLines::kInterval - 1ms), 0);
  EXPECT_EQ(lines.TakeUnsaid(kStart + FaultLines::kInterval), 5000 - FaultLines::kLinesMax);
  EXPECT_EQ(lines.TakeUnsaid(kStart + FaultLines::kInterval), 0);
}

TEST(FaultLinesTest, TheNextIntervalHasLinesAgain) {
  FaultLines lines;
  TakeMany(lines, kStart, 5000);
  const auto later = kStart + FaultLines::kInterval;
  EXPECT_FALSE(lines.Take(later));  // What was not said comes first, with this one.
  EXPECT_EQ(lines.TakeUnsaid(later), 5001 - FaultLines::kLinesMax);
  EXPECT_EQ(TakeMany(lines, later, 5000), FaultLines::kLinesMax);
}

}  // namespace
}  // namespace ffrecord::server
