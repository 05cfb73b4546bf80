// Goal: a worker reads ahead only while no client keeps it busy, little at a time, and what it read
// is counted where it came from.
// Method: a plan of one dataset on one disk or two, jobs that run when the test says, and an engine
// that holds the reads of some disk back; time is what the test says it is.

#include "server/service/read/idle_reads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <filesystem>
#include <random>
#include <string>

#include "bytes.h"
#include "libffrecord/base/clock.h"
#include "new_extents.h"
#include "open_at_once.h"
#include "seed.h"
#include "temp_folder.h"
#include "test_file.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;

// Holds back, while it is told to, the reads of files whose path contains `of`.
class HoldingEngine final : public IoEngine {
 public:
  explicit HoldingEngine(bool& holds, std::string of = "") : holds_(holds), of_(std::move(of)) {}
  std::string_view name() const noexcept override { return "holding"; }
  Result<std::uint32_t> Submit(std::span<IoRequest* const> requests) override {
    taken_.insert(taken_.end(), requests.begin(), requests.end());
    return static_cast<std::uint32_t>(requests.size());
  }
  Result<std::uint32_t> Wait(std::span<IoRequest*> done, std::uint32_t,
                             std::chrono::milliseconds) override {
    std::uint32_t count = 0;
    for (auto request = taken_.begin(); request != taken_.end() && count < done.size();) {
      if (IsHeld(**request)) {
        ++request;
        continue;
      }
      done[count] = *request;
      done[count]->result = static_cast<std::int64_t>(done[count]->buffer.size());
      ++count;
      request = taken_.erase(request);
    }
    return count;
  }
  std::uint32_t in_flight() const noexcept override {
    return static_cast<std::uint32_t>(taken_.size());
  }

 private:
  bool IsHeld(const IoRequest& request) const {
    if (!holds_ || of_.empty()) return holds_;
    const auto path =
        std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(request.fd)).string();
    return path.find(of_) != std::string::npos;
  }

  bool& holds_;
  const std::string of_;
  std::deque<IoRequest*> taken_;
};

class IdleReadsTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kCount = 4000;

  void SetUp() override {
    std::mt19937 random(test::Seed());
    std::vector<std::string> texts;
    for (std::uint64_t i = 0; i < kCount; ++i) {
      std::string record(3000 + random() % 3000, '\0');
      for (std::size_t at = 0; at < 16; ++at) record[at] = static_cast<char>(random());
      texts.push_back(std::move(record));
    }
    test::WriteRecords(folder_ / "a.ffr", texts);
    const std::string bytes = test::ReadFile(folder_ / "a.ffr");
    store_ = ExtentStore::Open(folder_ / "extents").value();
    const auto id = MakeExtentId(7, 0, 0);
    auto writer = test::Create(*store_, id, bytes.size()).value();
    ASSERT_TRUE(writer.Append(test::AsBytes(bytes)));
    const auto sum = Xxh3(test::AsBytes(bytes));
    extent_ = writer.Seal(sum).value();
    DatasetManifest manifest;
    manifest.files = {{"a.ffr", bytes.size(), {{id, bytes.size(), sum}}}};
    plan_ = ahead_
                .Begin(PlannedRecords::Open(manifest, *store_).value(),
                       {.seed = 1, .end = kCount, .step_size = 100})
                .value();
    RunJobs();
    // The first call says that somebody has time.
    (void)ahead_.Next(1, 1);
    RunJobs();
  }

  void RunJobs() {
    while (!jobs_.empty()) {
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      job();
    }
  }

  // What completed, as the worker's loop takes it.
  std::size_t Poll() {
    std::vector<DiskReader::Completed> completed;
    EXPECT_TRUE(disk_.Poll(0ms, completed));
    std::size_t count = 0;
    for (const auto& one : completed) {
      if (one.ticket.connection == IdleReads::kConnection) {
        idle_.Take(one);
        ++count;
      } else {
        disk_.Release(one.size_bytes);
      }
    }
    idle_.NotePolled();
    return count;
  }

  void ReadForClient() {
    disk_.Start({.connection = 1},
                {.extent = &extent_, .offset_bytes = 0, .size_bytes = 100, .piece_count = 1});
  }

  test::TempFolder folder_;
  std::deque<std::function<void()>> jobs_;
  std::unique_ptr<ExtentStore> store_;
  ExtentPtr extent_;
  ReadAhead::Metrics metrics_;
  ReadAhead ahead_{
      std::uint64_t{64} << 20, metrics_,
      [this](std::string_view, std::function<void()> job) { jobs_.push_back(std::move(job)); }};
  ReadAhead::Handle plan_;
  bool holds_ = false;
  DiskReader disk_{
      std::make_unique<HoldingEngine>(holds_), {.files_count_max = 4}, test::OpenAtOnce(disk_)};
  ReadAheadPort port_{ahead_};
  IdleReads idle_{port_, disk_};
  const Clock::time_point now_ = Clock::now();
};

