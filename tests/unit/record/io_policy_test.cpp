// Goal: each policy reads right, and by default the page cache is used where it helps and left
// alone where it cannot. Method: readers of one file, with the figure of free memory chosen by the
// test, while the file is wholly, partly or not at all in the page cache.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <random>

#include <ffrecord/repair.h>
#include <ffrecord/verify.h>

#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/file.h"
#include "libffrecord/io/mapped_file.h"
#include "libffrecord/io/page_cache.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/source/local_files.h"
#include "seed.h"
#include "temp_folder.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AsString;
using test::UpTo;

constexpr std::size_t kRecordCount = 3000;
constexpr std::uint64_t kRoomy = std::numeric_limits<std::uint64_t>::max();

std::vector<std::string> Records() {
  std::vector<std::string> records;
  for (std::size_t i = 0; i < kRecordCount; ++i)
    records.push_back(std::to_string(i) + std::string(2000 + i % 3000, static_cast<char>(i)));
  return records;
}

// A file on disk; how much of it is in the page cache is up to the test.
struct PolicyTest : testing::Test {
  PolicyTest() : fd(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC)) { ::fsync(fd.get()); }

  RecordReader Open(IoPolicy io, std::uint64_t page_cache_room_bytes) const {
    const RecordReader::Options options{.io = io};
    return OpenRecords(
               OpenLocalFiles({&file.path(), 1}, {.io = options.io}, page_cache_room_bytes).value(),
               options)
        .value();
  }

  void MakeCold() const { ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED); }

  // How much of the records is in the page cache, in percent.
  std::uint64_t WarmPercent() const {
    const auto mapped = MappedFile::Map(fd.get(), 0, file.summary().file_size_bytes).value();
    std::uint64_t warm = 0;
    for (std::uint64_t i = 0; i < 100; ++i)
      warm += IsInMemory(mapped.bytes().subspan(mapped.bytes().size() / 110 * i, 1)) ? 1 : 0;
    return warm;
  }

  void ReadEverything(const RecordReader& reader, std::size_t batch) const {
    auto order = UpTo(kRecordCount);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(test::Seed()));
    for (std::size_t first = 0; first < kRecordCount; first += batch) {
      const auto indices = std::span(order).subspan(first, std::min(batch, kRecordCount - first));
      const Batch got = reader.ReadBatch(indices).value();
      for (std::size_t i = 0; i < indices.size(); ++i)
        ASSERT_EQ(AsString(got.record(i)), file.records()[indices[i]]);
    }
  }

  bool DirectIsPossible() const {
    return static_cast<bool>(OpenReadOnly(file.path(), true).value().direct_fd);
  }

  const test::TestFile file{Records()};
  const UniqueFd fd;
};

TEST_F(PolicyTest, AutoIsBufferedWhereTheFilesFitInHalfOfMemory) {
  const std::uint64_t size = file.summary().file_size_bytes;
  EXPECT_EQ(Open(IoPolicy::kAuto, kRoomy).io_report().policy, IoPolicy::kBuffered);
  EXPECT_EQ(Open(IoPolicy::kAuto, 2 * size).io_report().policy, IoPolicy::kBuffered);
  EXPECT_EQ(Open(IoPolicy::kAuto, 2 * size - 2).io_report().policy, IoPolicy::kDirect);
  EXPECT_EQ(Open(IoPolicy::kBuffered, 0).io_report().policy, IoPolicy::kBuffered);
  EXPECT_EQ(Open(IoPolicy::kDirect, kRoomy).io_report().policy, IoPolicy::kDirect);
  EXPECT_EQ(test::OpenOne(file.path()).value().io_report().policy, IoPolicy::kBuffered);
}

TEST_F(PolicyTest, EveryPolicyReadsRightWhateverIsInThePageCache) {
  for (const auto& [io, room] : {std::pair{IoPolicy::kBuffered, kRoomy},
                                 {IoPolicy::kDirect, kRoomy},
                                 {IoPolicy::kAuto, kRoomy},
                                 {IoPolicy::kAuto, std::uint64_t{0}}})
    for (const int warm_percent : {0, 50, 100}) {
      MakeCold();
      std::string piece(file.summary().file_size_bytes * static_cast<unsigned>(warm_percent) / 100,
                        ' ');
      ASSERT_EQ(::pread(fd.get(), piece.data(), piece.size(), 0),
                static_cast<ssize_t>(piece.size()));
      const auto reader = Open(io, room);
      ReadEverything(reader, 64);
      ReadEverything(reader, 1000);
    }
}

TEST_F(PolicyTest, WarmBatchesAreCopiedAndDirectOnesAreNot) {
  std::string all(file.summary().file_size_bytes, ' ');
  ASSERT_EQ(::pread(fd.get(), all.data(), all.size(), 0), static_cast<ssize_t>(all.size()));
  const auto from_memory = [&](IoPolicy io, std::uint64_t room) {
    const auto reader = Open(io, room);
    ReadEverything(reader, 100);
    const auto report = reader.io_report();
    EXPECT_EQ(report.batches_from_memory + report.batches_read, kRecordCount / 100);
    return report.batches_from_memory;
  };
  EXPECT_EQ(from_memory(IoPolicy::kBuffered, kRoomy), kRecordCount / 100);
  EXPECT_EQ(from_memory(IoPolicy::kAuto, 0), kRecordCount / 100);
  EXPECT_EQ(from_memory(IoPolicy::kDirect, kRoomy), 0U);
}

TEST_F(PolicyTest, WhatDoesNotFitInMemoryIsReadPastThePageCache) {
  if (!DirectIsPossible()) GTEST_SKIP() << "this file system has no direct I/O";
  MakeCold();
  if (WarmPercent() > 2) GTEST_SKIP() << "this file system keeps files in memory";
  ReadEverything(Open(IoPolicy::kAuto, 0), 64);
  EXPECT_LE(WarmPercent(), 5U);  // Index pages, and no others around them.
  ReadEverything(Open(IoPolicy::kAuto, kRoomy), 64);
  EXPECT_EQ(WarmPercent(), 100U);
}

TEST_F(PolicyTest, VerifyAndRepairReadThroughThePageCache) {
  MakeCold();
  if (WarmPercent() > 2) GTEST_SKIP() << "this file system keeps files in memory";
  EXPECT_TRUE(VerifyFile(file.path()).value().whole());
  EXPECT_GE(WarmPercent(), 90U);  // The kernel may need a page for something else.

  MakeCold();
  const test::TempFolder folder;
  EXPECT_EQ(RepairFile(file.path(), folder / "repaired").value().kept_count, kRecordCount);
  EXPECT_GE(WarmPercent(), 90U);
}

}  // namespace
}  // namespace ffrecord
