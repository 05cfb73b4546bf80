// Goal: a queue never waits for a part of an index that has to be read: it reads the part as it
// reads records, once for all batches that need it, and cancelled and late batches and parts that
// cannot be read cost nobody else anything. A call that waits reads all parts that it needs at
// once. Method: files in memory whose indexes are read, not mapped, with reads that are held until
// the test lets them go, and that know whether the queue's own thread makes them; compared with
// what one call for each batch returns.

#include <ffrecord/batch_queue.h>

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "child.h"
#include "child_threads.h"
#include "eventually.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/record/index/file_index.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/source/block_cache.h"
#include "libffrecord/source/cached_files.h"
#include "memory_files.h"
#include "seed.h"
#include "temp_folder.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using std::chrono::milliseconds;
using test::AsString;
using test::FileOf;
using test::TestFileOptions;
using Clock = BatchQueue::Clock;

constexpr milliseconds kLong{20'000};
constexpr milliseconds kNoWait{0};
constexpr std::uint64_t kPerSegment = 170;
constexpr std::size_t kCount = 4 * kPerSegment - 10;

std::vector<std::string> RandomRecords(std::size_t count, std::uint64_t seed = test::Seed()) {
  std::mt19937_64 random(seed);
  std::vector<std::string> records;
  for (std::size_t i = 0; i < count; ++i)
    records.push_back(test::RandomText(static_cast<std::size_t>(random() % 200), random));
  return records;
}

// Files whose indexes are read, as those of a daemon.
class ReadFiles final : public test::MemoryFiles {
 public:
  using MemoryFiles::MemoryFiles;

  bool reads_indexes() const noexcept override { return true; }

  Result<void> ReadEach(std::span<RangeRead> ranges, const Arrived& arrived,
                        Patience& patience) const override {
    if (std::this_thread::get_id() == owner) {
      ++owner_calls;
    } else {
      ++begun;
      while (!is_open) {
        if (patience.IsOver()) {
          ++given_up;
          return GivenUp();
        }
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
    {
      const std::lock_guard lock(mutex_);
      for (const RangeRead& range : ranges) offsets_.push_back(range.offset_bytes);
    }
    return MemoryFiles::ReadEach(ranges, arrived, patience);
  }

  // How often a range that begins there was read.
  std::ptrdiff_t CountAt(std::uint64_t offset_bytes) const {
    const std::lock_guard lock(mutex_);
    return std::ranges::count(offsets_, offset_bytes);
  }

  void Forget() {
    const std::lock_guard lock(mutex_);
    offsets_.clear();
  }

  std::thread::id owner;  // Of the queue.
  std::atomic<bool> is_open = false;
  mutable std::atomic<std::uint64_t> owner_calls = 0;
  mutable std::atomic<std::uint64_t> begun = 0;
  mutable std::atomic<std::uint64_t> given_up = 0;

 protected:
  Result<IndexBytes> MapInside(std::uint32_t file, std::uint64_t offset_bytes,
                               std::uint64_t size_bytes) const override {
    return RangeReader::MapInside(file, offset_bytes, size_bytes);
  }

 private:
  mutable std::mutex mutex_;
  mutable std::vector<std::uint64_t> offsets_;
};

BatchQueue::Completion Next(BatchQueue& queue) {
  auto next = queue.Poll(kLong).value();
  EXPECT_TRUE(next) << "nothing became complete";
  return *std::move(next);
}

class BatchQueueIndexTest : public testing::Test {
 protected:
  void Make(const std::vector<std::vector<std::string>>& files,
            const TestFileOptions& options = {.pages_per_segment = 1}) {
    std::vector<std::string> contents;
    for (const auto& records : files) {
      contents.push_back(FileOf(records, options));
      records_.insert(records_.end(), records.begin(), records.end());
    }
    plain_.emplace(OpenRecords(std::make_shared<test::MemoryFiles>(contents), {}).value());
    files_ = std::make_shared<ReadFiles>(contents);
    files_->owner = std::this_thread::get_id();
    const auto indexes = OpenIndexes(*files_, {}).value();
    if (const V2Layout* const layout = indexes[0]->v2_layout())
      for (std::size_t at = 0; at < layout->directory.bytes.size(); at += 8)
        segments_.push_back(LoadLittleEndian<std::uint64_t>(layout->directory.bytes, at));
    Open(files_);
  }
  void Open(std::shared_ptr<const RangeReader> files) {
    files_->owner = std::this_thread::get_id();  // Its reads are not held.
    reader_.emplace(OpenRecords(std::move(files), {}).value());
    files_->owner_calls = files_->begun = 0;
    files_->Forget();  // The end of the file may begin with a part of the index.
  }
  void Submit(BatchQueue& queue, std::vector<std::uint64_t> indices, std::uint64_t token,
              Clock::time_point deadline = BatchQueue::kNoDeadline) {
    ASSERT_TRUE(queue.Submit(indices, token, deadline));
  }
  void WaitUntilBegun(std::uint64_t count) const {
    EXPECT_TRUE(test::Eventually([&] { return files_->begun >= count; }));
  }
  // Takes the next batch, which is to be what one call returns.
  std::uint64_t ExpectNext(BatchQueue& queue, const std::vector<std::uint64_t>& indices) {
    const auto next = Next(queue);
    EXPECT_TRUE(next.batch) << next.batch.error().message;
    if (next.batch) ExpectSame(next.batch.value(), indices);
    return next.token;
  }
  void ExpectSame(const Batch& batch, const std::vector<std::uint64_t>& indices) {
    const auto expected = plain_->ReadBatch(indices).value();
    ASSERT_EQ(batch.size(), expected.size());
    for (std::size_t i = 0; i < batch.size(); ++i) {
      EXPECT_EQ(batch.statuses()[i], expected.statuses()[i]) << "record " << indices[i];
      EXPECT_EQ(AsString(batch.record(i)), AsString(expected.record(i))) << "record " << indices[i];
    }
  }
  std::uint64_t owner_calls() const { return files_->owner_calls; }

  std::vector<std::string> records_;
  std::optional<RecordReader> plain_;  // Of the same bytes, with a mapped index.
  std::shared_ptr<ReadFiles> files_;
  std::vector<std::uint64_t> segments_;  // Where each of the first file begins.
  std::optional<RecordReader> reader_;
};

TEST_F(BatchQueueIndexTest, SubmitAndPollDoNotWaitForAnIndex) {
  Make({RandomRecords(kCount)});
  auto queue = reader_->OpenQueue().value();
  const std::vector<std::uint64_t> indices{400, 3, 400, 180};

  Submit(queue, indices, 7);
  EXPECT_FALSE(queue.Poll(kNoWait).value());
  WaitUntilBegun(3);  // One for each segment.
  EXPECT_FALSE(queue.Poll(milliseconds(5)).value());

  files_->is_open = true;
  EXPECT_EQ(ExpectNext(queue, indices), 7U);
  EXPECT_EQ(owner_calls(), 0U);
  EXPECT_EQ(files_->CountAt(segments_[3]), 0) << "nobody needs it";
  EXPECT_EQ(reader_->io_report().batches_read, 1U);
}

// --- Calls that wait ----------------------------------------------------------------------------

TEST_F(BatchQueueIndexTest, ACallReadsWhatItNeedsOfAllIndexesAtOnce) {
  std::vector<std::vector<std::string>> files(12);
  for (std::size_t i = 0; i < files.size(); ++i) files[i] = RandomRecords(200, test::Seed() + i);
  Make(files);
  std::vector<std::uint64_t> indices;  // Two of each file, in both of its segments.
  for (std::uint64_t file = 12; file-- > 0;)
    indices.insert(indices.end(), {200 * file + 180, 200 * file + 3});

  ExpectSame(reader_->ReadBatch(indices).value(), indices);
  EXPECT_EQ(owner_calls(), 2U);  // The indexes, then the records.
  ExpectSame(reader_->ReadBatch(indices).value(), indices);
  EXPECT_EQ(owner_calls(), 3U);
}

// Each file would wait for its time otherwise, 15 s each for daemons that are all gone.
TEST_F(BatchQueueIndexTest, ACallWaitsOnceForFilesThatAreAllGone) {
  Make({RandomRecords(200), RandomRecords(200), RandomRecords(200)});
  files_->fault = [](const RangeRead&) { return ErrorCode::kDeadlineExceeded; };
  const std::vector<std::uint64_t> indices{450, 3, 250, 180};
  files_->ResetCounts();

  const auto batch = reader_->ReadBatch(indices).value();
  for (const ErrorCode status : batch.statuses()) EXPECT_EQ(status, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(files_->range_count(), 4U);  // Each part once.

  files_->fault = [](const RangeRead&) { return ErrorCode::kOk; };
  ExpectSame(reader_->ReadBatch(indices).value(), indices);
}

// A bad block of one file: its records alone are damaged.
TEST_F(BatchQueueIndexTest, ACallReadsAnIndexThatIsDamagedAgainForItsRecordsOnly) {
  Make({RandomRecords(200), RandomRecords(200)});
  files_->fault = [](const RangeRead& range) {
    return range.file == 1 ? ErrorCode::kIo : ErrorCode::kOk;
  };
  const auto batch = reader_->ReadBatch(std::vector<std::uint64_t>{3, 250, 180}).value();
  EXPECT_EQ(batch.statuses()[0], ErrorCode::kOk);
  EXPECT_EQ(batch.statuses()[1], ErrorCode::kIo);
  EXPECT_EQ(batch.statuses()[2], ErrorCode::kOk);
}

// --- Queues --------------------------------------------------------------------------------------

TEST_F(BatchQueueIndexTest, APartIsReadOnceForAllBatchesThatNeedIt) {
  Make({RandomRecords(kCount)});
  auto queue = reader_->OpenQueue({.batches_in_flight = 8, .in_order = true}).value();
  std::vector<std::vector<std::uint64_t>> batches{{0}, {171, 1}, {1, 2, 400}, {600, 0, 171}, {2}};
  for (std::uint64_t token = 0; token < batches.size(); ++token)
    Submit(queue, batches[token], token);
  WaitUntilBegun(4);

  files_->is_open = true;
  for (std::uint64_t token = 0; token < batches.size(); ++token)
    EXPECT_EQ(ExpectNext(queue, batches[token]), token);

  for (const std::uint64_t segment : segments_) EXPECT_EQ(files_->CountAt(segment), 1);
  Submit(queue, test::UpTo(kCount), 9);
  ExpectNext(queue, test::UpTo(kCount));
  for (const std::uint64_t segment : segments_) EXPECT_EQ(files_->CountAt(segment), 1);
  EXPECT_EQ(owner_calls(), 0U);
}

TEST_F(BatchQueueIndexTest, ABatchThatIsLateThereLeavesThePartToTheOthers) {
  Make({RandomRecords(kCount)});
  auto queue = reader_->OpenQueue().value();
  Submit(queue, {0}, 1, Clock::now() + milliseconds(50));
  Submit(queue, {1}, 2);

  const auto late = Next(queue);
  EXPECT_EQ(late.token, 1U);
  ASSERT_FALSE(late.batch);
  EXPECT_EQ(late.batch.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(files_->given_up, 0U);

  files_->is_open = true;
  EXPECT_EQ(ExpectNext(queue, {1}), 2U);
  EXPECT_EQ(files_->CountAt(segments_[0]), 1);
}

TEST_F(BatchQueueIndexTest, APartThatNobodyNeedsAnyMoreIsGivenUpAndCanBeReadAgain) {
  Make({RandomRecords(kCount)});
  auto queue = reader_->OpenQueue().value();
  for (const bool is_late : {false, true}) {
    const auto given_up = files_->given_up.load();
    files_->begun = 0;
    const auto deadline = is_late ? Clock::now() + milliseconds(30) : BatchQueue::kNoDeadline;
    Submit(queue, {0}, 1, deadline);
    Submit(queue, {5}, 2, deadline);
    WaitUntilBegun(1);
    if (is_late) {
      for (int i = 0; i < 2; ++i) EXPECT_FALSE(Next(queue).batch);
    } else {
      EXPECT_TRUE(queue.Cancel(1));
      EXPECT_TRUE(queue.Cancel(2));
    }
    EXPECT_EQ(queue.size(), 0U);
    EXPECT_TRUE(test::Eventually([&] { return files_->given_up != given_up; }));
  }

  files_->is_open = true;
  Submit(queue, {0}, 3);
  EXPECT_EQ(ExpectNext(queue, {0}), 3U);
  EXPECT_EQ(owner_calls(), 0U);
  EXPECT_FALSE(queue.Poll(kLong).value());
}

// A batch that comes after a part was given up must not wait for a read that does not come.
TEST_F(BatchQueueIndexTest, APartThatWasGivenUpIsNotWaitedFor) {
  Make({RandomRecords(kCount)});
  auto queue = reader_->OpenQueue().value();
  Submit(queue, {0}, 1);
  WaitUntilBegun(1);
  EXPECT_TRUE(queue.Cancel(1));
  Submit(queue, {0}, 2);
  files_->is_open = true;
  EXPECT_EQ(ExpectNext(queue, {0}), 2U);
}

// Else an event loop would be woken for ever.
TEST_F(BatchQueueIndexTest, ItsDescriptorRestsWhenAPartThatWasGivenUpHasEnded) {
  Make({RandomRecords(kCount)});
  auto queue = reader_->OpenQueue().value();
  pollfd ready{queue.EventDescriptor().value(), POLLIN, 0};
  Submit(queue, {0}, 1);
  WaitUntilBegun(1);
  EXPECT_TRUE(queue.Cancel(1));
  EXPECT_TRUE(test::Eventually([&] { return files_->given_up != 0; }));
  const auto end = Clock::now() + kLong / 4;
  do {
    EXPECT_FALSE(queue.Poll(kNoWait).value());
    ASSERT_LT(Clock::now(), end) << "it does not rest";
  } while (::poll(&ready, 1, 150) != 0);
}

TEST_F(BatchQueueIndexTest, AnEventLoopNeedsNoTimer) {
  Make({RandomRecords(kCount), RandomRecords(kCount, 5)});
  files_->is_open = true;
  for (const std::uint32_t in_flight : {1U, 3U}) {
    Open(files_);
    auto queue = reader_->OpenQueue({.batches_in_flight = in_flight}).value();
    const int descriptor = queue.EventDescriptor().value();
    std::size_t complete = 0;
    const auto take_all = [&] {
      while (const auto next = queue.Poll(kNoWait).value()) {
        EXPECT_TRUE(next->batch);
        ++complete;
      }
    };
    for (std::uint64_t token = 0; token < 12; ++token) {
      Submit(queue, {token * 100, token * 37 + 2}, token);
      take_all();
      if (token % 4 == 3 && queue.Cancel(token)) ++complete;
    }
    while (complete < 12) {
      pollfd ready{descriptor, POLLIN, 0};
      ASSERT_EQ(::poll(&ready, 1, static_cast<int>(kLong.count())), 1) << "nobody said so";
      take_all();
    }
    EXPECT_EQ(owner_calls(), 0U);
  }
}

TEST_F(BatchQueueIndexTest, RandomBatchesOfManyFilesAreThoseOfOneCallEach) {
  std::mt19937_64 random(test::Seed());
  Make({RandomRecords(kCount, random()),
        {},
        RandomRecords(7, random()),
        RandomRecords(kCount, random())});
  files_->is_open = true;
  for (int round = 0; round < 10; ++round) {
    Open(files_);
    auto queue = reader_->OpenQueue({.batches_in_flight = 5, .in_order = true}).value();
    std::vector<std::vector<std::uint64_t>> batches(20);
    for (std::uint64_t token = 0; token < batches.size(); ++token) {
      for (std::uint64_t i = 0; i < random() % 8; ++i)
        batches[token].push_back(random() % records_.size());
      Submit(queue, batches[token], token);
    }
    for (const auto& indices : batches) ExpectNext(queue, indices);
    EXPECT_EQ(owner_calls(), 0U);
  }
}

TEST_F(BatchQueueIndexTest, AStoreThatIsGoneCostsTheRecordsOfItsPartAndNoWait) {
  Make({RandomRecords(kCount)});
  files_->is_open = true;
  for (const ErrorCode code : {ErrorCode::kUnavailable, ErrorCode::kDeadlineExceeded}) {
    Open(files_);
    files_->fault = [this, code](const RangeRead& range) {
      return range.offset_bytes == segments_[1] ? code : ErrorCode::kOk;
    };
    auto queue = reader_->OpenQueue().value();
    Submit(queue, {0, 171, 400, 172}, 1);
    const auto next = Next(queue);
    ASSERT_TRUE(next.batch) << next.batch.error().message;
    const auto statuses = next.batch.value().statuses();
    EXPECT_EQ(std::vector(statuses.begin(), statuses.end()),
              (std::vector{ErrorCode::kOk, code, ErrorCode::kOk, code}));
    EXPECT_EQ(AsString(next.batch.value().record(2)), records_[400]);
    EXPECT_EQ(owner_calls(), 0U) << "somebody has waited for it once more";

    files_->fault = [](const RangeRead&) { return ErrorCode::kOk; };
    Submit(queue, {171}, 2);
    ExpectNext(queue, {171});
    EXPECT_EQ(owner_calls(), 0U);
  }
}

// A device's error may be one block's, and is looked at again as that of a record is.
TEST_F(BatchQueueIndexTest, ADeviceThatFailsOnceCostsNoRecord) {
  Make({RandomRecords(kCount)});
  files_->is_open = true;
  std::atomic<int> count = 0;
  files_->fault = [&](const RangeRead& range) {
    return range.offset_bytes == segments_[1] && count++ == 0 ? ErrorCode::kIo : ErrorCode::kOk;
  };
  auto queue = reader_->OpenQueue().value();
  Submit(queue, {0, 171}, 1);
  ExpectNext(queue, {0, 171});
  EXPECT_EQ(files_->CountAt(segments_[1]), 2);
}

TEST_F(BatchQueueIndexTest, ADamagedPageCostsItsRecords) {
  Make({RandomRecords(kCount)});
  files_->is_open = true;
  files_->content(0)[segments_[2] + 100] ^= 1;
  auto queue = reader_->OpenQueue().value();
  Submit(queue, {171, 400, 600}, 1);
  const auto next = Next(queue);
  ASSERT_TRUE(next.batch);
  const auto statuses = next.batch.value().statuses();
  EXPECT_EQ(std::vector(statuses.begin(), statuses.end()),
            (std::vector{ErrorCode::kOk, ErrorCode::kCorruption, ErrorCode::kOk}));
}

TEST_F(BatchQueueIndexTest, DictionariesAreReadTheSameWay) {
  TestFileOptions options{.pages_per_segment = 1};
  options.writer.compress = true;
  options.writer.train_dictionary_bytes = 1024;
  std::vector<std::string> lines;
  for (std::uint64_t i = 0; i < kCount; ++i)
    lines.push_back("{\"id\": " + std::to_string(i * 7919) + ", \"address\": \"street " +
                    std::to_string(i) + "\", \"text\": \"the next batch of the data loader\"}" +
                    RandomRecords(1, i)[0]);
  Make({lines}, options);
  const auto indexes = OpenIndexes(*files_, {}).value();
  const V2Section* const dictionary = indexes[0]->v2_layout()->footer.Find(V2Section::kDictionary);
  ASSERT_NE(dictionary, nullptr);
  files_->owner_calls = 0;
  const std::vector<std::uint64_t> indices{3, 500, 180};
  auto queue = reader_->OpenQueue({.in_order = true}).value();

  Submit(queue, indices, 1);
  Submit(queue, {4}, 2);
  EXPECT_FALSE(queue.Poll(kNoWait).value());
  files_->is_open = true;
  ExpectNext(queue, indices);
  ExpectNext(queue, {4});
  EXPECT_EQ(owner_calls(), 0U);
  EXPECT_EQ(files_->CountAt(dictionary->offset_bytes), 1);

  // Unreachable: its records have that status. Damaged: as one call says.
  Open(files_);
  files_->fault = [&](const RangeRead& range) {
    return range.offset_bytes == dictionary->offset_bytes ? ErrorCode::kUnavailable
                                                          : ErrorCode::kOk;
  };
  auto other = reader_->OpenQueue().value();
  Submit(other, indices, 3);
  const auto next = Next(other);
  ASSERT_TRUE(next.batch);
  for (const ErrorCode status : next.batch.value().statuses())
    EXPECT_EQ(status, ErrorCode::kUnavailable);
  EXPECT_EQ(owner_calls(), 0U);

  files_->fault = [](const RangeRead&) { return ErrorCode::kOk; };
  files_->content(0)[dictionary->offset_bytes] ^= 1;
  std::vector<std::string> contents{files_->content(0)};
  plain_.emplace(OpenRecords(std::make_shared<test::MemoryFiles>(contents), {}).value());
  Submit(other, indices, 4);
  ExpectNext(other, indices);
}

TEST_F(BatchQueueIndexTest, ThroughACacheOnDiskToo) {
  Make({RandomRecords(kCount)});
  const test::TempFolder folder{std::filesystem::current_path()};
  const auto cache = BlockCache::Open(folder / "cache", BlockCache::kSizeMin).value();
  for (const bool is_warm : {false, true}) {
    const std::vector<std::string> identities{"one"};
    Open(OpenCachedFiles(files_, cache, identities));
    auto queue = reader_->OpenQueue().value();
    files_->is_open = is_warm;
    Submit(queue, {0, 171, 600}, 1);
    EXPECT_FALSE(!is_warm && queue.Poll(kNoWait).value());
    files_->is_open = true;
    ExpectNext(queue, {0, 171, 600});
    EXPECT_EQ(owner_calls(), 0U);
  }
}

TEST_F(BatchQueueIndexTest, AQueueMayBeLeftWhileAnIndexIsOnItsWay) {
  Make({RandomRecords(kCount)});
  {
    auto queue = reader_->OpenQueue().value();
    for (std::uint64_t token = 0; token < 6; ++token) Submit(queue, {token % 4 * 170}, token);
    WaitUntilBegun(4);
  }
  EXPECT_EQ(files_->given_up, 4U);
  files_->is_open = true;
  auto queue = reader_->OpenQueue().value();
  Submit(queue, {0}, 1);
  ExpectNext(queue, {0});
}

TEST_F(BatchQueueIndexTest, AChildLeavesWhatIsOnItsWayToItsParent) {
  Make({RandomRecords(kCount)});
  auto queue = std::make_optional(reader_->OpenQueue().value());
  Submit(*queue, {0, 600}, 1);
  WaitUntilBegun(2);
  EXPECT_EQ(test::RunInChild([&] {
              queue.reset();
              if (!test::kChildMayHaveThreads) return 0;
              files_->is_open = true;
              auto own = reader_->OpenQueue().value();
              if (!own.Submit({{std::uint64_t{600}}}, 5)) return 3;
              const auto next = own.Poll(kLong);
              return next && next.value() && next.value()->batch &&
                             AsString(next.value()->batch.value().record(0)) == records_[600]
                         ? 0
                         : 4;
            }),
            0);
  files_->is_open = true;
  ExpectNext(*queue, {0, 600});
}

// Several threads, each with a queue, that need the same parts of one reader.
TEST_F(BatchQueueIndexTest, QueuesOfOneReaderNeedTheSameParts) {
  Make({RandomRecords(kCount)});
  files_->is_open = true;
  for (int round = 0; round < 20; ++round) {
    Open(files_);
    std::vector<std::thread> threads;
    std::atomic<int> right = 0;
    for (int number = 0; number < 4; ++number)
      threads.emplace_back([&] {
        auto queue = reader_->OpenQueue().value();
        const std::vector<std::uint64_t> indices{600, 400, 171, 0};
        if (!queue.Submit(indices, 0)) return;
        const auto next = queue.Poll(kLong);
        if (!next || !next.value() || !next.value()->batch) return;
        for (std::size_t i = 0; i < indices.size(); ++i)
          if (AsString(next.value()->batch.value().record(i)) == records_[indices[i]]) ++right;
      });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(right, 16);
  }
}

}  // namespace
}  // namespace ffrecord
