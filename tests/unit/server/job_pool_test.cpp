// Goal: a tenant whose work waits for the disk delays nobody else, nor its own look-ups; jobs of
// one strand keep their order and their thread. Method: jobs that wait until they are let go, in
// every strand for writes that a tenant can have.

#include "server/service/core/job_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <set>
#include <thread>

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;
using Kind = JobPool::Kind;

// Whether a job that is posted there now is run.
bool IsServed(JobPool& pool, std::string_view tenant, Kind kind, std::uint64_t number) {
  auto done = std::make_shared<std::promise<void>>();
  pool.Post(pool.StrandOf(tenant, kind, number), [done] { done->set_value(); });
  return done->get_future().wait_for(10s) == std::future_status::ready;
}

TEST(JobPoolTest, ATenantThatWaitsForTheDiskDelaysNobodyElse) {
  JobPool pool;
  std::promise<void> go;
  const std::shared_future<void> going = go.get_future().share();
  for (std::uint64_t connection = 0; connection < 16; ++connection)
    for (const Kind kind : {Kind::kWrite, Kind::kPlan})
      pool.Post(pool.StrandOf("greedy", kind, connection), [going] { going.wait(); });

  for (std::uint64_t connection = 0; connection < 16; ++connection) {
    EXPECT_TRUE(IsServed(pool, "other", Kind::kWrite, connection));
    EXPECT_TRUE(IsServed(pool, "other", Kind::kPlan, connection));
    EXPECT_TRUE(IsServed(pool, "greedy", Kind::kLookUp, connection));
  }
  EXPECT_FALSE(pool.WaitIdle(std::chrono::steady_clock::now()));
  go.set_value();
  EXPECT_TRUE(pool.WaitIdle(std::chrono::steady_clock::now() + 10s));
}

TEST(JobPoolTest, AStrandKeepsItsOrderAndItsThread) {
  std::vector<int> order;
  std::set<std::thread::id> threads;
  {
    JobPool pool;
    for (int i = 0; i < 100; ++i)
      pool.Post(pool.StrandOf("tenant", Kind::kWrite, 7), [&, i] {
        order.push_back(i);
        threads.insert(std::this_thread::get_id());
      });
  }
  ASSERT_EQ(order.size(), 100U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(threads.size(), 1U);
}

TEST(JobPoolTest, WhoWaitsIsToldWhenTheLastJobIsOver) {
  JobPool pool;
  std::promise<void> go;
  pool.Post(pool.upkeep(), [going = go.get_future().share()] { going.wait(); });
  const auto begin = std::chrono::steady_clock::now();
  auto idle = std::async(std::launch::async, [&] { return pool.WaitIdle(begin + 60s); });
  std::this_thread::sleep_for(20ms);

  go.set_value();

  EXPECT_TRUE(idle.get());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
}

TEST(JobPoolTest, ManyTenantsShareABoundedNumberOfStrands) {
  JobPool pool;
  std::set<const JobPool::Strand*> strands;
  for (std::size_t i = 0; i < 4 * JobPool::kTenantCountMax; ++i)
    strands.insert(&pool.StrandOf("tenant " + std::to_string(i), Kind::kPlan, i));
  EXPECT_EQ(strands.size(), JobPool::kTenantCountMax);
  EXPECT_TRUE(IsServed(pool, "one more", Kind::kPlan, 0));
}

}  // namespace
}  // namespace ffrecord::server
