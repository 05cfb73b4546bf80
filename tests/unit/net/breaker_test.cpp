// Goal: a target that does not answer is tried by one caller at a time, and by all once it does.
// Method: the breaker alone; callers that wait have threads of their own.

#include "libffrecord/net/rpc/breaker.h"

#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "libffrecord/base/patience.h"

namespace ffrecord::net {
namespace {

using Entry = Breaker::Entry;
using namespace std::chrono_literals;

Deadline In(std::chrono::milliseconds time) { return Clock::now() + time; }

class BreakerTest : public testing::Test {
 protected:
  void Open() {
    for (std::uint32_t i = 0; i < Breaker::kFailuresMax; ++i) {
      EXPECT_FALSE(breaker_.is_open());
      ASSERT_EQ(breaker_.Enter(In(60s)), Entry::kTogether);
      breaker_.Failed(Entry::kTogether);
    }
    EXPECT_TRUE(breaker_.is_open());
  }

  Breaker breaker_{1};
};

TEST_F(BreakerTest, AFewFailuresOpenItAndASuccessAmongThemDoesNot) {
  for (int round = 0; round < 5; ++round) {
    breaker_.Failed(breaker_.Enter(In(60s)));
    breaker_.Failed(breaker_.Enter(In(60s)));
    EXPECT_EQ(breaker_.Enter(In(60s)), Entry::kTogether);
    breaker_.Succeeded();
  }
  Open();
  EXPECT_EQ(breaker_.Enter(In(0ms)), Entry::kNotYet);
}

TEST_F(BreakerTest, WhoeverHasNoMorePatienceDoesNotWaitAndIsAskedWithoutTheLock) {
  Open();
  ASSERT_EQ(breaker_.Enter(In(60s)), Entry::kAlone);
  const Patience::GiveUp give_up = [&] { return breaker_.is_open(); };
  const Patience patience(give_up);
  EXPECT_EQ(breaker_.Enter(In(1h)), Entry::kNotYet);
}

TEST_F(BreakerTest, WhileItIsOpenOneGoesAndTheOthersWait) {
  Open();
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(breaker_.Enter(In(60s)), Entry::kAlone);
    EXPECT_EQ(breaker_.Enter(In(5ms)), Entry::kNotYet);
    // One that had set out before it opened comes back: nobody else may go for that.
    breaker_.Failed(Entry::kTogether);
    EXPECT_EQ(breaker_.Enter(In(5ms)), Entry::kNotYet);
    breaker_.Failed(Entry::kAlone);
  }
  ASSERT_EQ(breaker_.Enter(In(60s)), Entry::kAlone);
  breaker_.Abandoned(Entry::kAlone);
  ASSERT_EQ(breaker_.Enter(In(60s)), Entry::kAlone);
  breaker_.Succeeded();
  EXPECT_EQ(breaker_.Enter(In(60s)), Entry::kTogether);
  EXPECT_EQ(breaker_.Enter(In(60s)), Entry::kTogether);
}

TEST_F(BreakerTest, ThoseWhoWaitGoWhenOneHasSucceeded) {
  Open();
  ASSERT_EQ(breaker_.Enter(In(60s)), Entry::kAlone);
  std::vector<std::future<Entry>> waiting;
  for (int i = 0; i < 4; ++i)
    waiting.push_back(std::async(std::launch::async, [this] { return breaker_.Enter(In(60s)); }));

  breaker_.Succeeded();

  for (auto& one : waiting) EXPECT_EQ(one.get(), Entry::kTogether);
}

}  // namespace
}  // namespace ffrecord::net
