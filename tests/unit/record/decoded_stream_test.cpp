// Goal: the threads of a stream decode columns as their decoder says, with the place of each record
// in the stream, and leave to others what they cannot decode; memory is what is held, and no more.
// Method: decoders that note what they are given, refuse a value, or wait for the test.

#include <ffrecord/batch_stream.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "eventually.h"
#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/record/read/open_records.h"
#include "memory_files.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using std::chrono::milliseconds;
using test::AsString;
using test::TestFile;

constexpr milliseconds kLong{20'000};
constexpr std::uint64_t kCount = 60;
constexpr std::uint32_t kText = 1;  // Its column.

std::string TextOf(std::uint64_t i) { return std::string(i + 1, static_cast<char>('a' + i % 26)); }

// Record i: i as an i64, and i + 1 letters.
std::vector<std::string> Rows() {
  std::vector<std::string> rows;
  for (std::uint64_t i = 0; i < kCount; ++i)
    rows.push_back(std::string(reinterpret_cast<const char*>(&i), sizeof i) + TextOf(i));
  return rows;
}

const TestFile& Numbered() {
  static const TestFile file(
      Rows(),
      {.schema =
           Schema::Make({{"number", ColumnType::kI64}, {"text", ColumnType::kUtf8}}).value()});
  return file;
}

EpochPlan PlanOf(std::uint32_t step_size) {
  return {.seed = test::Seed(), .end = kCount, .step_size = step_size};
}

BatchStream Open(const RecordReader& reader, const EpochPlan& plan, BatchStream::Options options) {
  return BatchStream::Open(reader, plan, kCount, options).value();
}

BatchStream::Item Next(BatchStream& stream) {
  auto item = stream.Next(kLong).value();
  EXPECT_TRUE(item);
  return *std::move(item);
}

// One byte per value: its last one. What it was given is in `inputs`.
class LastBytes : public ColumnDecoder {
 public:
  Result<ColumnValues> Decode(const Input& input, const GiveUp&) const override {
    auto memory = BufferPool::Process().Take(input.size()).value();
    for (std::size_t i = 0; i < input.size(); ++i) {
      if (input[i].size() == refused_size)
        return Error{ErrorCode::kCorruption, "such a value is refused"};
      (*memory)[i] = input[i].empty() ? std::byte{0} : input[i].back();
    }
    const std::span<const std::byte> data = *memory;
    return ColumnValues{
        data,
        memory,
        {static_cast<std::int64_t>(input.seed), static_cast<std::int64_t>(input.epoch),
         static_cast<std::int64_t>(input.position)}};
  }

  std::size_t refused_size = SIZE_MAX;  // None.
};

TEST(DecodedStreamTest, ColumnsAreDecodedWithTheirPlaceInTheStream) {
  const auto reader = test::OpenOne(Numbered().path()).value();
  const auto decoder = std::make_shared<LastBytes>();
  const EpochPlan plan{
      .seed = 7, .epoch = 3, .end = kCount, .step_size = 10, .world_size = 2, .rank = 1};
  auto stream = Open(
      reader, plan,
      {.gathered_columns = {0}, .decoded_columns = {{kText, decoder}, {std::nullopt, decoder}}});
  for (std::int64_t step = 0; step < 12; ++step) {
    const auto item = Next(stream);
    ASSERT_EQ(item.columns.size(), 3u);
    EXPECT_EQ(item.columns[0].data.size(), 5 * sizeof(std::int64_t));
    for (const std::size_t column : {1u, 2u}) {
      EXPECT_EQ(item.columns[column].places,
                (std::vector<std::int64_t>{7, 3 + step / 6, step % 6 * 10 + 5}));
      for (std::size_t i = 0; i < 5; ++i)
        EXPECT_EQ(item.columns[column].data[i], std::byte(TextOf(item.indices[i]).back()));
    }
    EXPECT_EQ(item.batch.value().size(), 5u);
  }
  EXPECT_GT(stream.stats().decode.count(), 0);
}

TEST(DecodedStreamTest, ABatchWithAValueThatCannotBeDecodedHasNoColumnsAndKeepsItsRecords) {
  const auto reader = test::OpenOne(Numbered().path()).value();
  const auto decoder = std::make_shared<LastBytes>();
  decoder->refused_size = TextOf(30).size();
  auto stream = Open(
      reader, PlanOf(10),
      {.gathered_columns = {0}, .decoded_columns = {{kText, decoder}}, .keeps_records = false});
  int refused = 0;
  for (int step = 0; step < 6; ++step) {
    const auto item = Next(stream);
    const bool has_it = std::ranges::find(item.indices, 30u) != item.indices.end();
    EXPECT_EQ(item.columns.empty(), has_it);
    EXPECT_EQ(item.batch.value().size(), has_it ? 10u : 0u);
    refused += has_it;
  }
  EXPECT_EQ(refused, 1);
}

TEST(DecodedStreamTest, ADamagedRecordIsNotDecoded) {
  TestFile file(Rows());
  file.FlipByteOfRecord(30);
  const auto reader = test::OpenOne(file.path()).value();
  auto stream = Open(reader, PlanOf(10),
                     {.decoded_columns = {{std::nullopt, std::make_shared<LastBytes>()}}});
  for (int step = 0; step < 6; ++step) {
    const auto item = Next(stream);
    const bool has_it = std::ranges::find(item.indices, 30u) != item.indices.end();
    EXPECT_EQ(item.columns.empty(), has_it);
  }
}

TEST(DecodedStreamTest, RecordsGoWhenTheirColumnsAreApartAndNobodyWantsThem) {
  const auto reader = test::OpenOne(Numbered().path()).value();
  const TestFile numbers(std::vector<std::string>(kCount, "12345678"),
                         {.schema = Schema::Make({{"x", ColumnType::kF64}}).value()});
  const auto in_place = test::OpenOne(numbers.path()).value();
  auto apart = Open(reader, PlanOf(10), {.gathered_columns = {0}, .keeps_records = false});
  auto kept = Open(reader, PlanOf(10), {.gathered_columns = {0}});
  auto inside = Open(in_place, PlanOf(10), {.gathered_columns = {0}, .keeps_records = false});
  auto none = Open(reader, PlanOf(10), {.keeps_records = false});
  for (int step = 0; step < 12; ++step) {
    EXPECT_EQ(Next(apart).batch.value().size(), 0u);
    EXPECT_EQ(Next(kept).batch.value().size(), 10u);
    EXPECT_EQ(Next(inside).batch.value().size(), 10u);
    EXPECT_EQ(Next(none).batch.value().size(), 10u);
  }
}

// Files in memory, for batches that are as large as their records.
TEST(DecodedStreamTest, TheMemoryThatIsHeldIsToldAndIsThatOfTheBatchesAhead) {
  constexpr std::uint64_t kBatchBytes = std::uint64_t{10} * (100 << 10);
  constexpr std::uint64_t kBatches = 5;
  const auto file =
      test::InMemory(test::FileOf(std::vector<std::string>(kCount, std::string(100 << 10, 'r'))));
  file->mapped = true;
  const RecordReader reader = OpenRecords(file, {}).value();
  // Decoded values have a byte each: what is ready must not keep its records.
  for (const bool keeps_records : {true, false}) {
    auto stream = Open(reader, PlanOf(10),
                       {.threads = 1,
                        .batches_ahead = kBatches,
                        .memory_limit_bytes = (kBatches + 1) * kBatchBytes - 1,
                        .decoded_columns = {{std::nullopt, std::make_shared<LastBytes>()}},
                        .keeps_records = keeps_records});
    const std::uint64_t full = kBatches * (10 + (keeps_records ? kBatchBytes : 0));
    for (std::uint64_t taken = 0; taken < 20; ++taken) {
      const auto end = std::chrono::steady_clock::now() + kLong;
      std::uint64_t held_bytes = 0;
      do {  // Batches that are being read or decoded have their records.
        const auto stats = stream.stats();
        held_bytes = stats.held_bytes;
        EXPECT_LE(held_bytes, kBatches * (kBatchBytes + 10));
        if (stats.batches == taken + kBatches && held_bytes == full) break;
        std::this_thread::sleep_for(milliseconds(1));
      } while (std::chrono::steady_clock::now() < end);
      ASSERT_EQ(held_bytes, full);
      Next(stream);
    }
    EXPECT_EQ(stream.depth(), kBatches);
  }
}

// Decodes for ever, unless it is given up.
class Endless : public ColumnDecoder {
 public:
  Result<ColumnValues> Decode(const Input&, const GiveUp& give_up) const override {
    has_begun = true;
    while (!give_up()) std::this_thread::sleep_for(milliseconds(1));
    return Error{ErrorCode::kDeadlineExceeded, "given up"};
  }

  mutable std::atomic<bool> has_begun = false;
};

TEST(DecodedStreamTest, EndsWhileABatchIsDecoded) {
  const auto reader = test::OpenOne(Numbered().path()).value();
  const auto decoder = std::make_shared<Endless>();
  std::optional<BatchStream> stream =
      Open(reader, PlanOf(10), {.threads = 3, .decoded_columns = {{kText, decoder}}});
  EXPECT_TRUE(test::Eventually([&] { return decoder->has_begun.load(); }));
  stream.reset();  // Would wait for ever.
}

TEST(DecodedStreamTest, RefusesColumnsThatAreNotThereAndDecodersThatAreNone) {
  const auto reader = test::OpenOne(Numbered().path()).value();
  const auto decoder = std::make_shared<LastBytes>();
  for (const BatchStream::Options::Decoded& decoded :
       {BatchStream::Options::Decoded{2, decoder}, BatchStream::Options::Decoded{kText, nullptr},
        BatchStream::Options::Decoded{std::nullopt, nullptr}}) {
    const auto stream =
        BatchStream::Open(reader, PlanOf(10), kCount, {.decoded_columns = {decoded}});
    ASSERT_FALSE(stream);
    EXPECT_EQ(stream.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace ffrecord
