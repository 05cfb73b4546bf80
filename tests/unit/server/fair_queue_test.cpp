// Goal: tenants get equal parts of a thread's time, however many jobs they have and however long
// those are; jobs of one tenant keep their order; and nobody is passed over.
// Method: jobs that note who had them run, with costs that the test makes up.

#include "server/service/core/fair_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;

class FairQueueTest : public testing::Test {
 protected:
  void Push(const std::string& tenant, FairQueue::Duration cost = 1ms) {
    queue_.Push(tenant, [this, tenant, cost] {
      order_ += tenant;
      used_[tenant] += cost;
      last_cost_ = cost;
    });
  }
  void Push(const std::string& tenant, int count, FairQueue::Duration cost = 1ms) {
    for (int i = 0; i < count; ++i) Push(tenant, cost);
  }
  void RunOne() {
    queue_.Pop()();
    queue_.Charge(last_cost_);
  }
  void Run(int count) {
    for (int i = 0; i < count; ++i) RunOne();
  }

  FairQueue queue_;
  std::string order_;
  std::map<std::string, FairQueue::Duration> used_;
  FairQueue::Duration last_cost_{};
};

TEST_F(FairQueueTest, TheOneWithFewJobsIsServedNext) {
  Push("a", 1000);
  RunOne();
  Push("b");
  Run(3);
  EXPECT_EQ(order_.substr(0, 2), "ab");
  EXPECT_EQ(order_, "abaa");
}

TEST_F(FairQueueTest, LongJobsAreWorthManyShortOnes) {
  Push("a", 10, 100ms);
  Push("b", 1000, 1ms);
  Run(505);
  EXPECT_LE(std::chrono::abs(used_["a"] - used_["b"]), 100ms);
}

TEST_F(FairQueueTest, ThreeThatAlwaysHaveJobsGetAThirdEach) {
  for (const char* const tenant : {"a", "b", "c"}) Push(tenant, 200, 2ms);
  Run(300);
  for (const auto& [tenant, used] : used_) EXPECT_EQ(used, 200ms) << tenant;
}

// As a client does that waits for its last job, and is not there when the next one is chosen.
TEST_F(FairQueueTest, ATenantThatPostsOneJobAtATimeOwesForTheLast) {
  Push("b", 1000, 1ms);
  bool is_waiting = false;  // A job of "a".
  for (int i = 0; i < 500; ++i) {
    const std::size_t before = order_.size();
    RunOne();
    if (order_[before] == 'b' && !is_waiting) Push("a", 50ms);
    is_waiting = order_[before] == 'b';
  }
  EXPECT_LE(std::chrono::abs(used_["a"] - used_["b"]), 51ms);
}

TEST_F(FairQueueTest, TimeThatWasNotAskedForIsNotSavedUp) {
  Push("a", 1000);
  Run(500);
  Push("b", 1000);
  Run(100);
  EXPECT_NEAR(static_cast<double>(used_["b"] / 1ms), 50, 1);
}

TEST_F(FairQueueTest, JobsThatCostNothingHoldUpNobody) {
  Push("a", 1000, 0ms);
  Push("b", 1, 0ms);
  Run(2);
  EXPECT_EQ(order_, "ab");
}

TEST_F(FairQueueTest, JobsOfOneTenantKeepTheirOrder) {
  std::string order;
  for (const char one : std::string("12345")) queue_.Push("a", [&order, one] { order += one; });
  queue_.Push("b", [] {});
  while (!queue_.empty()) {
    queue_.Pop()();
    queue_.Charge(1ms);
  }
  EXPECT_EQ(order, "12345");
}

}  // namespace
}  // namespace ffrecord::server
