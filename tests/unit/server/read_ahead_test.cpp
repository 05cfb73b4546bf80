// Goal: what a plan says is read ahead in its order, within its bound, whoever asks for it, and
// whatever is asked for instead.
// Method: a dataset in a store of extents; plans of every shape compared with the permutation and
// with the file; a ReadAhead that is told of requests in order, out of order, twice and never, and
// whose runs are read by a thread that always has time.

#include "server/service/read_ahead/read_ahead.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "bytes.h"
#include "daemon.h"
#include "new_extents.h"
#include "seed.h"
#include "server/service/jobs/job_pool.h"
#include "server/service/read_ahead/plan_order.h"
#include "server/service/read_ahead/plans.h"
#include "server/service/read_ahead/read_ahead_port.h"
#include "temp_folder.h"
#include "test_file.h"

namespace ffrecord::server {
namespace {

using test::Eventually;

std::vector<std::uint64_t> AllOf(const net::PlanSet& plan, std::uint64_t count,
                                 std::uint64_t at_once) {
  auto order = PlanOrder::Make(plan, count).value();
  std::vector<std::uint64_t> all;
  for (std::vector<std::uint64_t> indices; !order.at_end();) {
    order.Next(at_once, indices);
    EXPECT_LE(indices.size(), at_once);
    all.insert(all.end(), indices.begin(), indices.end());
  }
  return all;
}

TEST(PlanOrderTest, RanksReadTogetherWhatThePermutationSaysAndEachItsOwnShare) {
  constexpr std::uint64_t kCount = 1000;
  const auto whole = Permutation::Make(5, 3, 0, kCount).value();
  // The last step is short, and behind the end stands the beginning.
  constexpr std::uint64_t kFirst = 96, kEnd = 1010, kStep = 64, kWorld = 3;
  std::map<std::uint64_t, std::vector<std::uint64_t>> expected;
  for (std::uint64_t begin = kFirst; begin < kEnd; begin += kStep) {
    const std::uint64_t size = std::min(kStep, kEnd - begin);
    for (std::uint64_t rank = 0; rank < kWorld; ++rank)
      for (auto at = rank * size / kWorld; at < (rank + 1) * size / kWorld; ++at)
        expected[rank].push_back(whole((begin + at) % kCount));
  }
  for (std::uint32_t rank = 0; rank < kWorld; ++rank) {
    const net::PlanSet plan{.seed = 5,
                            .epoch = 3,
                            .first = kFirst,
                            .end = kEnd,
                            .step_size = kStep,
                            .world_size = kWorld,
                            .rank = rank};
    for (const std::uint64_t at_once : std::array<std::uint64_t, 3>{1, 7, 1000})
      EXPECT_EQ(AllOf(plan, kCount, at_once), expected[rank]) << rank;
  }
}

TEST(PlanOrderTest, BlocksAreOrderedAsBlocks) {
  const auto blocked = BlockedPermutation::Make(1, 2, 777, 10, 4).value();
  std::vector<std::uint64_t> expected(777);
  blocked.Fill(0, expected);
  const net::PlanSet plan{
      .seed = 1, .epoch = 2, .end = 777, .block = 10, .window = 4, .step_size = 50};
  EXPECT_EQ(AllOf(plan, 777, 32), expected);
}

TEST(PlanOrderTest, AnOrderOfTheFutureIsRefused) {
  EXPECT_FALSE(PlanOrder::Make({.order = 2, .end = 1}, 1));
  EXPECT_FALSE(PlanOrder::Make({.end = 1}, 0));
}

// A ReadAhead with its jobs, and one worker, which is idle all the time.
class FollowedReadAhead {
 public:
  FollowedReadAhead(std::uint64_t bytes_max, ReadAhead::Metrics& metrics)
      : ahead_(bytes_max, metrics,
               [this](std::string_view tenant, JobPool::Job job) {
                 jobs_->Post(jobs_->StrandOf(tenant, JobPool::Kind::kPlan, 0), tenant,
                             std::move(job));
               }),
        worker_([this] { Follow(); }) {}
  ~FollowedReadAhead() {
    is_stopping_ = true;
    worker_.join();
    jobs_ = nullptr;
  }
  FollowedReadAhead(const FollowedReadAhead&) = delete;
  FollowedReadAhead& operator=(const FollowedReadAhead&) = delete;
  ReadAhead* operator->() { return &ahead_; }
  ReadAhead& operator*() { return ahead_; }

