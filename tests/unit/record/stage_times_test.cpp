// Goal: the time of reads is in the stage that it was spent in, once, whoever reads.
// Method: batches of records that are in memory, read from a disk, compressed, or held back by
// their source; the sums of a reader against the time that its calls took.

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <ffrecord/batch_queue.h>
#include <ffrecord/record_reader.h>

#include "held_files.h"
#include "libffrecord/base/io_times.h"
#include "libffrecord/record/read/open_records.h"
#include "memory_files.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using test::HeldFiles;
using test::TestFile;
using Clock = std::chrono::steady_clock;
using Times = RecordReader::StageTimes;

constexpr std::uint64_t kCount = 300;
constexpr nanoseconds kNone{0};

std::vector<std::string> Records() {
  std::vector<std::string> records;
  for (std::uint64_t i = 0; i < kCount; ++i)
    records.push_back(std::to_string(i) + std::string(20'000, static_cast<char>(i)));
  return records;
}

std::vector<std::uint64_t> All() {
  std::vector<std::uint64_t> indices(kCount);
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

nanoseconds SumOf(const Times& times) {
  return times.submit + times.device + times.verify + times.decompress;
}

// Reads all records with one call, or through a queue; the reader's times, and the call's.
std::pair<Times, nanoseconds> TimesOf(const RecordReader& reader, bool through_queue) {
  const auto indices = All();
  const auto begin = Clock::now();
  if (through_queue) {
    auto queue = reader.OpenQueue({}).value();
    EXPECT_TRUE(queue.Submit(indices, 0));
    while (queue.size() > 0) EXPECT_TRUE(queue.Poll(milliseconds(20)));
  } else {
    EXPECT_TRUE(reader.ReadBatch(indices));
  }
  const nanoseconds took = Clock::now() - begin;
  return {reader.io_report().times, took};
}

// Times of a reader that has read all records once.
Times Check(const RecordReader& reader, bool through_queue) {
  const auto [times, took] = TimesOf(reader, through_queue);
  for (const nanoseconds time : {times.submit, times.device, times.verify, times.decompress})
    EXPECT_GE(time, kNone);
  EXPECT_LE(SumOf(times), took);
  return times;
}

class StageTimesTest : public testing::TestWithParam<bool> {};

TEST_P(StageTimesTest, DataInMemoryIsVerifiedAndWaitsForNoDevice) {
  const auto file = test::InMemory(test::FileOf(Records()));
  file->mapped = true;
  const auto times = Check(OpenRecords(file, {}).value(), GetParam());
  EXPECT_GT(times.submit, kNone);
  EXPECT_EQ(times.device, kNone);
  EXPECT_GT(times.verify, kNone);
  EXPECT_EQ(times.decompress, kNone);
}

TEST_P(StageTimesTest, DirectReadsWaitForTheirDevice) {
  const TestFile file(Records());
  const RecordReader::Options direct{.io = IoPolicy::kDirect};
  const auto times = Check(test::OpenOne(file.path(), direct).value(), GetParam());
  EXPECT_GT(times.submit, kNone);
  EXPECT_GT(times.device, kNone);
  EXPECT_GT(times.verify, kNone);
  EXPECT_EQ(times.decompress, kNone);
}

TEST_P(StageTimesTest, CompressedBatchesAreDecompressed) {
  const TestFile file(Records(), {.writer = {.compress = true}});
  for (const IoPolicy policy : {IoPolicy::kAuto, IoPolicy::kDirect}) {
    const RecordReader::Options options{.io = policy};
    const auto times = Check(test::OpenOne(file.path(), options).value(), GetParam());
    EXPECT_GT(times.decompress, kNone);
    EXPECT_EQ(times.verify, kNone);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, StageTimesTest, testing::Bool(),
                         [](const auto& way) { return way.param ? "queue" : "call"; });

TEST(StageTimesTest, ASourceThatHoldsABatchBackIsTheDevice) {
  const auto files = std::make_shared<HeldFiles>(std::vector<std::string>{test::FileOf(Records())});
  files->is_open = true;
  const RecordReader reader = OpenRecords(files, {}).value();
  files->is_open = false;
  auto queue = reader.OpenQueue({}).value();
  ASSERT_TRUE(queue.Submit(All(), 0));
  constexpr milliseconds kHeld{30};
  EXPECT_FALSE(queue.Poll(kHeld).value());
  files->is_open = true;
  while (queue.size() > 0) ASSERT_TRUE(queue.Poll(milliseconds(20)));
  EXPECT_GE(reader.io_report().times.device, kHeld);
}

TEST(StageTimesTest, TimesOfThreadsAddUp) {
  const TestFile file(Records());
  const auto reader = test::OpenOne(file.path()).value();
  const auto one = Check(reader, false);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { EXPECT_TRUE(reader.ReadBatch(All())); });
  for (auto& thread : threads) thread.join();
  EXPECT_GT(reader.io_report().times.verify, one.verify);
}

TEST(IoTimesTest, ABlockCountsToItsOwnThread) {
  const auto before = IoTimes::OfThread().device;
  std::thread([] {
    {
      const TimedIo timed(&IoTimes::device);
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_GE(IoTimes::OfThread().device, milliseconds(1));
    EXPECT_EQ(IoTimes::OfThread().submit, kNone);
  }).join();
  EXPECT_EQ(IoTimes::OfThread().device, before);
}

}  // namespace
}  // namespace ffrecord
