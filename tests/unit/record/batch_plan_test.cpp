// Goal: a batch is one round of few large reads, nothing is read twice, and what is read together
// does not fail together.
// Method: files in memory that count what is read of them and fail where they are told to.

#include "libffrecord/record/read/batch_plan.h"
#include "libffrecord/record/read/open_records.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "libffrecord/source/coalesce.h"
#include "memory_files.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AsString;
using test::FileOf;
using test::InMemory;
using test::UpTo;

std::vector<std::string> Records(std::size_t count, std::size_t size) {
  std::vector<std::string> records(count);
  for (std::size_t i = 0; i < count; ++i)
    records[i] = std::string(size, static_cast<char>('a' + i % 26));
  return records;
}

// The reads of one batch, after opening.
struct Reads {
  std::uint64_t rounds, ranges, bytes;
};
Reads ReadsOf(const std::shared_ptr<test::MemoryFiles>& file,
              const std::vector<std::uint64_t>& indices) {
  const auto reader = OpenRecords(file, {}).value();
  file->ResetCounts();
  const Batch batch = reader.ReadBatch(indices).value();
  EXPECT_EQ(std::count(batch.statuses().begin(), batch.statuses().end(), ErrorCode::kOk),
            static_cast<std::ptrdiff_t>(indices.size()));
  return {file->read_call_count(), file->range_count(), file->range_bytes()};
}

TEST(CoalesceTest, NeighboursMergeUpToTheLimits) {
  CoalescedRead read{1000, 2000};
  EXPECT_TRUE(read.Absorb(2000 + kDiskCoalescing.gap_bytes_max,
                          2000 + kDiskCoalescing.gap_bytes_max + 5, kDiskCoalescing));
  EXPECT_FALSE(read.Absorb(read.end_bytes + kDiskCoalescing.gap_bytes_max + 1, ~std::uint64_t{0},
                           kDiskCoalescing));
  EXPECT_TRUE(
      read.Absorb(read.end_bytes, 1000 + kDiskCoalescing.merged_bytes_max, kDiskCoalescing));
  EXPECT_FALSE(read.Absorb(read.end_bytes, read.end_bytes + 1, kDiskCoalescing));
  EXPECT_TRUE(read.Absorb(read.end_bytes, read.end_bytes, kDiskCoalescing));
  EXPECT_TRUE(read.Absorb(1500, 1600, kDiskCoalescing));
  EXPECT_FALSE(read.Absorb(999, 1500, kDiskCoalescing));
}

TEST(BatchPlanTest, NeighboursAreOneRead) {
  const auto file = InMemory(FileOf(Records(100, 100)));
  const Reads reads = ReadsOf(file, UpTo(100));
  EXPECT_EQ(reads.rounds, 1U);
  EXPECT_EQ(reads.ranges, 1U);
  EXPECT_LE(reads.bytes, 100U * 132);
}