 private:
  void Follow() {
    std::vector<char> sink(ReadAhead::kRunBytesMax);
    while (!is_stopping_) {
      const auto runs = ahead_.Next(1 << 20, 32);
      for (const ReadAhead::Run& run : runs) {
        EXPECT_LE(run.size_bytes, ReadAhead::kRunBytesMax);
        const auto fd = ExtentStore::OpenFile(*run.extent).value();
        EXPECT_EQ(
            ::pread(fd.get(), sink.data(), run.size_bytes, static_cast<off_t>(run.offset_bytes)),
            run.size_bytes);
        ahead_.Finish({run.number, /*was_on_disk=*/true});
      }
      if (runs.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  TenantShares shares_;
  std::unique_ptr<JobPool> jobs_ = std::make_unique<JobPool>(shares_);
  ReadAhead ahead_;
  std::atomic<bool> is_stopping_{false};
  std::thread worker_;
};

class ReadAheadTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kCount = 3000;
  static constexpr std::uint32_t kStep = 100;
  static constexpr std::uint64_t kBound = std::uint64_t{512} << 10;

  void SetUp() override {
    std::mt19937 random(test::Seed());
    for (std::uint64_t i = 0; i < kCount; ++i) {
      std::string record(500 + random() % 3000, '\0');
      for (std::size_t at = 0; at < 16; ++at) record[at] = static_cast<char>(random());
      texts_.push_back(std::move(record));
    }
    test::WriteRecords(folder_ / "a.ffr", texts_);
    store_ = ExtentStore::Open(folder_ / "extents").value();
    const std::string bytes = test::ReadFile(folder_ / "a.ffr");
    records_ = Store(7, bytes);
    file_ = bytes;
  }

  // A dataset of the file with these bytes, in an extent of its own.
  std::shared_ptr<const PlannedRecords> Store(std::uint64_t upload, const std::string& bytes) {
    const auto id = MakeExtentId(upload, 0, 0);
    auto writer = test::Create(*store_, id, bytes.size()).value();
    EXPECT_TRUE(writer.Append(test::AsBytes(bytes)));
    const auto sum = Xxh3(test::AsBytes(bytes));
    EXPECT_TRUE(writer.Seal(sum));
    DatasetManifest manifest;
    manifest.files = {{"a.ffr", bytes.size(), {{id, bytes.size(), sum}}}};
    auto records = PlannedRecords::Open(manifest, *store_);
    EXPECT_TRUE(records) << records.error().message;
    EXPECT_EQ(records.value()->record_count(), kCount);
    return std::move(records).value();
  }

  // Takes the file out of memory, where the file system keeps it anywhere else.
  void MakeCold() {
    const auto fd = store_->disks().front()->OpenFile(MakeExtentId(7, 0, 0)).value();
    (void)::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }

  net::PlanSet WholeEpoch(std::uint64_t seed = 1) const {
    return {.seed = seed, .end = kCount, .step_size = kStep};
  }

  std::vector<PlannedRecords::Piece> PiecesOf(const net::PlanSet& plan) const {
    std::vector<PlannedRecords::Piece> pieces;
    records_->Locate(AllOf(plan, kCount, kCount), pieces);
    return pieces;
  }

  static ReadAhead::Wanted Asked(const PlannedRecords::Piece& piece, bool is_in_memory = true) {
    return {piece.extent.get(), piece.offset_bytes, piece.size_bytes, is_in_memory};
  }

  // A request for the whole file.
  ReadAhead::Wanted Everything() const {
    std::vector<PlannedRecords::Piece> pieces;
    const std::uint64_t first = 0;
    records_->Locate({&first, 1}, pieces);
    return {pieces.front().extent.get(), 0, static_cast<std::uint32_t>(file_.size()), true};
  }

  ReadAhead::Handle Begin(FollowedReadAhead& ahead, const net::PlanSet& plan) {
    auto begun = ahead->Begin(records_, plan);
    EXPECT_TRUE(begun) << begun.error().message;
    return std::move(begun).value();
  }

  bool FillsItsBound() {
    return Eventually([&] {
      const auto held = metrics_.held_bytes.value();
      EXPECT_LE(held, kBound + 4096);
      return held > kBound / 4 * 3;
    });
  }

  test::TempFolder folder_;
  std::vector<std::string> texts_;
  std::string file_;
  std::unique_ptr<ExtentStore> store_;
  std::shared_ptr<const PlannedRecords> records_;
  ReadAhead::Metrics metrics_;
};

TEST_F(ReadAheadTest, RecordsLieWhereTheFileHasThem) {
  std::vector<std::uint64_t> indices(kCount);
  for (std::uint64_t i = 0; i < kCount; ++i) indices[i] = (i * 7) % kCount;
  std::vector<PlannedRecords::Piece> pieces;

  records_->Locate(indices, pieces);

  ASSERT_EQ(pieces.size(), kCount);
  for (std::uint64_t i = 0; i < kCount; ++i)
    ASSERT_TRUE(file_.compare(pieces[i].offset_bytes, pieces[i].size_bytes, texts_[indices[i]]) ==
                0)
        << i;
}

TEST_F(ReadAheadTest, AWholeEpochPassesThroughAndNoMoreThanTheBoundAtATime) {
  MakeCold();
  const auto pieces = PiecesOf(WholeEpoch());
  FollowedReadAhead ahead(kBound, metrics_);
  const auto plan = Begin(ahead, WholeEpoch());
  EXPECT_TRUE(ahead->has_plans());
  std::uint64_t asked_bytes = 0;
  for (const auto& piece : pieces) {
    if (asked_bytes + kBound + 8192 < file_.size()) {
      ASSERT_TRUE(FillsItsBound());
    }
    const auto asked = Asked(piece);
    ahead->Take({&asked, 1});
    asked_bytes += piece.size_bytes;
  }
  EXPECT_EQ(metrics_.held_bytes.value(), 0U);
  EXPECT_EQ(metrics_.unused_bytes.value(), 0U);
  EXPECT_EQ(metrics_.lost_bytes.value(), 0U);
  EXPECT_LE(metrics_.hit_bytes.value(), asked_bytes);
}

TEST_F(ReadAheadTest, WhatTheKernelDroppedIsCountedAndWhatNobodyAsksForToo) {
  MakeCold();
  const auto pieces = PiecesOf(WholeEpoch());
  FollowedReadAhead ahead(kBound, metrics_);
  {
    const auto plan = Begin(ahead, WholeEpoch());
    ASSERT_TRUE(FillsItsBound());
    // Read, and gone; what has not completed yet is late. Some few may share their page with the
    // index.
    for (std::size_t i = 0; i < 50; ++i) {
      const auto asked = Asked(pieces[i], /*is_in_memory=*/false);
      ahead->Take({&asked, 1});
    }
  }
  // On a file system in memory nothing is ever read from a disk.
  if (metrics_.read_bytes.value() > 0) {
    EXPECT_GT(metrics_.lost_bytes.value() + metrics_.late_bytes.value(), 0U);
  }
  EXPECT_LE(metrics_.unused_bytes.value() + metrics_.lost_bytes.value(),
            metrics_.read_bytes.value());
  EXPECT_EQ(metrics_.held_bytes.value(), 0U);
  EXPECT_EQ(metrics_.plans.value(), 0U);
  EXPECT_FALSE(ahead->has_plans());
}

TEST_F(ReadAheadTest, TwoRanksThatWantTheSameGetItReadOnce) {
  MakeCold();
  const auto pieces = PiecesOf(WholeEpoch());
  FollowedReadAhead ahead(std::uint64_t{64} << 20, metrics_);
  const auto first = Begin(ahead, WholeEpoch());
  const auto second = Begin(ahead, WholeEpoch());
  ASSERT_TRUE(Eventually([&] { return metrics_.held_bytes.value() >= file_.size() - 200'000; }));
  const auto all = Everything();
  std::set<std::uint32_t> places;
  for (const auto& piece : pieces) places.insert(piece.offset_bytes);
  EXPECT_LE(metrics_.read_bytes.value(), file_.size());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_GT(metrics_.held_bytes.value(), 0U) << rank;
    for (const auto& piece : pieces) {
      const auto asked = Asked(piece);
      ahead->Take({&asked, 1});
    }
  }
  EXPECT_EQ(places.size(), pieces.size());
  // What the second plan was evaluated to only after it had been asked for.
  EXPECT_TRUE(Eventually([&] {
    ahead->Take({&all, 1});
    return metrics_.held_bytes.value() == 0;
  }));
  EXPECT_EQ(metrics_.unused_bytes.value(), 0U);
}

TEST_F(ReadAheadTest, ARankThatSkipsWhatItHintedStopsNothing) {
  const net::PlanSet small{.end = kCount, .step_size = 1};
  const auto pieces = PiecesOf(small);
  FollowedReadAhead ahead(kBound, metrics_);
  const auto plan = Begin(ahead, small);
  // Each time something is left out; a run of bytes may ask for many records at once.
  for (std::size_t i = 0; i < pieces.size(); i += 2) {
    const auto asked = Asked(pieces[i]);
    ahead->Take({&asked, 1});
  }
  EXPECT_TRUE(Eventually([&] { return metrics_.held_bytes.value() <= kBound; }));
  const auto all = Everything();
  EXPECT_TRUE(Eventually([&] {
    ahead->Take({&all, 1});
    return metrics_.held_bytes.value() == 0;
  }));
}

TEST_F(ReadAheadTest, RunsAreInTheOrderOfTheDiskAndNeighboursAreOne) {
  ReadAhead::Metrics metrics;
  std::vector<std::function<void()>> posted;
  ReadAhead ahead(std::uint64_t{64} << 20, metrics,
                  [&](std::string_view, std::function<void()> job) { posted.push_back(job); });
  const auto plan = ahead.Begin(records_, WholeEpoch()).value();
  const auto run_jobs = [&] {
    for (int i = 0; i < 100 && !posted.empty(); ++i) std::exchange(posted, {}).front()();
  };
  EXPECT_TRUE(ahead.has_work());
  EXPECT_TRUE(ahead.Next(1 << 20, 32).empty());  // It is for a job to choose.
  run_jobs();

  std::uint64_t end_bytes = 0;
  std::uint64_t read_bytes = 0;
  for (;;) {
    const auto runs = ahead.Next(1 << 20, 4);
    if (runs.empty()) break;
    EXPECT_LE(runs.size(), 4U);
    for (const ReadAhead::Run& run : runs) {
      EXPECT_GE(run.offset_bytes, end_bytes);
      EXPECT_LE(run.size_bytes, ReadAhead::kRunBytesMax);
      end_bytes = run.offset_bytes + run.size_bytes;
      read_bytes += run.size_bytes;
      ahead.Finish({run.number, run.number % 2 == 0});
    }
  }

  EXPECT_LE(end_bytes, file_.size());
  EXPECT_GT(read_bytes, file_.size() - 200'000);  // All records, and no gaps.
  EXPECT_GT(metrics.read_bytes.value(), 0U);
  EXPECT_LT(metrics.read_bytes.value(), read_bytes);
  run_jobs();
  EXPECT_FALSE(ahead.has_work());  // Nothing to do before something is asked for.
}

TEST_F(ReadAheadTest, WhatWasAskedForMeanwhileIsNotHandedOut) {
  ReadAhead::Metrics metrics;
  std::vector<std::function<void()>> posted;
  ReadAhead ahead(std::uint64_t{64} << 20, metrics,
                  [&](std::string_view, std::function<void()> job) { posted.push_back(job); });
  const auto plan = ahead.Begin(records_, WholeEpoch()).value();
  (void)ahead.Next(1 << 20, 32);
  for (int i = 0; i < 100 && !posted.empty(); ++i) std::exchange(posted, {}).front()();
  ASSERT_TRUE(ahead.has_work());

  const auto all = Everything();
  ahead.Take({&all, 1});

  EXPECT_TRUE(ahead.Next(1 << 20, 32).empty());
  EXPECT_EQ(metrics.held_bytes.value(), 0U);
}

// The lock is held as long as a job is being posted.
TEST_F(ReadAheadTest, AWorkerDoesNotWaitForOthersAndSaysTheNextTimeWhatItHadToSay) {
  ReadAhead::Metrics metrics;
  std::atomic<bool> is_slow{false};
  std::atomic<bool> is_held{false};
  std::atomic<bool> goes_on{false};
  std::vector<std::function<void()>> posted;
  ReadAhead ahead(std::uint64_t{64} << 20, metrics,
                  [&](std::string_view, std::function<void()> job) {
                    posted.push_back(std::move(job));
                    if (!is_slow) return;
                    is_held = true;
                    goes_on.wait(false);
                  });
  const auto run_jobs = [&] {
    for (int i = 0; i < 100 && !posted.empty(); ++i) std::exchange(posted, {}).front()();
  };
  const auto plan = ahead.Begin(records_, WholeEpoch()).value();
  (void)ahead.Next(1 << 20, 32);
  run_jobs();
  ReadAheadPort port(ahead);
  const auto runs = port.Next(1 << 20, 1, {});
  ASSERT_EQ(runs.size(), 1U);
  is_slow = true;
  ReadAhead::Handle another;
  std::thread other([&] { another = ahead.Begin(records_, WholeEpoch(2)).value(); });
  ASSERT_TRUE(Eventually([&] { return is_held.load(); }));

  port.Finish({runs[0].number, /*was_on_disk=*/true});
  const auto all = Everything();
  port.Take({&all, 1});
  EXPECT_TRUE(port.Next(1 << 20, 32, {}).empty());
  port.Say();
  EXPECT_EQ(metrics.read_bytes.value(), 0U);
  EXPECT_EQ(metrics.hit_bytes.value(), 0U);

  goes_on = true;
  goes_on.notify_all();
  other.join();
  port.Say();
  EXPECT_EQ(metrics.read_bytes.value(), runs[0].size_bytes);
  EXPECT_GT(metrics.hit_bytes.value(), 0U);
}

TEST_F(ReadAheadTest, RunsThatAreReadAsTheirPlanEndsAreTakenBack) {
  ReadAhead::Metrics metrics;
  std::vector<std::function<void()>> posted;
  ReadAhead ahead(std::uint64_t{64} << 20, metrics,
                  [&](std::string_view, std::function<void()> job) { posted.push_back(job); });
  std::vector<ReadAhead::Run> runs;
  {
    const auto plan = ahead.Begin(records_, WholeEpoch()).value();
    (void)ahead.Next(1 << 20, 32);
    for (int i = 0; i < 100 && !posted.empty(); ++i) std::exchange(posted, {}).front()();
    runs = ahead.Next(1 << 20, 2);
    ASSERT_FALSE(runs.empty());
  }
  EXPECT_EQ(metrics.held_bytes.value(), 0U);
  for (const auto& run : runs) ahead.Finish({run.number, true});
  // Nobody keeps the extent but the records, the store and the test.
  records_ = nullptr;
  runs.clear();
  const ExtentPtr removed = store_->MarkDeleted(MakeExtentId(7, 0, 0));
  EXPECT_EQ(removed.use_count(), 1);
  EXPECT_TRUE(ahead.Next(1 << 20, 32).empty());
}

TEST_F(ReadAheadTest, RandomTalkOfManyPlansKeepsTheBoundAndEndsEmpty) {
  std::mt19937 random(test::Seed());
  FollowedReadAhead ahead(kBound, metrics_);
  const auto pieces = PiecesOf(WholeEpoch());
  {
    Plans plans;
    for (int i = 0; i < 600; ++i) {
      const auto id = static_cast<std::uint32_t>(random() % 6 + 1);
      if (random() % 8 == 0) {
        net::PlanSet plan = WholeEpoch(random() % 3);
        plan.first = random() % kCount;
        plan.end = plan.first + random() % (kCount + kStep);
        plan.world_size = static_cast<std::uint32_t>(random() % 4 + 1);
        plan.rank = static_cast<std::uint32_t>(random()) % plan.world_size;
        ASSERT_TRUE(plans.Keep(id, Begin(ahead, plan)));
      } else if (random() % 8 == 0) {
        plans.Drop(id);
      }
      std::vector<ReadAhead::Wanted> asked;
      for (int j = 0; j < 20; ++j)
        asked.push_back(Asked(pieces[random() % pieces.size()], random() % 2 == 0));
      ahead->Take(asked);
      ASSERT_LE(metrics_.held_bytes.value(), kBound + 4096);  // The last piece may pass it.
    }
  }
  EXPECT_EQ(metrics_.held_bytes.value(), 0U);
  EXPECT_EQ(metrics_.plans.value(), 0U);
}

TEST_F(ReadAheadTest, ATenantThatTakesNothingStarvesNoOther) {
  const auto records = Store(8, file_);
  FollowedReadAhead ahead(kBound, metrics_);
  std::vector<ReadAhead::Handle> greedy;
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    greedy.push_back(ahead->Begin(records_, WholeEpoch(seed), "greedy").value());
  ASSERT_TRUE(FillsItsBound());
  const auto other = ahead->Begin(records, WholeEpoch(), "other").value();

  // Its share is half of all, or some hundred records: each that is late had not been read ahead->
  std::vector<PlannedRecords::Piece> pieces;
  records->Locate(AllOf(WholeEpoch(), kCount, kCount), pieces);
  std::size_t next = 0;
  std::size_t in_time_count = 0;
  EXPECT_TRUE(Eventually([&] {
    if (next == pieces.size()) return true;
    const auto late_bytes = metrics_.late_bytes.value();
    const auto asked = Asked(pieces[next++], /*is_in_memory=*/false);
    ahead->Take({&asked, 1});
    in_time_count += metrics_.late_bytes.value() == late_bytes ? 1 : 0;
    return in_time_count >= 100;
  }));
  EXPECT_GE(in_time_count, 100U);
}

TEST_F(ReadAheadTest, ATenantHasNoMorePlansThanAreLeftToOthers) {
  FollowedReadAhead ahead(kBound, metrics_);
  const net::PlanSet small{.end = 1, .step_size = 1};
  std::map<std::string, std::vector<ReadAhead::Handle>> plans;
  for (const std::string tenant : {"first", "second", "third"}) {
    for (;;) {
      auto begun = ahead->Begin(records_, small, tenant);
      if (!begun) {
        EXPECT_EQ(begun.error().code, ErrorCode::kUnavailable);
        EXPECT_NE(begun.error().message.find("others"), std::string::npos);
        break;
      }
      plans[tenant].push_back(std::move(begun).value());
    }
  }
  EXPECT_EQ(plans["first"].size(), 2048U);
  EXPECT_EQ(plans["second"].size(), 1024U);
  EXPECT_EQ(plans["third"].size(), 512U);
  plans.erase("first");
  EXPECT_TRUE(ahead->Begin(records_, small, "second"));
  // What has ended counts no more.
  auto& again = plans["first"];
  while (auto begun = ahead->Begin(records_, small, "first"))
    again.push_back(std::move(begun).value());
  EXPECT_EQ(again.size(), (4096U - 1024U - 512U) / 2);
}

TEST_F(ReadAheadTest, WhatIsRemovedWhenItsPlansAreOverIsLetGo) {
  FollowedReadAhead ahead(kBound, metrics_);
  {
    const auto plan = Begin(ahead, WholeEpoch());
    ASSERT_TRUE(FillsItsBound());
  }
  records_ = nullptr;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // It has nothing to do any more.

  const ExtentPtr removed = store_->MarkDeleted(MakeExtentId(7, 0, 0));

  EXPECT_TRUE(Eventually([&] { return removed.use_count() == 1; }));
}

TEST_F(ReadAheadTest, APlanThatIsNotOfTheseRecordsIsRefused) {
  FollowedReadAhead ahead(kBound, metrics_);
  EXPECT_FALSE(ahead->Begin(records_, {.first = kCount + 1, .end = kCount + 2}));
  EXPECT_FALSE(ahead->Begin(records_, {.end = UINT64_MAX}));
  EXPECT_FALSE(ahead->Begin(records_, {.order = 9, .end = 1}));
  EXPECT_FALSE(FollowedReadAhead(0, metrics_)->Begin(records_, WholeEpoch()));
  EXPECT_EQ(metrics_.plans.value(), 0U);
  Plans plans;
  for (std::uint32_t id = 1; id <= Plans::kCountMax; ++id)
    ASSERT_TRUE(plans.Keep(id, Begin(ahead, WholeEpoch())));
  const auto more = plans.Keep(99, Begin(ahead, WholeEpoch()));
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(plans.Keep(1, Begin(ahead, WholeEpoch())));
}

}  // namespace
}  // namespace ffrecord::server
