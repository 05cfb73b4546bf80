// Goal: work that is shared with helpers is done once and whole, whatever becomes of the process,
// and a batch that is expanded with help is the batch that one thread would have made.
// Method: pieces that count, and that wait for each other; forked children; work after exit() has
// begun; batches of damaged, compressed records, read with and without help.

#include "libffrecord/record/shared_work.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "memory_files.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::FileOf;
using test::InMemory;
using test::UpTo;

constexpr std::size_t kPieceCount = 2000;

// Whether every piece of some work was done once, on slots that exist.
bool DoesAllOnce(std::uint32_t helper_count_max) {
  std::vector<std::atomic<int>> done(kPieceCount);
  std::atomic<bool> slots_exist{true};
  SharedWork work(helper_count_max, [&](std::size_t piece, std::uint32_t slot) {
    ++done[piece];
    if (slot > helper_count_max) slots_exist = false;
  });
  if (work.helper_count() > helper_count_max) return false;
  for (std::size_t ready = 100; ready <= kPieceCount; ready += 100) work.Ready(ready);
  work.Finish();
  return slots_exist && std::ranges::all_of(done, [](const auto& count) { return count == 1; });
}

TEST(SharedWorkTest, EveryPieceIsDoneOnce) {
  for (const std::uint32_t helper_count_max : {0U, 1U, 3U, 15U, 1000U})
    EXPECT_TRUE(DoesAllOnce(helper_count_max)) << helper_count_max;
}

TEST(SharedWorkTest, AHelperWorksBesideTheThreadThatHasTheWork) {
  std::barrier both(2);
  std::atomic<std::uint32_t> slots{0};
  SharedWork work(1, [&](std::size_t, std::uint32_t slot) {
    both.arrive_and_wait();  // One thread alone would never leave.
    slots |= 1U << slot;
  });
  if (work.helper_count() == 0) GTEST_SKIP() << "one processor: there are no helpers";
  work.Ready(2);
  work.Finish();
  EXPECT_EQ(slots, 3U);
}

TEST(SharedWorkTest, WhatIsDestroyedHasNobodyAtWorkAnyMore) {
  for (int round = 0; round < 50; ++round) {
    auto room = std::make_unique<std::vector<std::size_t>>(kPieceCount);
    {
      SharedWork work(15, [&](std::size_t piece, std::uint32_t) { (*room)[piece] = piece; });
      work.Ready(kPieceCount);
    }
    room.reset();  // A sanitizer would see a helper that writes there now.
  }
}

TEST(SharedWorkTest, ManyThreadsShareTheHelpers) {
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) right += DoesAllOnce(15) ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 120);
}

// The status with which a forked child that does this ends.
template <class Run>
int InChild(Run run) {
  const pid_t child = ::fork();
  if (child == 0) run();
  int status = -1;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST(SharedWorkTest, ChildForkedInTheMiddleHasHelpersOfItsOwn) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer's allocator may be locked for ever in a child of many threads";
#endif
  ASSERT_TRUE(DoesAllOnce(15));
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) EXPECT_TRUE(DoesAllOnce(15));
  });
  for (int round = 0; round < 10; ++round)
    EXPECT_EQ(InChild([] { ::_exit(DoesAllOnce(15) ? 7 : 8); }), 7);
  stop = true;
  busy.join();
}

TEST(SharedWorkTest, AfterExitHasBegunWorkIsDoneWithoutHelpers) {
  EXPECT_EQ(InChild([] {
              // Runs after what the pool registers later.
              static_cast<void>(std::atexit([] { ::_exit(DoesAllOnce(15) ? 7 : 8); }));
              if (!DoesAllOnce(15)) ::_exit(9);
              std::exit(0);
            }),
            7);
}

// Records of many sizes, most of which compress.
std::vector<std::string> MixedRecords() {
  std::mt19937_64 random(test::Seed());
  std::vector<std::string> records(1500);
  for (std::string& record : records) {
    record.resize(random() % 4000);
    const bool compresses = random() % 5 != 0;
    for (char& byte : record) byte = static_cast<char>(compresses ? random() % 4 : random());
  }
  records[7].clear();
  records.back() = std::string(3 << 20, 'x');
  return records;
}

void ExpectSame(const Batch& batch, const Batch& expected) {
  ASSERT_EQ(batch.size(), expected.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    ASSERT_EQ(batch.statuses()[i], expected.statuses()[i]) << i;
    ASSERT_EQ(batch.starts_bytes()[i], expected.starts_bytes()[i]) << i;
    ASSERT_TRUE(std::ranges::equal(batch.record(i), expected.record(i))) << i;
  }
}

TEST(SharedBatchTest, IsTheBatchOfOneThreadWithItsDamagedRecords) {
  const auto records = MixedRecords();
  RecordWriter::Options zstd;
  zstd.compress = true;
  auto content = FileOf(records, {.writer = zstd});
  std::mt19937_64 random(test::Seed());
  for (int flip = 0; flip < 50; ++flip) content[5000 + random() % 200'000] ^= 0x10;
  auto indices = UpTo(records.size());
  std::ranges::shuffle(indices, random);
  indices.insert(indices.end(), 10, 3);  // Duplicates.

  for (const bool mapped : {false, true})
    for (const bool verify : {true, false}) {
      const auto files = InMemory(content);
      files->mapped = mapped;
      const auto alone =
          OpenRecords(files, {.verify_checksums = verify, .helper_count_max = 0}).value();
      const auto helped = OpenRecords(files, {.verify_checksums = verify}).value();
      const Batch expected = alone.ReadBatch(indices).value();
      const auto damaged = std::ranges::count(expected.statuses(), ErrorCode::kCorruption);
      EXPECT_GT(damaged, 0);
      EXPECT_LT(damaged, 60);
      for (int round = 0; round < 3; ++round)
        ExpectSame(helped.ReadBatch(indices).value(), expected);
    }
}

TEST(SharedBatchTest, WholeRecordsInMemoryAreExpandedWithoutARead) {
  const auto records = MixedRecords();
  RecordWriter::Options zstd;
  zstd.compress = true;
  const auto files = InMemory(FileOf(records, {.writer = zstd}));
  files->mapped = true;
  const auto reader = OpenRecords(files, {}).value();
  files->ResetCounts();
  auto indices = UpTo(records.size());
  indices.insert(indices.end(), 10, records.size() - 1);
  const Batch batch = reader.ReadBatch(indices).value();
  EXPECT_EQ(files->read_call_count(), 0U);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    ASSERT_EQ(batch.statuses()[i], ErrorCode::kOk);
    ASSERT_EQ(test::AsString(batch.record(i)), records[indices[i]]);
  }
}

}  // namespace
}  // namespace ffrecord
