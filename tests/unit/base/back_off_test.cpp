// Goal: tries of one request come ever later, up to a bound, and those of many clients apart.
// Method: the waits of BackOffs with known seeds.

#include "libffrecord/base/back_off.h"

#include <gtest/gtest.h>

#include <set>

namespace ffrecord {
namespace {

using namespace std::chrono_literals;

TEST(BackOffTest, GrowsToItsLongestStepAndVaries) {
  for (const BackOff::Steps& steps : {BackOff::kOfDaemons, BackOff::kOfStores}) {
    std::set<BackOff::Duration> last;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      BackOff back_off(steps, seed);
      auto step = steps.first;
      for (int i = 0; i < 12; ++i, step = std::min(2 * step, steps.longest)) {
        const auto wait = back_off.Next();
        EXPECT_GE(wait, step / 2) << i;
        EXPECT_LE(wait, step) << i;
        if (i == 11) last.insert(wait);
      }
      EXPECT_EQ(step, steps.longest);
    }
    EXPECT_GT(last.size(), 5U);
  }
}

TEST(BackOffTest, ATimeThatTheOtherEndAsksForPassesFirst) {
  BackOff back_off(BackOff::kOfDaemons, 1);
  const auto wait = back_off.Next(3s);
  EXPECT_GE(wait, 3s + 5ms);
  EXPECT_LE(wait, 3s + 10ms);
}

}  // namespace
}  // namespace ffrecord
