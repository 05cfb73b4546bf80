// Goal: a caller who gives a long read up has its memory back soon, and the next read is whole.
// Method: reads that take longer than the time between two questions, by each way that records
// come: from mapped files, by reads, decompressed by workers, as a column.

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "libffrecord/base/patience.h"
#include "libffrecord/record/read/open_records.h"
#include "memory_files.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AsString;
using test::FileOf;
using test::InMemory;
using test::UpTo;

// Says no a few times, then yes.
struct Caller {
  int refusals = 0;
  int questions = 0;
  RecordReader::GiveUp give_up = [this] { return ++questions > refusals; };
};

// Until the caller may be asked again.
void LetTimePass() { std::this_thread::sleep_for(Patience::kInterval); }

RecordReader Open(std::shared_ptr<const RangeReader> files) {
  auto reader = OpenRecords(std::move(files), {});
  EXPECT_TRUE(reader) << reader.error().message;
  return std::move(reader).value();
}

std::vector<std::string> SmallRecords(std::size_t count) {
  std::vector<std::string> records(count);
  for (std::size_t i = 0; i < count; ++i) records[i] = "record " + std::to_string(i);
  return records;
}

TEST(PatienceTest, AsksSeldomAndNeverAgainAfterAYes) {
  Caller caller{.refusals = 1'000'000};
  const auto begin = std::chrono::steady_clock::now();
  Patience patience(caller.give_up);
  for (int turn = 0; turn < 100'000; ++turn) EXPECT_FALSE(patience.IsOver());
  EXPECT_LE(caller.questions, (std::chrono::steady_clock::now() - begin) / Patience::kInterval);
  const int questions = caller.questions;
  LetTimePass();
  EXPECT_FALSE(patience.IsOver());
  EXPECT_EQ(caller.questions, questions + 1);
  caller.refusals = 0;
  LetTimePass();
  EXPECT_TRUE(patience.IsOver());
  LetTimePass();
  EXPECT_TRUE(patience.IsOver());
  EXPECT_EQ(caller.questions, questions + 2);
}

// Millions of records, which are located, planned and copied one by one.
TEST(GiveUpTest, EndsAReadOfManyRecordsFromMemoryAndByReads) {
  const auto records = SmallRecords(1000);
  std::vector<std::uint64_t> indices(4'000'000);
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = i * 7 % records.size();
  for (const bool mapped : {true, false}) {
    const auto files = InMemory(FileOf(records));
    files->mapped = mapped;
    const auto reader = Open(files);
    Caller caller;
    const auto batch = reader.ReadBatch(indices, caller.give_up);
    ASSERT_FALSE(batch);
    EXPECT_EQ(batch.error().code, ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(caller.questions, 1);
    EXPECT_EQ(reader.io_report().batches_from_memory, 0U);
    // A slow machine asks before anything is read.
    EXPECT_LE(reader.io_report().batches_read, mapped ? 0U : 1U);
    const auto again = reader.ReadBatch(std::vector<std::uint64_t>{999, 0});
    ASSERT_TRUE(again);
    EXPECT_EQ(AsString(again.value().record(0)), "record 999");
    EXPECT_EQ(reader.io_report().batches_from_memory, mapped ? 1U : 0U);
  }
}

// The slow device is the one that the file's bytes come from.
TEST(GiveUpTest, EndsAReadOnceWhatIsOnItsWayHasArrived) {
  const auto records = SmallRecords(3);
  const auto files = InMemory(FileOf(records));
  files->fault = [](const RangeRead&) {
    LetTimePass();
    return ErrorCode::kOk;
  };
  const auto reader = Open(files);
  Caller caller;
  const auto batch = reader.ReadBatch(UpTo(3), caller.give_up);
  ASSERT_FALSE(batch);
  EXPECT_EQ(batch.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(batch.error().message.find("gave it up"), std::string::npos) << batch.error().message;
  Caller patient{.refusals = 1'000'000};
  const auto whole = reader.ReadBatch(UpTo(3), patient.give_up);
  ASSERT_TRUE(whole);
  EXPECT_GE(patient.questions, 1);
  EXPECT_EQ(AsString(whole.value().record(2)), records[2]);
}

// Records that a bad device spoiled together are read again one by one, each after a while.
TEST(GiveUpTest, EndsWhatIsReadAgainAlone) {
  const auto files = InMemory(FileOf(SmallRecords(1000)));
  const auto reader = Open(files);
  int reads = 0;
  files->fault = [&](const RangeRead& range) {
    ++reads;
    if (range.destination.size() < 100) LetTimePass();
    return ErrorCode::kIo;
  };
  Caller caller;
  const auto batch = reader.ReadBatch(UpTo(1000), caller.give_up);
  ASSERT_FALSE(batch);
  EXPECT_EQ(batch.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_LE(reads, 4);
}

// A gigabyte is decompressed out of little, on this thread and on others.
TEST(GiveUpTest, EndsDecompressionThoughWorkersHaveAPartOfIt) {
  RecordWriter::Options zstd;
  zstd.compress = true;
  const std::vector<std::string> records(4, std::string(8 << 20, 'x'));
  const std::string content = FileOf(records, {.writer = zstd});
  // Different records, for what is named twice is decompressed once.
  const auto files = std::make_shared<test::MemoryFiles>(std::vector<std::string>(32, content));
  for (const std::uint32_t workers : {0U, 8U})
    for (const bool mapped : {true, false}) {
      files->mapped = mapped;
      auto opened = OpenRecords(files, {.worker_count_max = workers});
      ASSERT_TRUE(opened) << opened.error().message;
      const RecordReader& reader = opened.value();
      Caller caller;
      const auto batch = reader.ReadBatch(UpTo(reader.record_count()), caller.give_up);
      ASSERT_FALSE(batch) << workers << mapped;
      EXPECT_EQ(batch.error().code, ErrorCode::kDeadlineExceeded);
      EXPECT_EQ(caller.questions, 1);
    }
}

TEST(GiveUpTest, EndsAColumn) {
  const Schema schema = Schema::Make({{"n", ColumnType::kI64, {}}}).value();
  RecordWriter::Options copied;
  copied.copied_columns = {"n"};
  for (const auto& options : {RecordWriter::Options{}, copied}) {
    const std::vector<std::string> records(10'000, std::string(8, '\1'));
    const auto files = InMemory(FileOf(records, {.schema = schema, .writer = options}));
    const auto reader = Open(files);
    files->fault = [](const RangeRead&) {
      LetTimePass();
      return ErrorCode::kOk;
    };
    std::vector<std::byte> values(records.size() * 8);
    Caller caller;
    const auto read = reader.ReadColumn(0, 0, records.size(), values, caller.give_up);
    if (options.copied_columns.empty()) {
      ASSERT_FALSE(read);
      EXPECT_EQ(read.error().code, ErrorCode::kDeadlineExceeded);
    } else {
      EXPECT_TRUE(read);  // One read of one copy: nothing is left to be given up.
    }
  }
}

}  // namespace
}  // namespace ffrecord
