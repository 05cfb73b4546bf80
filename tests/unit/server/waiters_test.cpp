// Goal: each caller that waits for the machines is answered once: when it has come, at its
// deadline, or at the end. Method: waiters alone, with times of the test.

#include "server/service/cluster/waiters.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <vector>

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;

class WaitersTest : public testing::Test {
 protected:
  void Add(bool& is_reached, cluster::TimePoint deadline) {
    waiters_.Add([&] { return is_reached; }, deadline,
                 [this](const Result<void>& result) {
                   codes_.push_back(result ? ErrorCode::kOk : result.error().code);
                 });
  }
  using Codes = std::vector<ErrorCode>;

  const cluster::TimePoint now_{1'000s};
  Waiters waiters_;
  Codes codes_;
};

TEST_F(WaitersTest, OneIsAnsweredOnceItHasReachedWhatItWaitsFor) {
  bool is_reached = false;
  Add(is_reached, now_ + 10s);
  waiters_.Answer(now_);
  EXPECT_EQ(codes_, Codes{});
  is_reached = true;
  waiters_.Answer(now_);
  waiters_.Answer(now_);
  EXPECT_EQ(codes_, Codes{ErrorCode::kOk});
}

TEST_F(WaitersTest, OneIsLateAtItsDeadlineAndNotBefore) {
  bool is_reached = false;
  Add(is_reached, now_ + 10s);
  EXPECT_EQ(waiters_.wake(), now_ + 10s);
  waiters_.Answer(now_ + 10s - 1ns);
  EXPECT_EQ(codes_, Codes{});
  waiters_.Answer(now_ + 10s);
  EXPECT_EQ(codes_, Codes{ErrorCode::kDeadlineExceeded});
  EXPECT_EQ(waiters_.wake(), cluster::TimePoint::max());
}

TEST_F(WaitersTest, OneThatHasReachedItAtItsDeadlineIsNotLate) {
  bool is_reached = true;
  Add(is_reached, now_);
  waiters_.Answer(now_ + 1s);
  EXPECT_EQ(codes_, Codes{ErrorCode::kOk});
}

TEST_F(WaitersTest, TheEarliestDeadlineWakes) {
  bool is_reached = false;
  Add(is_reached, now_ + 10s);
  Add(is_reached, now_ + 3s);
  Add(is_reached, now_ + 5s);
  EXPECT_EQ(waiters_.wake(), now_ + 3s);
}

TEST_F(WaitersTest, OneThatBeginsToWaitWhileAllAreAnsweredIsAnsweredToo) {
  bool is_reached = false;
  waiters_.Add([] { return false; }, now_, [&](const Result<void>&) { Add(is_reached, now_); });
  waiters_.AnswerAll({ErrorCode::kUnavailable, "the end"});
  EXPECT_EQ(codes_, Codes{ErrorCode::kUnavailable});
}

}  // namespace
}  // namespace ffrecord::server