TEST_F(IdleReadsTest, NothingIsReadWhileRequestsCome) {
  idle_.NoteBusy(now_);
  idle_.Start(now_ + 1ms);
  EXPECT_EQ(disk_.reading_count(), 0U);
  // Nobody waits for the disk: the processor may be what clients wait for.
  idle_.Start(now_ + IdleReads::kIdleAfter);
  EXPECT_EQ(disk_.reading_count(), 0U);
  EXPECT_EQ(idle_.WaitMax(200ms, now_ + IdleReads::kIdleAfter),
            IdleReads::kUnusedAfter - IdleReads::kIdleAfter);

  idle_.Start(now_ + IdleReads::kUnusedAfter);
  EXPECT_GT(disk_.reading_count(), 0U);
  EXPECT_GT(Poll(), 0U);
}

TEST_F(IdleReadsTest, AWorkerThatWaitsForItsDiskReadsAheadSoon) {
  idle_.NoteBusy(now_);
  ReadForClient();
  idle_.Start(now_ + 1ms);
  EXPECT_EQ(disk_.reading_count(), 1U);
  EXPECT_EQ(idle_.WaitMax(200ms, now_ + 1ms), IdleReads::kIdleAfter - 1ms);
  idle_.Start(now_ + IdleReads::kIdleAfter);
  EXPECT_GT(disk_.reading_count(), 1U);
  Poll();
}

TEST_F(IdleReadsTest, LittleIsWithTheDiskAtATimeAndTheRestIsGivenUpForARequest) {
  holds_ = true;
  const auto idle = now_ + IdleReads::kUnusedAfter;
  for (int i = 0; i < 5; ++i) {
    idle_.Start(idle);
    Poll();
  }
  EXPECT_GT(disk_.reading_count(), 0U);
  EXPECT_LE(disk_.reading_count(), IdleReads::kInFlightCountMax);
  EXPECT_LE(disk_.held_bytes(), IdleReads::kInFlightBytesMax + ReadAhead::kRunBytesMax);
  // The disk wakes the worker, and nothing else need do.
  EXPECT_EQ(idle_.WaitMax(200ms, idle), 200ms);

  holds_ = false;
  idle_.NoteBusy(idle);
  EXPECT_GT(Poll(), 0U);
  idle_.Start(idle + 1ms);
  EXPECT_EQ(disk_.reading_count(), 0U);
  EXPECT_EQ(disk_.held_bytes(), 0U);
}

TEST_F(IdleReadsTest, OnlyWhatWasWaitedForCountsAsReadFromTheDisk) {
  const auto idle = now_ + IdleReads::kUnusedAfter;
  idle_.Start(idle);
  ASSERT_GT(Poll(), 0U);  // At the first look: it was in memory.
  EXPECT_EQ(metrics_.read_bytes.value(), 0U);

  holds_ = true;
  idle_.Start(idle);
  const std::uint64_t bytes = disk_.held_bytes();
  EXPECT_EQ(Poll(), 0U);
  holds_ = false;
  ASSERT_GT(Poll(), 0U);
  EXPECT_EQ(metrics_.read_bytes.value(), bytes);
}

TEST_F(IdleReadsTest, AWholePlanIsReadAndThenTheWorkerSleeps) {
  auto now = now_ + IdleReads::kUnusedAfter;
  std::size_t count = 0;
  for (int i = 0; i < 10'000 && ahead_.has_work(); ++i) {
    idle_.Start(now);
    count += Poll();
    RunJobs();
  }
  EXPECT_GT(count, 0U);
  EXPECT_FALSE(ahead_.has_work());
  EXPECT_EQ(idle_.WaitMax(200ms, now), 200ms);
  EXPECT_GT(metrics_.held_bytes.value(), kCount * 3000);
}

