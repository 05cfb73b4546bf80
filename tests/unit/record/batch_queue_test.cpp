// Goal: batches that are read at a time are those that one call each returns, and one that is
// cancelled, late, left or refused costs nobody else anything.
// Method: queues over local files, and over files in memory whose reads are held until the test
// lets them go.

#include <ffrecord/batch_queue.h>

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "child.h"
#include "child_threads.h"
#include "eventually.h"
#include "held_files.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/source/range_queue.h"
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
using Clock = BatchQueue::Clock;

constexpr milliseconds kLong{20'000};
constexpr milliseconds kNoWait{0};

std::vector<std::string> RandomRecords(std::size_t count) {
  std::mt19937_64 random(test::Seed());
  std::vector<std::string> records;
  for (std::size_t i = 0; i < count; ++i)
    records.push_back(test::RandomText(static_cast<std::size_t>(random() % 30'000), random));
  return records;
}

std::vector<std::string> Texts(const Batch& batch) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < batch.size(); ++i) texts.push_back(AsString(batch.record(i)));
  return texts;
}

struct Held {
  Held() : records(RandomRecords(60)) {
    files = std::make_shared<HeldFiles>(std::vector<std::string>{FileOf(records)});
    files->is_open = true;
    reader.emplace(OpenRecords(files, {}).value());
    files->is_open = false;
    files->begun = 0;
  }
  BatchQueue Open(const BatchQueue::Options& options = {}) const {
    return reader->OpenQueue(options).value();
  }
  void WaitUntilBegun(std::uint64_t count) const {
    EXPECT_TRUE(test::Eventually([&] { return files->begun >= count; }));
  }

  std::vector<std::string> records;
  std::shared_ptr<HeldFiles> files;
  std::optional<RecordReader> reader;
};

BatchQueue::Completion Next(BatchQueue& queue) {
  auto next = queue.Poll(kLong).value();
  EXPECT_TRUE(next) << "nothing became complete";
  return *std::move(next);
}

class BatchQueueOfFilesTest : public testing::TestWithParam<IoPolicy> {};

TEST_P(BatchQueueOfFilesTest, ReturnsEachBatchOnceAsReadBatchDoes) {
  const auto records = RandomRecords(300);
  RecordWriter::Options zstd;
  zstd.compress = true;
  for (const TestFileOptions& form :
       {TestFileOptions{.version = 1}, TestFileOptions{}, TestFileOptions{.writer = zstd}}) {
    const TestFile file(records, form);
    RecordReader::Options options;
    options.io = GetParam();
    const auto reader = test::OpenOne(file.path(), options).value();
    auto queue = reader.OpenQueue({.batches_in_flight = 3, .one_thread = true}).value();
    std::mt19937_64 random(test::Seed());
    std::map<std::uint64_t, std::vector<std::uint64_t>> asked;
    for (std::uint64_t token = 0; token < 20; ++token) {
      for (std::uint64_t i = 0; i < token * 3; ++i)
        asked[token].push_back(random() % records.size());
      ASSERT_TRUE(queue.Submit(asked[token], token));
    }
    EXPECT_EQ(queue.size(), 20U);
    for (int i = 0; i < 20; ++i) {
      const auto next = Next(queue);
      ASSERT_TRUE(next.batch) << next.batch.error().message;
      const auto& indices = asked.at(next.token);
      EXPECT_EQ(Texts(next.batch.value()), Texts(reader.ReadBatch(indices).value()));
      for (std::size_t k = 0; k < indices.size(); ++k)
        EXPECT_EQ(AsString(next.batch.value().record(k)), records[indices[k]]);
      asked.erase(next.token);
    }
    EXPECT_EQ(queue.size(), 0U);
    EXPECT_FALSE(queue.Poll(kLong).value());
  }
}

TEST_P(BatchQueueOfFilesTest, AnEventLoopNeedsNoTimer) {
  const auto records = RandomRecords(300);
  const TestFile file(records);
  RecordReader::Options options;
  options.io = GetParam();
  const auto reader = test::OpenOne(file.path(), options).value();
  auto queue = reader.OpenQueue({.batches_in_flight = 2}).value();
  const int descriptor = queue.EventDescriptor().value();
  std::size_t complete = 0;
  const auto take_all = [&] {
    while (auto next = queue.Poll(kNoWait).value()) {
      EXPECT_TRUE(next->batch);
      ++complete;
    }
  };
  for (std::uint64_t token = 0; token < 30; ++token) {
    ASSERT_TRUE(queue.Submit(test::UpTo(300), token));
    take_all();
  }
  while (complete < 30) {
    pollfd ready{descriptor, POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, static_cast<int>(kLong.count())), 1);
    take_all();
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, BatchQueueOfFilesTest,
                         testing::Values(IoPolicy::kAuto, IoPolicy::kBuffered, IoPolicy::kDirect),
                         [](const auto& form) {
                           return form.param == IoPolicy::kAuto       ? "auto"
                                  : form.param == IoPolicy::kBuffered ? "buffered"
                                                                      : "direct";
                         });

TEST(BatchQueueTest, BeginsSoManyBatchesAndNoMore) {
  Held held;
  auto queue = held.Open({.batches_in_flight = 2});
  for (std::uint64_t token = 0; token < 6; ++token) ASSERT_TRUE(queue.Submit({{token}}, token));
  held.WaitUntilBegun(2);
  EXPECT_FALSE(queue.Poll(milliseconds(30)).value());
  EXPECT_EQ(held.files->begun, 2U);
  held.files->is_open = true;
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(Next(queue).batch);
  EXPECT_EQ(held.files->begun, 6U);
}

TEST(BatchQueueTest, BatchesThatNobodyTakesStopTheOthers) {
  Held held;
  held.files->mapped = true;  // Complete in Submit().
  auto queue = held.Open({.batches_in_flight = 2});
  for (std::uint64_t token = 0; token < 6; ++token) ASSERT_TRUE(queue.Submit({{token}}, token));
  EXPECT_EQ(held.reader->io_report().batches_from_memory, 2U);
  for (std::uint64_t token = 0; token < 6; ++token) EXPECT_EQ(Next(queue).token, token);
  EXPECT_EQ(held.reader->io_report().batches_from_memory, 6U);
}

TEST(BatchQueueTest, TheDescriptorTellsOfABatchThatSubmitHasRead) {
  Held held;
  held.files->mapped = true;
  auto queue = held.Open();
  pollfd ready{queue.EventDescriptor().value(), POLLIN, 0};
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
  ASSERT_TRUE(queue.Submit({{std::uint64_t{0}}}, 0));
  EXPECT_EQ(::poll(&ready, 1, 0), 1);
  Next(queue);
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
}

TEST(BatchQueueTest, InOrderTheFirstBatchComesFirst) {
  for (const bool in_order : {false, true}) {
    Held held;
    auto queue = held.Open({.in_order = in_order});
    ASSERT_TRUE(queue.Submit({{std::uint64_t{1}}}, 1));
    held.WaitUntilBegun(1);
    held.files->mapped = true;  // The others are in memory.
    ASSERT_TRUE(queue.Submit({{std::uint64_t{2}}}, 2));
    ASSERT_TRUE(queue.Submit({{std::uint64_t{3}}}, 3));
    std::vector<std::uint64_t> tokens;
    while (auto next = queue.Poll(milliseconds(20)).value()) tokens.push_back(next->token);
    EXPECT_EQ(tokens.size(), in_order ? 0U : 2U);
    held.files->is_open = true;
    while (auto next = queue.Poll(kLong).value()) tokens.push_back(next->token);
    EXPECT_EQ(tokens, in_order ? (std::vector<std::uint64_t>{1, 2, 3})
                               : (std::vector<std::uint64_t>{2, 3, 1}));
  }
}

// One that waits has no memory when its time is over, and takes nobody's place.
TEST(BatchQueueTest, InOrderABatchWhoseTimeIsOverStopsNoneBeforeIt) {
  Held held;
  auto queue = held.Open({.batches_in_flight = 1, .in_order = true});
  const auto over = Clock::now() - milliseconds(1);
  ASSERT_TRUE(queue.Submit({{std::uint64_t{0}}}, 0));
  ASSERT_TRUE(queue.Submit({{std::uint64_t{1}}}, 1));
  ASSERT_TRUE(queue.Submit({{std::uint64_t{2}}}, 2, over));
  ASSERT_TRUE(queue.Submit({{std::uint64_t{3}}}, 3));
  EXPECT_FALSE(queue.Poll(kNoWait).value());
  held.files->is_open = true;
  for (std::uint64_t token = 0; token < 4; ++token) {
    const auto next = Next(queue);
    EXPECT_EQ(next.token, token);
    EXPECT_EQ(bool(next.batch), token != 2);
  }
}

TEST(BatchQueueTest, InOrderNobodyIsWokenBeforeTheFirstBatchIsComplete) {
  Held held;
  auto queue = held.Open({.in_order = true});
  pollfd ready{queue.EventDescriptor().value(), POLLIN, 0};
  ASSERT_TRUE(queue.Submit({{std::uint64_t{1}}}, 1));
  held.WaitUntilBegun(1);
  held.files->mapped = true;  // The other is in memory.
  ASSERT_TRUE(queue.Submit({{std::uint64_t{2}}}, 2));
  EXPECT_FALSE(queue.Poll(kNoWait).value());
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
  held.files->is_open = true;
  EXPECT_EQ(::poll(&ready, 1, static_cast<int>(kLong.count())), 1);
  EXPECT_EQ(Next(queue).token, 1U);
  EXPECT_EQ(::poll(&ready, 1, 0), 1);
  EXPECT_EQ(Next(queue).token, 2U);
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
}

TEST(BatchQueueTest, ACancelledBatchIsNotReturnedAndMakesRoom) {
  Held held;
  auto queue = held.Open({.batches_in_flight = 1});
  for (std::uint64_t token = 0; token < 4; ++token) ASSERT_TRUE(queue.Submit({{token}}, token));
  held.WaitUntilBegun(1);
  EXPECT_TRUE(queue.Cancel(0));   // Under way.
  EXPECT_TRUE(queue.Cancel(2));   // Not begun.
  EXPECT_FALSE(queue.Cancel(0));  // No more.
  EXPECT_FALSE(queue.Cancel(77));
  EXPECT_EQ(queue.size(), 2U);
  while (held.files->begun < 2) EXPECT_FALSE(queue.Poll(milliseconds(1)).value());
  held.files->is_open = true;
  EXPECT_EQ(Next(queue).token, 1U);
  EXPECT_EQ(Next(queue).token, 3U);
  EXPECT_EQ(held.files->begun, 3U);
  EXPECT_FALSE(queue.Poll(kLong).value());
}

// Ends nothing before it is let go, and counts what is asked of it.
class StubbornFiles final : public test::MemoryFiles {
 public:
  using MemoryFiles::MemoryFiles;
  Result<std::unique_ptr<RangeQueue>> MakeQueue(QueueUse /*use*/) const override {
    return std::unique_ptr<RangeQueue>(std::make_unique<Queue>(*this));
  }
  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    ++reads;
    return MemoryFiles::ReadEach(ranges, arrived, patience);
  }

  mutable int reads = 0;  // Beside the queue.
  mutable int submits = 0;
  mutable int give_ups = 0;
  mutable int polls = 0;
  mutable bool needs_poll = false;  // Poll() was not called since something was given up.
  mutable milliseconds longest_wait{0};
  milliseconds sleep_min{0};  // In Poll().
  bool fails = false;         // Ranges arrive, with kIo.
  bool is_let_go = false;

 private:
  class Queue final : public RangeQueue {
   public:
    explicit Queue(const StubbornFiles& files) : files_(files) {}
    void Submit(RangeGroup& group) override {
      ++files_.submits;
      groups_.push_back(&group);
    }
    void GiveUp(RangeGroup&) override {
      ++files_.give_ups;
      files_.needs_poll = true;
    }
    void Poll(milliseconds timeout) override {
      files_.needs_poll = false;
      files_.longest_wait = std::max(files_.longest_wait, timeout);
      // Who spins would do so for ever.
      const bool is_over = files_.is_let_go || ++files_.polls > 1000;
      if (!is_over)
        std::this_thread::sleep_for(
            std::max(files_.sleep_min, std::min(timeout, milliseconds(20))));
      for (RangeGroup* const group : groups_)
        for (RangeRead& range : group->ranges()) {
          if (!files_.fails || range.status == ErrorCode::kIo) continue;
          range.status = ErrorCode::kIo;
          group->Arrived(range);
        }
      if (!is_over) return;
      for (RangeGroup* const group : std::exchange(groups_, {})) group->Ended({});
    }
    Result<int> EventDescriptor() override { return Error{ErrorCode::kIo, "it has none"}; }

   private:
    const StubbornFiles& files_;
    std::vector<RangeGroup*> groups_;
  };
};

struct Stubborn {
  std::shared_ptr<StubbornFiles> files =
      std::make_shared<StubbornFiles>(std::vector<std::string>{FileOf(RandomRecords(60))});
  RecordReader reader = OpenRecords(files, {}).value();
  BatchQueue queue = reader.OpenQueue().value();
};

TEST(BatchQueueTest, ABatchWhoseTimeIsOverBeforeItBeginsIsNotRead) {
  Stubborn its;
  ASSERT_TRUE(its.queue.Submit({{std::uint64_t{0}}}, 0, Clock::now() - milliseconds(1)));
  EXPECT_EQ(Next(its.queue).batch.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(its.files->submits, 0);
}

// A daemon or a device may take its time to end what was given up.
TEST(BatchQueueTest, WhatIsGivenUpOnceIsLeftAloneUntilItEnds) {
  Stubborn its;
  ASSERT_TRUE(its.queue.Submit({{std::uint64_t{0}}}, 0));
  ASSERT_TRUE(its.queue.Submit({{std::uint64_t{1}}}, 1, Clock::now() + milliseconds(30)));
  ASSERT_TRUE(its.queue.Submit({{std::uint64_t{2}}}, 2));
  EXPECT_TRUE(its.queue.Cancel(0));
  EXPECT_FALSE(its.queue.Poll(kNoWait).value());
  EXPECT_EQ(its.files->give_ups, 1);
  EXPECT_FALSE(its.queue.Poll(milliseconds(100)).value());
  EXPECT_EQ(its.files->give_ups, 2);
  EXPECT_LT(its.files->polls, 30) << "it does not rest";
  its.files->is_let_go = true;
  EXPECT_NE(Next(its.queue).token, 0U);
  EXPECT_NE(Next(its.queue).token, 0U);
  EXPECT_EQ(its.queue.held_bytes(), 0U);
}

// A descriptor need not tell of what was given up before the range queue was polled once more.
TEST(BatchQueueTest, WhatIsGivenUpInTheLastMomentOfAPollIsPolledFor) {
  Stubborn its;
  ASSERT_TRUE(its.queue.Submit({{std::uint64_t{0}}}, 0, Clock::now() + milliseconds(20)));
  its.files->sleep_min = milliseconds(60);
  EXPECT_FALSE(its.queue.Poll(milliseconds(30)).value());
  EXPECT_EQ(its.files->give_ups, 1);
  EXPECT_FALSE(its.files->needs_poll);
}

TEST(BatchQueueTest, NobodyWaitsForACancelledBatchThatDoesNotEnd) {
  Stubborn its;
  ASSERT_TRUE(its.queue.Submit({{std::uint64_t{0}}}, 0));
  EXPECT_TRUE(its.queue.Cancel(0));
  EXPECT_FALSE(its.queue.Poll(kLong).value());
  EXPECT_EQ(its.files->longest_wait, kNoWait);
}

TEST(BatchQueueTest, InOrderACancelledBatchThatDoesNotEndStopsNoOther) {
  Held held;
  auto queue = held.Open({.in_order = true});
  ASSERT_TRUE(queue.Submit({{std::uint64_t{0}}}, 0));
  held.WaitUntilBegun(1);
  held.files->mapped = true;  // The other is in memory.
  ASSERT_TRUE(queue.Submit({{std::uint64_t{1}}}, 1));
  EXPECT_TRUE(queue.Cancel(0));
  const auto next = queue.Poll(kNoWait).value();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->token, 1U);
}

TEST(BatchQueueTest, ACancelledBatchIsNotReadAgainWhereItHasFailed) {
  Stubborn its;
  its.files->reads = 0;
  its.files->fails = true;
  ASSERT_TRUE(its.queue.Submit({{std::uint64_t{0}}}, 0));
  EXPECT_FALSE(its.queue.Poll(kNoWait).value());
  EXPECT_TRUE(its.queue.Cancel(0));
  its.files->is_let_go = true;
  EXPECT_FALSE(its.queue.Poll(kNoWait).value());
  EXPECT_EQ(its.queue.held_bytes(), 0U);
  EXPECT_EQ(its.files->reads, 0) << "nobody wants it";
}

TEST(BatchQueueTest, NobodyWaitsForBatchesThatWereCancelled) {
  Held held;
  auto queue = held.Open();
  ASSERT_TRUE(queue.Submit({{std::uint64_t{0}}}, 0));
  EXPECT_TRUE(queue.Cancel(0));
  EXPECT_FALSE(queue.Poll(std::chrono::hours(1)).value());
}

TEST(BatchQueueTest, ABatchWhoseTimeIsOverSaysSoAndOthersGoOn) {
  Held held;
  auto queue = held.Open({.batches_in_flight = 2});
  ASSERT_TRUE(queue.Submit({{std::uint64_t{0}}}, 0, Clock::now() + milliseconds(100)));
  ASSERT_TRUE(queue.Submit({{std::uint64_t{1}}}, 1));
  ASSERT_TRUE(queue.Submit({{std::uint64_t{2}}}, 2, Clock::now() + milliseconds(100)));  // Waits.
  for (int i = 0; i < 2; ++i) {
    const auto late = Next(queue);
    EXPECT_NE(late.token, 1U);
    ASSERT_FALSE(late.batch);
    EXPECT_EQ(late.batch.error().code, ErrorCode::kDeadlineExceeded);
  }
  held.files->is_open = true;
  EXPECT_TRUE(Next(queue).batch);
}

TEST(BatchQueueTest, ARecordThatCannotBeReadSpoilsItsOwnStatus) {
  Held held;
  held.files->is_open = true;
  held.files->fault = [](const RangeRead& range) {
    return range.offset_bytes > 0 && range.destination.size() > 100 ? ErrorCode::kIo
                                                                    : ErrorCode::kOk;
  };
  auto queue = held.Open();
  const auto large =
      std::ranges::find_if(held.records, [](const auto& r) { return r.size() > 200; });
  const auto index = static_cast<std::uint64_t>(large - held.records.begin());
  ASSERT_TRUE(queue.Submit({{index}}, 3));
  const auto next = Next(queue);
  ASSERT_TRUE(next.batch);
  EXPECT_EQ(next.batch.value().statuses()[0], ErrorCode::kIo);
}

// Whichever piece of a large record fails, and however late the others arrive. Without checksums
// nobody else would see it.
TEST(BatchQueueTest, ARecordOfWhichOnePieceCannotBeReadIsNotWhole) {
  std::mt19937_64 random(test::Seed());
  const std::vector<std::string> records{test::RandomText(5 << 19, random)};
  const auto files = std::make_shared<test::MemoryFiles>(std::vector<std::string>{FileOf(records)});
  const auto reader = OpenRecords(files, {.verify_checksums = false}).value();
  for (int failing = 0; failing < 3; ++failing) {
    int piece = 0;
    files->fault = [&](const RangeRead& range) {
      if (range.destination.size() < 100'000) return ErrorCode::kOk;
      // Read again alone, it is one range.
      return range.destination.size() > (1 << 20) || piece++ == failing ? ErrorCode::kIo
                                                                        : ErrorCode::kOk;
    };
    auto queue = reader.OpenQueue().value();
    ASSERT_TRUE(queue.Submit({{std::uint64_t{0}}}, 0));
    const auto next = Next(queue);
    EXPECT_EQ(piece, 3);
    ASSERT_TRUE(next.batch);
    EXPECT_EQ(next.batch.value().statuses()[0], ErrorCode::kIo);
  }
}

TEST(BatchQueueTest, WhatIsWrongIsRefusedAtOnce) {
  Held held;
  for (const std::uint32_t count : {0U, 65U}) {
    const auto queue = held.reader->OpenQueue({.batches_in_flight = count});
    ASSERT_FALSE(queue);
    EXPECT_EQ(queue.error().code, ErrorCode::kInvalidArgument);
  }
  auto queue = held.Open();
  const auto refused = queue.Submit({{std::uint64_t{60}}}, 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfRange);
  EXPECT_EQ(queue.size(), 0U);
  EXPECT_FALSE(queue.Poll(kLong).value());
}

TEST(BatchQueueTest, AQueueThatIsLeftGivesItsBatchesUp) {
  Held held;
  {
    auto queue = held.Open();
    for (std::uint64_t token = 0; token < 10; ++token) ASSERT_TRUE(queue.Submit({{token}}, token));
    held.WaitUntilBegun(4);
  }
  EXPECT_EQ(held.files->begun, 4U);
  EXPECT_EQ(held.files.use_count(), 2);  // The reader's and ours.
}

TEST(BatchQueueTest, AChildIsToldToOpenAnother) {
  Held held;
  auto queue = std::make_optional(held.Open());
  ASSERT_TRUE(queue->Submit({{std::uint64_t{0}}}, 0));
  EXPECT_EQ(test::RunInChild([&] {
              const auto submitted = queue->Submit({{std::uint64_t{0}}}, 1);
              const auto polled = queue->Poll(kLong);
              if (submitted || polled || queue->Cancel(0)) return 1;
              if (submitted.error().code != ErrorCode::kInvalidArgument) return 2;
              queue.reset();
              if (!test::kChildMayHaveThreads) return 0;
              held.files->is_open = true;
              auto own = held.Open();
              if (!own.Submit({{std::uint64_t{5}}}, 5)) return 3;
              const auto next = own.Poll(kLong);
              return next && next.value() && next.value()->batch ? 0 : 4;
            }),
            0);
  held.files->is_open = true;
  EXPECT_TRUE(Next(*queue).batch);
}

}  // namespace
}  // namespace ffrecord
