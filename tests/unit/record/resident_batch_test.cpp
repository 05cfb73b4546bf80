// Goal: records that are in memory are copied from there, checked like all others, and records that
// are not never make a thread wait for one page after the other; batches allocate next to nothing.
// Method: files in memory that count their reads; a file on disk put out of the page cache, with
// the kernel's count of major faults; operator new that counts.

#include "libffrecord/record/read/resident_batch.h"
#include "libffrecord/record/read/open_records.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <random>

#include "libffrecord/base/unique_fd.h"
#include "libffrecord/format/v2_header.h"
#include "libffrecord/format/v2_index.h"
#include "libffrecord/io/mapped_file.h"
#include "libffrecord/io/page_cache.h"
#include "memory_files.h"
#include "seed.h"
#include "test_file.h"

namespace {

std::atomic<std::uint64_t> allocations{0};
std::atomic<std::uint64_t> largest_allocation{0};

}  // namespace

// Not inlined: g++ would find free() beside new.
[[gnu::noinline]] void* operator new(std::size_t size) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (size > largest_allocation.load(std::memory_order_relaxed)) largest_allocation.store(size);
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace ffrecord {
namespace {

using test::AsString;
using test::FileOf;
using test::InMemory;
using test::UpTo;

std::vector<std::string> Records(std::size_t count, std::size_t size) {
  std::vector<std::string> records(count);
  for (std::size_t i = 0; i < count; ++i) {
    records[i] = std::string(size, static_cast<char>('a' + i % 26));
    records[i].replace(0, std::min(size, std::to_string(i).size()), std::to_string(i));
  }
  return records;
}

std::shared_ptr<test::MemoryFiles> Mapped(const std::vector<std::string>& records,
                                          const test::TestFileOptions& options = {}) {
  auto file = InMemory(FileOf(records, options));
  file->mapped = true;
  return file;
}

std::vector<std::uint64_t> RandomIndices(std::size_t count, std::uint64_t end) {
  std::mt19937_64 random(test::Seed());
  std::vector<std::uint64_t> indices(count);
  for (auto& index : indices) index = random() % end;
  return indices;
}

void ExpectRecords(const Batch& batch, const std::vector<std::uint64_t>& indices,
                   const std::vector<std::string>& records) {
  ASSERT_EQ(batch.size(), indices.size());
  for (std::size_t i = 0; i < indices.size(); ++i) {
    ASSERT_EQ(batch.statuses()[i], ErrorCode::kOk);
    ASSERT_EQ(AsString(batch.record(i)), records[indices[i]]) << indices[i];
  }
}

TEST(ResidentBatchTest, LiesBackToBackInRequestOrderAndReadsNothing) {
  const auto records = Records(2000, 100);
  for (const auto& options : {test::TestFileOptions{.version = 1}, test::TestFileOptions{},
                              // Index segments whose number is found by a shift, and by a division.
                              test::TestFileOptions{.pages_per_segment = 2},
                              test::TestFileOptions{.pages_per_segment = 3}}) {
    const auto file = Mapped(records, options);
    const auto reader = OpenRecords(file, {}).value();
    file->ResetCounts();
    for (int batch_number = 0; batch_number < 2;
         ++batch_number) {  // Pages are checked in the first.
      const auto indices = RandomIndices(1000, records.size());

      const Batch batch = reader.ReadBatch(indices).value();

      ExpectRecords(batch, indices, records);
      for (std::size_t i = 0; i < indices.size(); ++i)
        ASSERT_EQ(batch.starts_bytes()[i], static_cast<std::int64_t>(i * 100));
    }
    EXPECT_EQ(file->read_call_count(), 0U);
  }
}

TEST(ResidentBatchTest, CompressedAndEmptyRecordsAreDecompressedInPlace) {
  auto records = Records(300, 3000);
  records[7].clear();
  RecordWriter::Options zstd;
  zstd.compress = true;
  const auto file = Mapped(records, {.writer = zstd});
  const auto reader = OpenRecords(file, {}).value();
  file->ResetCounts();
  const std::vector<std::uint64_t> indices{5, 7, 299, 5, 0};
  ExpectRecords(reader.ReadBatch(indices).value(), indices, records);
  EXPECT_EQ(file->read_call_count(), 0U);
}

TEST(ResidentBatchTest, BytesThatFailInMemoryAreReadInstead) {
  const auto records = Records(500, 100);
  for (const bool compress : {false, true}) {
    RecordWriter::Options options;
    options.compress = compress;
    const auto file = Mapped(records, {.writer = options});
    const auto reader = OpenRecords(file, {}).value();
    // As if the pages were lost: zeros.
    file->mapped_content = std::string(file->content(0).size(), '\0');
    file->ResetCounts();
    ExpectRecords(reader.ReadBatch(UpTo(500)).value(), UpTo(500), records);
    EXPECT_EQ(file->read_call_count(), 1U);
  }
}

TEST(ResidentGuessTest, PausesLongerEachTimeItIsWrong) {
  ResidentGuess guess;
  const auto refused = [&] {
    int count = 0;
    while (!guess.Try()) ++count;
    return count;
  };
  EXPECT_EQ(refused(), 0);
  guess.Wrong();
  const int first = refused();
  EXPECT_GT(first, 0);
  guess.Wrong();
  EXPECT_EQ(refused(), 2 * first);
  for (int i = 0; i < 40; ++i) guess.Wrong();
  EXPECT_LE(refused(), 1000);
  guess.Right();
  EXPECT_EQ(refused(), 0);
  guess.Wrong();
  EXPECT_EQ(refused(), first);
}

// Puts the file out of the page cache. False where that is not possible, as on tmpfs.
bool MakeCold(const std::filesystem::path& path, std::uint64_t size_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (::fsync(fd.get()) != 0) return false;
  ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  const auto mapped = MappedFile::Map(fd.get(), 0, size_bytes).value();
  return !IsInMemory(mapped.bytes().subspan(size_bytes / 2, 1)) &&
         !IsInMemory(mapped.bytes().subspan(size_bytes / 4, 1));
}

TEST(ColdBatchTest, RandomRecordsAreQueuedAndNotFaultedIn) {
  const auto records = Records(8000, 4096);
  const test::TestFile file(records);
  const std::uint64_t size_bytes = file.summary().file_size_bytes;
  if (!MakeCold(file.path(), size_bytes)) GTEST_SKIP() << "this file system keeps files in memory";
  const auto reader = test::OpenOne(file.path(), {.io = IoPolicy::kBuffered}).value();
  std::mt19937_64 random(test::Seed());
  std::vector<std::uint64_t> order = UpTo(8000);
  std::shuffle(order.begin(), order.end(), random);

  const std::uint64_t before = MajorFaultsOfThread();
  for (std::size_t first = 0; first < 4000; first += 100) {
    const std::vector<std::uint64_t> indices(
        order.begin() + static_cast<std::ptrdiff_t>(first),
        order.begin() + static_cast<std::ptrdiff_t>(first) + 100);
    ExpectRecords(reader.ReadBatch(indices).value(), indices, records);
  }
  const std::uint64_t faults = MajorFaultsOfThread() - before;
  const auto report = reader.io_report();

  std::cout << faults << " major faults for 4000 records that were not in memory" << std::endl;
  EXPECT_LE(faults, 200U);
  EXPECT_GE(report.batches_read, 1U);  // The kernel may have read all else ahead.
  // Now that all is in memory nothing is read any more, after a pause for what was guessed wrong.
  ASSERT_TRUE(reader.ReadBatch(UpTo(8000)));
  for (int batch = 0; batch < 600; ++batch)
    ASSERT_TRUE(reader.ReadBatch(std::span(order).subspan(0, 10)));
  EXPECT_GE(reader.io_report().batches_from_memory, report.batches_from_memory + 300);
}

// Each record lies in another segment of the index, none of which was touched before.
TEST(ColdBatchTest, TheFirstBatchOfALargeFileQueuesItsIndexPages) {
  constexpr std::uint64_t kSegmentRecords =
      kIndexEntriesPerPage * V2Header::kPagesPerSegmentDefault;
  constexpr std::uint64_t kSegments = 40;
  const test::TestFile file(std::vector<std::string>(kSegments * kSegmentRecords, "x"));
  if (!MakeCold(file.path(), file.summary().file_size_bytes))
    GTEST_SKIP() << "this file system keeps files in memory";
  const auto reader = test::OpenOne(file.path(), {.io = IoPolicy::kBuffered}).value();
  std::vector<std::uint64_t> indices;
  for (std::uint64_t segment = 0; segment < kSegments; ++segment)
    indices.push_back(segment * kSegmentRecords + kSegmentRecords / 2);

  const std::uint64_t before = MajorFaultsOfThread();
  const auto batch = reader.ReadBatch(indices);
  const std::uint64_t faults = MajorFaultsOfThread() - before;

  ASSERT_TRUE(batch) << batch.error().message;
  EXPECT_EQ(batch.value().statuses()[kSegments - 1], ErrorCode::kOk);
  std::cout << faults << " major faults for " << kSegments << " index pages" << std::endl;
  EXPECT_LE(faults, kSegments / 2);
}

// What the last of some batches allocates.
std::uint64_t AllocationsOfABatch(const RecordReader& reader,
                                  const std::vector<std::uint64_t>& indices) {
  for (int warm_up = 0; warm_up < 5; ++warm_up) EXPECT_TRUE(reader.ReadBatch(indices));
  largest_allocation = 0;
  const std::uint64_t before = allocations;
  const auto batch = reader.ReadBatch(indices);
  const std::uint64_t after = allocations;
  EXPECT_TRUE(batch);
  return after - before;
}

TEST(AllocationTest, BatchesAllocateAsMuchForManyRecordsAsForFew) {
  const auto records = Records(20'000, 300);
  RecordWriter::Options zstd;
  zstd.compress = true;
  for (const bool compress : {false, true})
    for (const IoPolicy io : {IoPolicy::kBuffered, IoPolicy::kDirect}) {
      const test::TestFile file(records, {.writer = compress ? zstd : RecordWriter::Options()});
      const auto reader = test::OpenOne(file.path(), {.io = io}).value();
      for (const std::size_t count : {10U, 100U, 4096U, 20'000U}) {
        const auto made = AllocationsOfABatch(reader, RandomIndices(count, records.size()));
        EXPECT_LE(made, 12U) << count;
        EXPECT_LE(largest_allocation, 4096U) << count;  // None that malloc would map anew.
      }
    }
}

}  // namespace
}  // namespace ffrecord