// A dataset of many small extents, half of them on each disk.
class TwoDisksTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kFileCount = 40;
  static constexpr std::uint64_t kRecords = 100;  // Of each file.

  void SetUp() override {
    ExtentStore::Disks disks;
    for (const char* const name : {"hung", "good"}) {
      std::filesystem::create_directories(folder_ / name);
      disks.present.push_back(Disk::Open(folder_ / name / "extents").value());
    }
    store_ = ExtentStore::Open(std::move(disks)).value();
    for (std::uint32_t i = 0; i < kFileCount; ++i) {
      const std::string name = std::to_string(1000 + i) + ".ffr";
      std::mt19937 random(i);
      std::vector<std::string> texts(kRecords, std::string(4000, 'x'));
      for (std::string& text : texts)
        for (std::size_t at = 0; at < 16; ++at) text[at] = static_cast<char>(random());
      test::WriteRecords(folder_ / name, texts);
      const std::string bytes = test::ReadFile(folder_ / name);
      const auto id = MakeExtentId(7, i, 0);
      auto writer = test::Create(*store_, id, bytes.size()).value();
      ASSERT_TRUE(writer.Append(test::AsBytes(bytes)));
      const auto sum = Xxh3(test::AsBytes(bytes));
      ASSERT_TRUE(writer.Seal(sum));
      manifest_.files.push_back({name, bytes.size(), {{id, bytes.size(), sum}}});
    }
    plan_ = ahead_
                .Begin(PlannedRecords::Open(manifest_, *store_).value(),
                       {.seed = 1, .end = kFileCount * kRecords, .step_size = 100})
                .value();
  }

  void RunJobs() {
    while (!jobs_.empty()) {
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      job();
    }
  }
  // As the worker's loop does.
  void Turn(Clock::time_point now) {
    idle_.Start(now);
    std::vector<DiskReader::Completed> completed;
    EXPECT_TRUE(disk_.Poll(0ms, completed));
    for (const auto& one : completed) {
      read_bytes_ += one.size_bytes;
      idle_.Take(one);
    }
    idle_.NotePolled();
    RunJobs();
  }

  test::TempFolder folder_;
  std::deque<std::function<void()>> jobs_;
  std::unique_ptr<ExtentStore> store_;
  DatasetManifest manifest_;
  ReadAhead::Metrics metrics_;
  ReadAhead ahead_{
      std::uint64_t{64} << 20, metrics_,
      [this](std::string_view, std::function<void()> job) { jobs_.push_back(std::move(job)); }};
  ReadAhead::Handle plan_;
  bool holds_ = false;
  DiskReader disk_{std::make_unique<HoldingEngine>(holds_, "/hung/"),
                   {.files_count_max = 4, .disk_count = 2},
                   test::OpenAtOnce(disk_)};
  ReadAheadPort port_{ahead_};
  IdleReads idle_{port_, disk_};
  std::uint64_t read_bytes_ = 0;
};

TEST_F(TwoDisksTest, MoreIsChosenForADiskWhileWhatIsChosenForTheOtherWaits) {
  ReadAhead ahead(
      std::uint64_t{2} << 20, metrics_,
      [this](std::string_view, std::function<void()> job) { jobs_.push_back(std::move(job)); });
  const auto plan = ahead
                        .Begin(PlannedRecords::Open(manifest_, *store_).value(),
                               {.seed = 2, .end = kFileCount * kRecords, .step_size = 100})
                        .value();
  const Disk* const hung = store_->disks()[0].get();
  for (int i = 0; i < 200; ++i) {
    for (const ReadAhead::Run& run : ahead.Next(1 << 20, 32, {&hung, 1})) {
      ASSERT_NE(run.extent->disk, hung);
      ahead.Finish({run.number, /*was_on_disk=*/true});
      const ReadAhead::Wanted asked{run.extent.get(), run.offset_bytes, run.size_bytes, true};
      ahead.Take({&asked, 1});
    }
    RunJobs();
  }
  // The first choice has about 1 MiB of this disk.
  EXPECT_GT(metrics_.hit_bytes.value(), std::uint64_t{5} << 18);
}

TEST_F(TwoDisksTest, ADiskThatHangsKeepsItsOwnRunsAndTheOtherIsReadAheadFrom) {
  holds_ = true;
  auto now = Clock::now() + IdleReads::kUnusedAfter;
  for (int i = 0; i < 1000; ++i, now += IdleReads::kUnusedAfter) Turn(now);

  std::uint64_t good_bytes = 0;
  for (const auto& disk : store_->disks())
    if (disk->folder().string().find("/good/") != std::string::npos)
      good_bytes = disk->totals().size_bytes;
  EXPECT_GT(read_bytes_, good_bytes / 10 * 9);
  EXPECT_GT(disk_.reading_count(), 0U);
  EXPECT_LE(disk_.reading_count(), IdleReads::kInFlightCountMax);
  // The worker looks again now and then, and does not spin.
  EXPECT_GE(idle_.WaitMax(200ms, now - IdleReads::kUnusedAfter), IdleReads::kUnusedAfter / 2);

  // A run that ends makes room at once.
  holds_ = false;
  Turn(now);
  const std::uint64_t before_bytes = read_bytes_;
  Turn(now);
  EXPECT_GT(read_bytes_, before_bytes);
  for (int i = 0; i < 1000; ++i, now += IdleReads::kUnusedAfter) Turn(now);
  EXPECT_EQ(disk_.reading_count(), 0U);
  EXPECT_GT(read_bytes_, good_bytes / 10 * 18);
}

}  // namespace
}  // namespace ffrecord::server
