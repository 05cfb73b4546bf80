// Goal: tenants get parts of a thread's time by their weights, equal ones by default, however many
// jobs they have and however long those are; jobs of one tenant keep their order; and nobody is
// passed over. Method: jobs that note who had them run, with costs that the test makes up.

#include "server/service/jobs/fair_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;

class FairQueueTest : public testing::Test {
 protected:
  void Push(const std::string& tenant, FairQueue::Duration cost = 1ms) {
    const auto weight = weights_.find(tenant);
    queue_.Push(
        tenant,
        [this, tenant, cost] {
          order_ += tenant;
          used_[tenant] += cost;
          last_cost_ = cost;
        },
        weight == weights_.end() ? 1 : weight->second);
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

  std::map<std::string, std::uint32_t> weights_;
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

TEST_F(FairQueueTest, TimeIsSharedByWeightWhateverTheJobsCost) {
  weights_ = {{"a", 6}, {"b", 3}};
  Push("a", 4000, 1ms);
  Push("b", 4000, 7ms);
  Push("c", 4000, 2ms);
  for (int i = 0; i < 3000; ++i) RunOne();
  const auto whole = used_["a"] + used_["b"] + used_["c"];
  EXPECT_LE(std::chrono::abs(used_["a"] - whole * 6 / 10), 7ms);
  EXPECT_LE(std::chrono::abs(used_["b"] - whole * 3 / 10), 7ms);
  EXPECT_LE(std::chrono::abs(used_["c"] - whole * 1 / 10), 7ms);
}

TEST_F(FairQueueTest, TheLeastWeightBesideTheGreatestIsServedInItsTurn) {
  weights_ = {{"a", FairQueue::kWeightMax}};
  Push("a", 5000);
  Push("b", 3);
  Run(3005);
  std::vector<std::size_t> turns;
  for (std::size_t i = 0; i < order_.size(); ++i)
    if (order_[i] == 'b') turns.push_back(i);
  ASSERT_EQ(turns.size(), 3U);
  EXPECT_LE(turns[1] - turns[0], FairQueue::kWeightMax + 1);
  EXPECT_LE(turns[2] - turns[1], FairQueue::kWeightMax + 1);
}

// Its next job would be served before its last one has been paid for.
TEST_F(FairQueueTest, ALightTenantOwesForALongJobAlsoWhenItWasAway) {
  weights_ = {{"a", 2}};
  Push("a", 1000);
  Push("b", 100ms);
  Run(2);
  Push("b", 100ms);
  Run(300);
  EXPECT_LE(std::chrono::abs(used_["a"] - 2 * used_["b"]), 200ms);
  EXPECT_EQ(used_["b"], 200ms);
}

TEST_F(FairQueueTest, WeightSavesUpNoTimeThatWasNotAskedFor) {
  weights_ = {{"b", 4}};
  Push("a", 1000);
  Run(500);
  Push("b", 1000);
  Run(100);
  EXPECT_NEAR(static_cast<double>(used_["b"] / 1ms), 80, 1);
}

TEST_F(FairQueueTest, JobsThatCostNothingAreSharedByWeightToo) {
  weights_ = {{"a", FairQueue::kWeightMax}};
  Push("a", 5000, 0ms);
  Push("b", 5000, 0ms);
  Run(2002);
  EXPECT_EQ(std::ranges::count(order_, 'b'), 2);
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
