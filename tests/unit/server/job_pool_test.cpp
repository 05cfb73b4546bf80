// Goal: a tenant whose work waits for a disk delays nobody else, nor its own look-ups; a disk that
// hangs holds up its own jobs; jobs of one strand keep their order and their thread, and none is
// lost at the end.
// Method: jobs that wait until they are let go, in every strand that a tenant or a disk can have.

#include "server/service/jobs/job_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "temp_folder.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;
using Kind = JobPool::Kind;

// Whether a job that is posted there now is run.
bool IsServed(JobPool& pool, JobPool::Strand& strand, std::string_view tenant) {
  auto done = std::make_shared<std::promise<void>>();
  pool.Post(strand, tenant, [done] { done->set_value(); });
  return done->get_future().wait_for(10s) == std::future_status::ready;
}
bool IsServed(JobPool& pool, std::string_view tenant, Kind kind, std::uint64_t number) {
  return IsServed(pool, pool.StrandOf(tenant, kind, number), tenant);
}

TEST(JobPoolTest, ATenantThatWaitsForTheDiskDelaysNobodyElse) {
  TenantShares shares;
  JobPool pool(shares);
  std::promise<void> go;
  const std::shared_future<void> going = go.get_future().share();
  for (std::uint64_t connection = 0; connection < 16; ++connection)
    for (const Kind kind : {Kind::kMetadata, Kind::kPlan})
      pool.Post(pool.StrandOf("greedy", kind, connection), [going] { going.wait(); });

  for (std::uint64_t connection = 0; connection < 16; ++connection) {
    EXPECT_TRUE(IsServed(pool, "other", Kind::kMetadata, connection));
    EXPECT_TRUE(IsServed(pool, "other", Kind::kPlan, connection));
    EXPECT_TRUE(IsServed(pool, "greedy", Kind::kLookUp, connection));
  }
  EXPECT_FALSE(pool.WaitIdle(std::chrono::steady_clock::now()));
  go.set_value();
  EXPECT_TRUE(pool.WaitIdle(std::chrono::steady_clock::now() + 10s));
}

TEST(JobPoolTest, ADiskThatHangsHoldsUpItsOwnJobsOnly) {
  const test::TempFolder folder;
  const auto hung = Disk::Open(folder / "hung").value();
  const auto good = Disk::Open(folder / "good").value();
  TenantShares shares;
  JobPool pool(shares);
  std::promise<void> go;
  const std::shared_future<void> going = go.get_future().share();
  for (std::uint64_t number = 0; number < 4 * JobPool::kDiskStrandCount; ++number)
    pool.Post(pool.StrandOf(*hung), "tenant", [going] { going.wait(); });

  for (std::uint64_t number = 0; number < 8; ++number) {
    EXPECT_TRUE(IsServed(pool, pool.StrandOf(*good), "tenant"));
    EXPECT_TRUE(IsServed(pool, "tenant", Kind::kMetadata, number));
    EXPECT_TRUE(IsServed(pool, "tenant", Kind::kLookUp, number));
  }
  go.set_value();
}

TEST(JobPoolTest, ATenantWithAThousandUploadsDelaysAnotherByOne) {
  const test::TempFolder folder;
  const auto disk = Disk::Open(folder / "disk").value();
  TenantShares shares;
  JobPool pool(shares);
  JobPool::Strand& strand = pool.StrandOf(*disk);
  std::promise<void> go;
  pool.Post(strand, "greedy", [going = go.get_future().share()] { going.wait(); });
  std::atomic<int> greedy_count{0};
  std::atomic<int> before_other{-1};
  for (int i = 0; i < 1000; ++i) pool.Post(strand, "greedy", [&] { ++greedy_count; });
  pool.Post(strand, "other", [&] { before_other = greedy_count.load(); });

  go.set_value();

  ASSERT_TRUE(pool.WaitIdle(std::chrono::steady_clock::now() + 30s));
  EXPECT_EQ(greedy_count, 1000);
  EXPECT_EQ(before_other, 0);
}

