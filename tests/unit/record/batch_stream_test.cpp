// Goal: a stream returns the batch of every step, in order, whatever its threads do first; it holds
// no more than it may, and ends at any moment.
// Method: streams over local files, and over files in memory whose reads are held until the test
// lets them go.

#include <ffrecord/batch_stream.h>
#include <ffrecord/runtime.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "child.h"
#include "child_threads.h"
#include "eventually.h"
#include "held_files.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/record/stream/read_ahead_depth.h"
#include "libffrecord/record/stream/step_order.h"
#include "memory_files.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using std::chrono::milliseconds;
using test::AsString;
using test::FileOf;
using test::HeldFiles;
using test::TestFile;
using test::TestFileOptions;

constexpr milliseconds kLong{20'000};
constexpr milliseconds kNoWait{0};
constexpr std::uint64_t kCount = 100;

std::vector<std::string> RandomRecords() {
  std::mt19937_64 random(test::Seed());
  std::vector<std::string> records;
  for (std::uint64_t i = 0; i < kCount; ++i)
    records.push_back(test::RandomText(static_cast<std::size_t>(random() % 20'000), random));
  return records;
}

EpochPlan PlanOf(std::uint32_t step_size) {
  return {.seed = test::Seed(), .end = kCount, .step_size = step_size};
}

BatchStream Open(const RecordReader& reader, const EpochPlan& plan,
                 const BatchStream::Options& options) {
  return BatchStream::Open(reader, plan, kCount, options).value();
}

BatchStream::Item Next(BatchStream& stream) {
  auto next = stream.Next(kLong).value();
  EXPECT_TRUE(next) << "no batch came";
  return *std::move(next);
}

// --- What it returns -----------------------------------------------------------------------------

class BatchStreamOfFilesTest : public testing::TestWithParam<IoPolicy> {};

TEST_P(BatchStreamOfFilesTest, ReturnsEachStepInOrderOverTheEndsOfEpochs) {
  const auto records = RandomRecords();
  RecordWriter::Options zstd;
  zstd.compress = true;
  for (const TestFileOptions& form :
       {TestFileOptions{.version = 1}, TestFileOptions{}, TestFileOptions{.writer = zstd}})
    for (const std::uint32_t threads : {1u, 3u}) {
      const TestFile file(records, form);
      RecordReader::Options options;
      options.io = GetParam();
      const auto reader = test::OpenOne(file.path(), options).value();
      const EpochPlan plan = PlanOf(8);
      const auto order = StepOrder::Make(plan, kCount, kCount).value();
      StepOrder::Indices indices(order);
      auto stream = Open(reader, plan, {.threads = threads, .batches_ahead = 6});
      for (std::uint64_t number = 0; number < 40; ++number) {  // 13 of each epoch.
        const auto item = Next(stream);
        const Step step = order.At(number);
        EXPECT_EQ(item.epoch, step.epoch);
        EXPECT_EQ(item.position, step.position);
        EXPECT_EQ(item.indices, indices.Of(step).value());
        ASSERT_TRUE(item.batch) << item.batch.error().message;
        ASSERT_EQ(item.batch.value().size(), item.indices.size());
        for (std::size_t i = 0; i < item.indices.size(); ++i)
          EXPECT_EQ(AsString(item.batch.value().record(i)), records[item.indices[i]]);
      }
      const auto stats = stream.stats();
      EXPECT_GE(stats.batches, 40u);
      EXPECT_GE(stats.records, 3 * kCount);
    }
}

INSTANTIATE_TEST_SUITE_P(Policies, BatchStreamOfFilesTest,
                         testing::Values(IoPolicy::kAuto, IoPolicy::kDirect), [](const auto& form) {
                           return form.param == IoPolicy::kAuto ? "auto" : "direct";
                         });

// Record i: a bool, which is stored as 0 or 2, i as an i64, three bytes, and, if asked for, text.
Schema SchemaOf(bool with_text) {
  std::vector<Column> columns{
      {"odd", ColumnType::kBool}, {"number", ColumnType::kI64}, {"three", ColumnType::kU8, {3}}};
  if (with_text) columns.insert(columns.begin() + 1, {"text", ColumnType::kUtf8});
  return Schema::Make(columns).value();
}

std::vector<std::string> RowsOf(bool with_text) {
  std::vector<std::string> rows;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(kCount); ++i) {
    std::string row(1, static_cast<char>(i % 2 * 2));
    row.append(reinterpret_cast<const char*>(&i), sizeof i);
    row.append(3, static_cast<char>(i));
    if (with_text) row.append(static_cast<std::size_t>(i), 'x');
    rows.push_back(row);
  }
  return rows;
}

TEST(BatchStreamTest, GathersColumnsOfFixedWidth) {
  for (const bool with_text : {false, true}) {
    const TestFile file(RowsOf(with_text), {.schema = SchemaOf(with_text)});
    const auto reader = test::OpenOne(file.path()).value();
    const std::uint32_t number = with_text ? 2 : 1, three = number + 1;
    auto stream = Open(reader, PlanOf(10), {.gathered_columns = {three, number, 0}});
    for (int step = 0; step < 10; ++step) {
      const auto item = Next(stream);
      ASSERT_EQ(item.columns.size(), 3u);
      for (std::size_t row = 0; row < 10; ++row) {
        const auto index = static_cast<std::int64_t>(item.indices[row]);
        std::int64_t value = -1;
        std::memcpy(&value, item.columns[1].data.data() + row * sizeof value, sizeof value);
        EXPECT_EQ(value, index);
        EXPECT_EQ(AsString(item.columns[0].data.subspan(3 * row, 3)),
                  std::string(3, static_cast<char>(index)));
        EXPECT_EQ(item.columns[2].data[row], std::byte(index % 2));
      }
    }
  }
}

TEST(BatchStreamTest, TheOnlyColumnIsNotCopied) {
  const TestFile file(std::vector<std::string>(kCount, "12345678"),
                      {.schema = Schema::Make({{"x", ColumnType::kF64}}).value()});
  const auto reader = test::OpenOne(file.path()).value();
  auto stream = Open(reader, PlanOf(10), {.gathered_columns = {0}});

  const auto item = Next(stream);

  ASSERT_EQ(item.columns.size(), 1u);
  EXPECT_EQ(item.columns[0].data.data(), item.batch.value().data().data());
  EXPECT_EQ(item.columns[0].data.size(), 80u);
}

TEST(BatchStreamTest, AColumnMayBeWantedTwice) {
  const TestFile one(std::vector<std::string>(kCount, "12345678"),
                     {.schema = Schema::Make({{"x", ColumnType::kF64}}).value()});
  const TestFile several(RowsOf(false), {.schema = SchemaOf(false)});
  for (const TestFile* file : {&one, &several}) {
    const auto reader = test::OpenOne(file->path()).value();
    auto stream = Open(reader, PlanOf(10), {.gathered_columns = {0, 0}});
    const auto item = Next(stream);
    ASSERT_EQ(item.columns.size(), 2u);
    EXPECT_EQ(AsString(item.columns[0].data), AsString(item.columns[1].data));
  }
}

TEST(BatchStreamTest, ABatchWithADamagedRecordHasNoColumnsAndSaysSo) {
  TestFile file(RowsOf(false), {.schema = SchemaOf(false)});
  file.FlipByteOfRecord(30);
  const auto reader = test::OpenOne(file.path()).value();
  auto stream = Open(reader, PlanOf(10), {.gathered_columns = {1}});
  int damaged = 0;
  for (int step = 0; step < 10; ++step) {
    const auto item = Next(stream);
    const auto at = std::ranges::find(item.indices, 30u) - item.indices.begin();
    const bool has_it = at < 10;
    EXPECT_EQ(item.columns.empty(), has_it);
    if (!has_it) continue;
    ++damaged;
    EXPECT_EQ(item.batch.value().statuses()[static_cast<std::size_t>(at)], ErrorCode::kCorruption);
  }
  EXPECT_EQ(damaged, 1);
}

// --- When it reads -------------------------------------------------------------------------------

struct Held {
  Held() : records(RandomRecords()) {
    files = std::make_shared<HeldFiles>(std::vector<std::string>{FileOf(records)});
    files->is_open = true;
    reader.emplace(OpenRecords(files, {}).value());
    files->is_open = false;
    files->begun = 0;
  }
  void WaitUntilBegun(std::uint64_t count) const {
    EXPECT_TRUE(test::Eventually([&] { return files->begun >= count; }));
  }

  std::vector<std::string> records;
  std::shared_ptr<HeldFiles> files;
  std::optional<RecordReader> reader;
};

TEST(BatchStreamTest, SeveralBatchesAreReadAtATimeAndNoMoreThanAsked) {
  const Held held;
  auto stream = Open(*held.reader, PlanOf(4), {.threads = 2, .batches_ahead = 4});
  held.WaitUntilBegun(4);
  EXPECT_FALSE(stream.Next(milliseconds(50)).value());
  EXPECT_EQ(held.files->begun, 4u);
  EXPECT_EQ(stream.pending(), 4u);
  EXPECT_EQ(stream.depth(), 4u);
  held.files->is_open = true;
  for (int step = 0; step < 50; ++step) EXPECT_TRUE(Next(stream).batch);
}

// Whether reads ahead would be held in a phase.
bool IsPrefetchUrgent() {
  const auto before = GetPacingCounters().promotions;
  AwaitTurn(TrafficClass::kPrefetch, 1);
  return GetPacingCounters().promotions > before;
}

TEST(BatchStreamTest, ItsReadsAreUrgentWhileFewBatchesAreReady) {
  ASSERT_TRUE(
      StartPacing({.prefetch = {0, milliseconds(1)}, .stale_after = milliseconds(600'000)}));
  BeginPhase(PhaseKind::kCollective, 1);
  EXPECT_FALSE(IsPrefetchUrgent());
  {
    const Held held;
    const auto stream = Open(*held.reader, PlanOf(4), {.threads = 2, .batches_ahead = 4});
    EXPECT_TRUE(IsPrefetchUrgent());
    held.files->is_open = true;
    EXPECT_TRUE(test::Eventually([] { return !IsPrefetchUrgent(); })) << "all are ready";
  }
  {
    const Held held;
    const auto stream = Open(*held.reader, PlanOf(4), {.threads = 2, .batches_ahead = 4});
    EXPECT_TRUE(IsPrefetchUrgent());
  }
  EXPECT_FALSE(IsPrefetchUrgent()) << "the stream is gone";
  StopPacing();
}

// Files whose first call waits for the test.
class FirstHeldFiles final : public test::MemoryFiles {
 public:
  using MemoryFiles::MemoryFiles;

  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    const bool is_first = is_closed && !has_begun.exchange(true);
    while (is_first && is_closed) std::this_thread::sleep_for(milliseconds(1));
    return MemoryFiles::ReadEach(ranges, arrived, patience);
  }

  std::atomic<bool> is_closed = false;
  mutable std::atomic<bool> has_begun = false;
};

TEST(BatchStreamTest, ItsReadsAreUrgentWhileTheNextBatchIsMissingAndLaterOnesAreReady) {
  ASSERT_TRUE(
      StartPacing({.prefetch = {0, milliseconds(1)}, .stale_after = milliseconds(600'000)}));
  BeginPhase(PhaseKind::kCollective, 1);
  const auto files =
      std::make_shared<FirstHeldFiles>(std::vector<std::string>{FileOf(RandomRecords())});
  const auto reader = OpenRecords(files, {}).value();
  files->is_closed = true;
  {
    auto stream = Open(reader, PlanOf(4), {.threads = 2, .batches_ahead = 8});
    EXPECT_TRUE(test::Eventually([] { return !IsPrefetchUrgent(); })) << "most are ready";
    std::thread consumer([&] {
      for (int step = 0; step < 8; ++step) EXPECT_TRUE(Next(stream).batch);
    });
    EXPECT_TRUE(test::Eventually([] { return IsPrefetchUrgent(); }));
    files->is_closed = false;
    consumer.join();
    EXPECT_TRUE(test::Eventually([] { return !IsPrefetchUrgent(); })) << "most are ready again";
  }
  StopPacing();
}

TEST(BatchStreamTest, OneBatchFitsWhateverTheMemory) {
  const Held held;
  held.files->is_open = true;
  auto stream = Open(*held.reader, PlanOf(20), {.threads = 2, .memory_limit_bytes = 1});
  for (int step = 0; step < 50; ++step) EXPECT_TRUE(Next(stream).batch);
  EXPECT_EQ(stream.depth(), 1u);
  EXPECT_LE(stream.pending(), 1u);
}

// Nothing has been read yet that would tell how large a batch is.
TEST(BatchStreamTest, TheFirstBatchesTakeNoMoreMemoryThanThoseThatFollow) {
  const Held held;
  auto stream =
      Open(*held.reader, PlanOf(20), {.threads = 4, .batches_ahead = 16, .memory_limit_bytes = 1});
  held.WaitUntilBegun(1);
  EXPECT_FALSE(stream.Next(milliseconds(100)).value());
  EXPECT_EQ(stream.pending(), 1u);
  held.files->is_open = true;
  for (int step = 0; step < 10; ++step) EXPECT_TRUE(Next(stream).batch);
}

// Files in memory, of which nothing can be read while they fail.
class FailingFiles final : public test::MemoryFiles {
 public:
  using MemoryFiles::MemoryFiles;
  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    if (fails) return Error{ErrorCode::kIo, "it fails"};
    return MemoryFiles::ReadEach(ranges, arrived, patience);
  }
  std::atomic<bool> fails = false;
};

// An error says nothing about the size of a batch.
TEST(BatchStreamTest, AfterErrorsBatchesTakeNoMoreMemoryEither) {
  const auto files =
      std::make_shared<FailingFiles>(std::vector<std::string>{FileOf(RandomRecords())});
  const auto reader = OpenRecords(files, {}).value();
  files->fails = true;
  auto stream =
      Open(reader, PlanOf(20), {.threads = 4, .batches_ahead = 16, .memory_limit_bytes = 1'000});
  std::uint32_t pending_max = 0;
  for (int step = 0; step < 40; ++step) {
    files->fails = step % 4 != 3;
    (void)Next(stream);
    std::this_thread::sleep_for(milliseconds(1));  // The threads begin what they may.
    pending_max = std::max(pending_max, stream.pending());
  }
  EXPECT_LE(pending_max, 1u);
}

// All threads are woken when the first has found out how large a batch is.
TEST(BatchStreamTest, EveryThreadBeginsABatchBeforeTheFirstOneEnds) {
  const Held held;
  auto stream = Open(*held.reader, PlanOf(4), {.threads = 4, .batches_ahead = 4});
  held.WaitUntilBegun(4);
  held.files->is_open = true;
  EXPECT_TRUE(Next(stream).batch);
}

TEST(BatchStreamTest, GatheredColumnsCountAsMemory) {
  const TestFile file(RowsOf(false), {.schema = SchemaOf(false)});
  const auto reader = test::OpenOne(file.path()).value();
  // Twelve bytes of a record, and eight of its number.
  auto stream = Open(reader, PlanOf(10),
                     {.batches_ahead = 9, .memory_limit_bytes = 600, .gathered_columns = {1}});
  for (int step = 0; step < 30; ++step) EXPECT_TRUE(Next(stream).batch);
  EXPECT_EQ(stream.depth(), 3u);
}

TEST(BatchStreamTest, AWaitThatIsOverLosesNoStep) {
  const Held held;
  auto stream = Open(*held.reader, PlanOf(10), {});
  EXPECT_FALSE(stream.Next(kNoWait).value());
  EXPECT_FALSE(stream.Next(milliseconds(20)).value());
  held.files->is_open = true;
  for (std::uint64_t step = 0; step < 25; ++step) EXPECT_EQ(Next(stream).position, step % 10 * 10);
}

TEST(BatchStreamTest, AWaitWithoutEndLastsUntilTheBatchComes) {
  const Held held;
  auto stream = Open(*held.reader, PlanOf(10), {});
  EXPECT_FALSE(stream.Next(milliseconds::min()).value());
  std::thread later([&] {
    held.WaitUntilBegun(1);
    held.files->is_open = true;
  });
  EXPECT_TRUE(stream.Next(milliseconds::max()).value());
  later.join();
}

TEST(BatchStreamTest, EndsWhileAllIsHeld) {
  const Held held;
  std::optional<BatchStream> stream =
      Open(*held.reader, PlanOf(10), {.threads = 3, .batches_ahead = 9});
  held.WaitUntilBegun(3);
  stream.reset();  // Would wait for ever.
}

TEST(BatchStreamTest, EndsWhileAConsumerDoesNotTakeWhatIsReady) {
  const Held held;
  held.files->is_open = true;
  auto stream = Open(*held.reader, PlanOf(10), {.threads = 3});
  EXPECT_TRUE(test::Eventually([&] { return stream.stats().batches >= stream.depth(); }));
}

TEST(BatchStreamTest, EndsAtAnyMomentWithoutALostStep) {
  const TestFile file(RowsOf(false), {.schema = SchemaOf(false)});
  const auto reader = test::OpenOne(file.path()).value();
  std::mt19937_64 random(test::Seed());
  for (int round = 0; round < 100; ++round) {
    const auto step_size = static_cast<std::uint32_t>(1 + random() % 5);
    const std::uint64_t steps = (kCount + step_size - 1) / step_size;
    auto stream = Open(reader, PlanOf(step_size),
                       {.threads = static_cast<std::uint32_t>(1 + random() % 6),
                        .batches_ahead = static_cast<std::uint32_t>(1 + random() % 20),
                        .memory_limit_bytes = std::uint64_t{1} << random() % 20,
                        .gathered_columns = {1}});
    const std::uint64_t wanted = random() % 300;
    for (std::uint64_t number = 0; number < wanted;) {
      const auto item = stream.Next(random() % 2 == 0 ? kNoWait : kLong).value();
      if (!item) continue;
      ASSERT_EQ(item->position, number % steps * step_size);
      ASSERT_EQ(item->columns.size(), 1u);
      std::int64_t value = -1;
      std::memcpy(&value, item->columns[0].data.data(), sizeof value);
      ASSERT_EQ(static_cast<std::uint64_t>(value), item->indices[0]);
      ++number;
    }
  }
}

TEST(BatchStreamTest, AnErrorComesAtItsStepAndTheNextOnesAfterIt) {
  const Held held;
  std::atomic<int> reads = 0;
  held.files->fault = [&](const RangeRead&) {
    return ++reads == 5 ? ErrorCode::kIo : ErrorCode::kOk;
  };
  held.files->is_open = true;
  auto stream = Open(*held.reader, PlanOf(1), {.threads = 1, .batches_ahead = 1});
  // Read again alone, it is good; what matters is that every step comes, and in its place.
  for (std::uint64_t step = 0; step < 30; ++step) {
    const auto item = Next(stream);
    EXPECT_EQ(item.position, step);
    ASSERT_TRUE(item.batch);
    EXPECT_EQ(AsString(item.batch.value().record(0)), held.records[item.indices[0]]);
  }
}

TEST(BatchStreamTest, AChildLeavesTheParentsStreamAlone) {
  const auto records = RandomRecords();
  const TestFile file(records);
  const auto reader = test::OpenOne(file.path()).value();
  std::optional<BatchStream> stream = Open(reader, PlanOf(10), {});
  Next(*stream);
  EXPECT_EQ(test::RunInChild([&] {
              const auto next = stream->Next(kNoWait);
              const bool refused = !next && next.error().code == ErrorCode::kInvalidArgument;
              const bool empty = stream->pending() == 0 && stream->stats().batches == 0;
              stream.reset();
              if (!refused || !empty) return 1;
              if (!test::kChildMayHaveThreads) return 0;
              auto own = Open(reader, PlanOf(10), {});
              return own.Next(kLong).value() ? 0 : 2;
            }),
            0);
  EXPECT_EQ(Next(*stream).position, 10u);
}

TEST(BatchStreamTest, RefusesOptionsThatAreOutOfRange) {
  const TestFile file(RowsOf(true), {.schema = SchemaOf(true)});
  const auto reader = test::OpenOne(file.path()).value();
  for (const BatchStream::Options& options :
       {BatchStream::Options{.threads = 0}, BatchStream::Options{.threads = 65},
        BatchStream::Options{.batches_ahead = 0}, BatchStream::Options{.batches_ahead = 257},
        BatchStream::Options{.gathered_columns = {1}},
        BatchStream::Options{.gathered_columns = {4}}}) {
    const auto stream = BatchStream::Open(reader, PlanOf(10), kCount, options);
    ASSERT_FALSE(stream);
    EXPECT_EQ(stream.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_FALSE(BatchStream::Open(reader, PlanOf(10), kCount + 11, {}));
}

// --- How far ahead -------------------------------------------------------------------------------

constexpr milliseconds kFelt{20};
constexpr milliseconds kNotFelt{0};
constexpr std::uint64_t kLarge = std::uint64_t{64} << 20;

TEST(ReadAheadDepthTest, GrowsWhereAConsumerWaitsThatHadAllReadyBefore) {
  ReadAheadDepth depth(4, 2, 1000 * kLarge);
  depth.Weigh(kLarge);
  for (int i = 0; i < 3; ++i) {
    depth.Taken(kNotFelt, true);
    depth.Taken(kFelt, false);
  }
  EXPECT_EQ(depth.value(), 10u);
}

TEST(ReadAheadDepthTest, ShrinksAgainOnceAllIsSmooth) {
  ReadAheadDepth depth(4, 2, 1000 * kLarge);
  depth.Weigh(kLarge);
  depth.Taken(kNotFelt, true);
  depth.Taken(kFelt, false);
  EXPECT_EQ(depth.value(), 6u);
  for (int i = 0; i < 1000; ++i) depth.Taken(kNotFelt, true);
  EXPECT_EQ(depth.value(), 4u);
}

TEST(ReadAheadDepthTest, GivesUpOnAConsumerThatIsAlwaysFaster) {
  ReadAheadDepth depth(4, 2, 1000 * kLarge);
  depth.Weigh(kLarge);
  depth.Taken(kNotFelt, true);
  depth.Taken(kFelt, false);
  for (int i = 0; i < 100; ++i) depth.Taken(kFelt, false);
  EXPECT_EQ(depth.value(), 4u);
}

TEST(ReadAheadDepthTest, StaysBelowTheMemoryAndNeverEndsAtNone) {
  ReadAheadDepth depth(64, 2, 10 * kLarge);
  EXPECT_EQ(depth.value(), 64u);
  depth.Weigh(kLarge);
  EXPECT_EQ(depth.value(), 10u);
  depth.Weigh(100 * kLarge);
  EXPECT_EQ(depth.value(), 1u);
  depth.Weigh(0);
  EXPECT_EQ(depth.value(), 64u);
}

TEST(ReadAheadDepthTest, ReadsMoreOfBatchesThatAreSmall) {
  ReadAheadDepth depth(4, 2, kLarge);
  depth.Weigh(256 << 10);
  EXPECT_EQ(depth.value(), 16u);
  depth.Weigh(1);
  EXPECT_EQ(depth.value(), 32u);
}

}  // namespace
}  // namespace ffrecord
