// Goal: a batch that is decompressed by workers is the batch that one thread would have made.
// Method: batches of damaged, compressed records, read with and without help.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "libffrecord/record/read/open_records.h"
#include "memory_files.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::FileOf;
using test::InMemory;
using test::UpTo;

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
          OpenRecords(files, {.verify_checksums = verify, .worker_count_max = 0}).value();
      const auto helped = OpenRecords(files, {.verify_checksums = verify}).value();
      const Batch expected = alone.ReadBatch(indices).value();
      const auto damaged = std::ranges::count(expected.statuses(), ErrorCode::kCorruption);
      EXPECT_GT(damaged, 0);
      EXPECT_LT(damaged, 60);
      for (int round = 0; round < 3; ++round)
        ExpectSame(helped.ReadBatch(indices).value(), expected);
    }
}

TEST(SharedBatchTest, WholeRecordsInMemoryAreDecompressedWithoutARead) {
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