// The strands of disks alone are counted; the weights are those of the longest prefix.
TEST(JobPoolTest, AHeavierTenantGetsMoreOfADisk) {
  const test::TempFolder folder;
  const auto disk = Disk::Open(folder / "disk").value();
  TenantShares shares({{"train/", 4}, {"train/slow/", 2}, {"t", 3}});
  JobPool pool(shares);
  JobPool::Strand& strand = pool.StrandOf(*disk);
  std::promise<void> go;
  pool.Post(strand, "first", [going = go.get_future().share()] { going.wait(); });
  std::string order;  // Of one thread.
  const auto post = [&](const std::string& tenant, char mark) {
    for (int i = 0; i < 60; ++i)
      pool.Post(strand, tenant, [&order, mark] {
        order += mark;
        std::this_thread::sleep_for(1ms);
      });
  };
  post("train/images\nclient", 'H');
  post("tra\ntrain/", 'M');
  post("train/slow/\nclient", 'S');
  post("other\ntrain/", 'L');

  go.set_value();

  ASSERT_TRUE(pool.WaitIdle(std::chrono::steady_clock::now() + 60s));
  const std::string begin = order.substr(0, order.rfind('H') + 1);
  EXPECT_EQ(std::ranges::count(begin, 'H'), 60);
  EXPECT_NEAR(static_cast<double>(std::ranges::count(begin, 'M')), 45, 15);
  EXPECT_NEAR(static_cast<double>(std::ranges::count(begin, 'S')), 30, 12);
  EXPECT_NEAR(static_cast<double>(std::ranges::count(begin, 'L')), 15, 9);
  for (const auto& [prefix, share] : shares.all()) EXPECT_GE(share.disk_us.value(), 60'000U);
  const std::uint64_t used_us = shares.Of("train/x").disk_us.value();
  EXPECT_TRUE(IsServed(pool, "train/x", Kind::kMetadata, 0));
  EXPECT_EQ(shares.Of("train/x").disk_us.value(), used_us);
}

// As an upload goes from the strand of its tenant to that of its disk, also when the daemon stops.
TEST(JobPoolTest, WhatAJobPostsElsewhereIsRunBeforeThePoolGoes) {
  const test::TempFolder folder;
  const auto disk = Disk::Open(folder / "disk").value();
  bool was_run = false;
  {
    TenantShares shares;
    JobPool pool(shares);
    JobPool::Strand& there = pool.StrandOf(*disk);
    std::promise<void> ending;
    pool.Post(pool.StrandOf("tenant", Kind::kMetadata, 0), "tenant",
              [&, end = ending.get_future().share()] {
                end.wait();
                std::this_thread::sleep_for(50ms);  // So that the destructor has begun.
                pool.Post(there, "tenant", [&] { was_run = true; });
              });
    ending.set_value();
  }
  EXPECT_TRUE(was_run);
}

TEST(JobPoolTest, AStrandKeepsItsOrderAndItsThread) {
  std::vector<int> order;
  std::set<std::thread::id> threads;
  {
    TenantShares shares;
    JobPool pool(shares);
    for (int i = 0; i < 100; ++i)
      pool.Post(pool.StrandOf("tenant", Kind::kMetadata, 7), [&, i] {
        order.push_back(i);
        threads.insert(std::this_thread::get_id());
      });
  }
  ASSERT_EQ(order.size(), 100U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(threads.size(), 1U);
}

TEST(JobPoolTest, WhoWaitsIsToldWhenTheLastJobIsOver) {
  TenantShares shares;
  JobPool pool(shares);
  std::promise<void> go;
  pool.Post(pool.upkeep(), [going = go.get_future().share()] { going.wait(); });
  auto idle = std::async(std::launch::async, [&] { return pool.WaitIdle(Clock::now() + 1h); });
  std::this_thread::sleep_for(20ms);

  go.set_value();

  EXPECT_TRUE(idle.get());
}

TEST(JobPoolTest, ManyTenantsShareABoundedNumberOfStrands) {
  TenantShares shares;
  JobPool pool(shares);
  std::set<const JobPool::Strand*> strands;
  for (std::size_t i = 0; i < 4 * JobPool::kTenantCountMax; ++i)
    strands.insert(&pool.StrandOf("tenant " + std::to_string(i), Kind::kPlan, i));
  EXPECT_EQ(strands.size(), JobPool::kTenantCountMax);
  EXPECT_TRUE(IsServed(pool, "one more", Kind::kPlan, 0));
}

}  // namespace
}  // namespace ffrecord::server