TEST(BatchPlanTest, LargeBatchIsReadSideBySideAndOnlyOnce) {
  const auto file = InMemory(FileOf(Records(64, 100'000)));
  const Reads reads = ReadsOf(file, UpTo(64));
  EXPECT_EQ(reads.rounds, 1U);
  EXPECT_EQ(reads.ranges, 7U);  // Ten records to a MiB.
  EXPECT_LE(reads.bytes, 64U * 100'032);
}

TEST(BatchPlanTest, LargeRecordIsReadInPieces) {
  const auto file = InMemory(FileOf(Records(1, 5 << 20)));
  EXPECT_EQ(ReadsOf(file, {0}).ranges, 5U);
}

TEST(BatchPlanTest, WideGapsAreNotRead) {
  const auto file = InMemory(FileOf(Records(10, 20'000)));
  const Reads reads = ReadsOf(file, {0, 2, 4, 6});
  EXPECT_EQ(reads.ranges, 4U);
  EXPECT_EQ(reads.bytes, 80'000U);
}

TEST(BatchPlanTest, NarrowGapsAreReadAndDuplicatesAreNot) {
  const auto file = InMemory(FileOf(Records(10, 1000)));
  const Reads reads = ReadsOf(file, {8, 0, 2, 2, 0, 8, 4, 6, 0});
  EXPECT_EQ(reads.ranges, 1U);
  EXPECT_EQ(reads.bytes, 8 * 1032U + 1000);
}

TEST(BatchPlanTest, EmptyRecordsAndEmptyBatchesReadNothing) {
  const auto file = InMemory(FileOf(Records(10, 0)));
  EXPECT_EQ(ReadsOf(file, UpTo(10)).ranges, 0U);
  EXPECT_EQ(ReadsOf(file, {}).ranges, 0U);
}

TEST(BatchPlanTest, RefusedBatchReadsNothing) {
  const auto file = InMemory(FileOf(Records(10, 10)));
  const auto reader = OpenRecords(file, {}).value();
  file->ResetCounts();
  EXPECT_FALSE(reader.ReadBatch(std::array<std::uint64_t, 2>{1, 10}));
  EXPECT_EQ(file->read_call_count(), 0U);
  EXPECT_EQ(file->map_call_count(), 0U);
}

TEST(BatchPlanTest, AlignedReadsAreWidenedAndTheSame) {
  for (const bool compress : {false, true})
    for (const std::uint32_t alignment : {512U, 4096U}) {
      RecordWriter::Options options;
      options.compress = compress;
      auto records = Records(300, 700);
      records.push_back(std::string(3 << 20, 'L'));
      std::mt19937_64 random(test::Seed());
      records.push_back(test::RandomText(100'001, random));
      const auto file = InMemory(FileOf(records, {.writer = options}), alignment);
      const auto reader = OpenRecords(file, {}).value();
      EXPECT_EQ(test::ReadAll(reader), records);
      for (std::size_t i = 0; i < records.size(); i += 7)
        EXPECT_EQ(AsString(reader.ReadBatch(std::array{std::uint64_t{i}}).value().record(0)),
                  records[i]);
    }
}

TEST(BatchPlanTest, IndexIsFetchedOnlyWhereItIsNeeded) {
  const auto file = InMemory(FileOf(Records(1000, 5), {.pages_per_segment = 1}));
  const auto reader = OpenRecords(file, {}).value();
  file->ResetCounts();
  ASSERT_TRUE(reader.ReadBatch(std::array<std::uint64_t, 2>{0, 169}));
  EXPECT_EQ(file->map_call_count(), 1U);
  ASSERT_TRUE(reader.ReadBatch(std::array<std::uint64_t, 3>{1, 170, 999}));
  EXPECT_EQ(file->map_call_count(), 3U);
}

TEST(FailingReadTest, OneBadSectorCostsOneRecord) {
  for (const std::uint32_t alignment : {1U, 512U}) {
    const auto records = Records(100, 1000);
    const std::string content = FileOf(records);
    const auto file = InMemory(content, alignment);
    const auto reader = OpenRecords(file, {}).value();
    RecordLocation bad;
    ASSERT_EQ(OpenIndexes(*file, {}).value()[0]->Locate(50, bad), ErrorCode::kOk);
    const std::uint64_t sector = bad.offset_bytes + 500;
    file->fault = [&](const RangeRead& range) {
      const bool hit =
          range.offset_bytes <= sector && sector < range.offset_bytes + range.destination.size();
      return hit ? ErrorCode::kIo : ErrorCode::kOk;
    };
    const Batch batch = reader.ReadBatch(UpTo(100)).value();
    for (std::size_t i = 0; i < 100; ++i) {
      // A block of 512 bytes may hold the end of the neighbour, too.
      const bool near = alignment > 1 && (i == 49 || i == 51);
      if (near) continue;
      EXPECT_EQ(batch.statuses()[i], i == 50 ? ErrorCode::kIo : ErrorCode::kOk) << i;
      if (i != 50) {
        EXPECT_EQ(AsString(batch.record(i)), records[i]);
      }
    }
  }
}

TEST(FailingReadTest, GapThatNobodyAskedForCostsNothing) {
  const auto file = InMemory(FileOf(Records(10, 1000)));
  const auto reader = OpenRecords(file, {}).value();
  file->fault = [](const RangeRead& range) {
    return range.destination.size() > 1000 ? ErrorCode::kIo : ErrorCode::kOk;
  };
  const Batch batch = reader.ReadBatch(std::array<std::uint64_t, 2>{3, 5}).value();
  EXPECT_EQ(AsString(batch.record(0)), std::string(1000, 'd'));
  EXPECT_EQ(AsString(batch.record(1)), std::string(1000, 'f'));
}

TEST(FailingReadTest, GoneDaemonIsNotAskedAgain) {
  const auto file = InMemory(FileOf(Records(100, 20'000)));
  const auto reader = OpenRecords(file, {}).value();
  file->fault = [](const RangeRead&) { return ErrorCode::kUnavailable; };
  file->ResetCounts();
  const Batch batch = reader.ReadBatch(UpTo(100)).value();
  EXPECT_EQ(std::count(batch.statuses().begin(), batch.statuses().end(), ErrorCode::kUnavailable),
            100);
  EXPECT_EQ(file->read_call_count(), 1U);
  EXPECT_NE(reader.Describe(3, ErrorCode::kUnavailable).find("try again"), std::string::npos);
}

TEST(ManyFilesTest, RecordsOfAHundredThousandFilesAreFound) {
  // Every third file is empty; the others hold one record, their number.
  constexpr std::uint64_t kFileCount = 100'000;
  const std::string empty = FileOf({}, {.version = 1});
  std::vector<std::string> contents;
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t i = 0; i < kFileCount; ++i) {
    if (i % 3 == 0) {
      contents.push_back(empty);
      continue;
    }
    std::string content(32, '\0');
    std::memcpy(&content[4], std::array<std::uint64_t, 1>{1}.data(), 8);
    const std::uint32_t record_crc = Crc32(std::as_bytes(std::span(&i, 1)));
    std::memcpy(&content[12], &record_crc, 4);
    content[16] = 24;
    const std::uint32_t crc = Crc32(test::AsBytes(content).subspan(4, 20));
    std::memcpy(content.data(), &crc, 4);
    std::memcpy(&content[24], &i, 8);
    contents.push_back(std::move(content));
    numbers.push_back(i);
  }
  const auto reader = OpenRecords(std::make_shared<test::MemoryFiles>(std::move(contents)), {});
  ASSERT_TRUE(reader) << reader.error().message;
  ASSERT_EQ(reader.value().record_count(), numbers.size());
  std::vector<std::uint64_t> indices;
  for (std::uint64_t i = 0; i < numbers.size(); i += 997) indices.push_back(i);
  const Batch batch = reader.value().ReadBatch(indices).value();
  for (std::size_t i = 0; i < indices.size(); ++i) {
    std::uint64_t number = 0;
    ASSERT_EQ(batch.record(i).size(), 8U);
    std::memcpy(&number, batch.record(i).data(), 8);
    EXPECT_EQ(number, numbers[indices[i]]);
  }
}

}  // namespace
}  // namespace ffrecord
