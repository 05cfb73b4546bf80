// Goal: what is said to lie in memory did so a moment ago, and what does not is never said to.
// Method: a file that is dropped from memory as a whole or in part, and time given by hand.

#include "server/storage/resident_chunks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/mapped_file.h"
#include "libffrecord/io/page_cache.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

using namespace std::chrono_literals;

class ResidentChunksTest : public testing::Test {
 protected:
  static constexpr std::size_t kChunk = ResidentChunks::kChunkBytes;
  static constexpr std::size_t kSize = 3 * kChunk + 1000;

  void SetUp() override {
    test::WriteFile(folder_ / "file", std::string(kSize, 'x'));
    file_.Reset(::open((folder_ / "file").c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(file_);
    ASSERT_EQ(::fsync(file_.get()), 0);  // What is not on the disk cannot be dropped.
    mapped_ = MappedFile::Map(file_.get(), 0, kSize).value();
    ASSERT_TRUE(IsInMemory(bytes()));
  }
  std::span<const std::byte> bytes() const { return mapped_->bytes(); }
  bool Contains(std::size_t offset, std::size_t size, std::chrono::milliseconds at) {
    return chunks_.Contains(bytes(), offset, size, start_ + at);
  }
  // False where the file system keeps files nowhere else.
  bool Drop(std::size_t offset, std::size_t size) {
    (void)::posix_fadvise(file_.get(), static_cast<off_t>(offset), static_cast<off_t>(size),
                          POSIX_FADV_DONTNEED);
    return !IsInMemory(bytes().subspan(offset, size));
  }

  test::TempFolder folder_;
  UniqueFd file_;
  std::optional<MappedFile> mapped_;
  ResidentChunks chunks_;
  const Clock::time_point start_ = Clock::now() + 1s;
};

TEST_F(ResidentChunksTest, WhatLiesInMemoryIsContainedWhereverItBeginsAndEnds) {
  for (int round = 0; round < 10; ++round) {
    EXPECT_TRUE(Contains(0, 1, 0ms));
    EXPECT_TRUE(Contains(kChunk - 1, 2, 0ms));
    EXPECT_TRUE(Contains(kSize - 1, 1, 0ms));
    EXPECT_TRUE(Contains(100, kSize - 100, 0ms));
  }
}

TEST_F(ResidentChunksTest, AChunkIsBelievedForAWhileAndNoLonger) {
  for (int i = 0; i <= ResidentChunks::kSingleRuns; ++i) EXPECT_TRUE(Contains(kChunk, 4096, 0ms));
  if (!Drop(0, kSize)) GTEST_SKIP() << "nothing can be dropped from memory here";

  EXPECT_FALSE(Contains(0, 4096, 1ms));  // Of which nothing was known.
  EXPECT_TRUE(Contains(kChunk + 8192, 4096, ResidentChunks::kBelievedFor - 1ms));
  for (int i = 0; i < 100; ++i)
    ASSERT_FALSE(Contains(kChunk + 8192, 4096, ResidentChunks::kBelievedFor));
}

TEST_F(ResidentChunksTest, OfAChunkThatIsNotAllThereEachPartIsAsTheKernelSays) {
  if (!Drop(0, kSize)) GTEST_SKIP() << "nothing can be dropped from memory here";
  (void)::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_RANDOM);  // Nothing is read ahead.
  std::vector<char> half(kChunk / 2);
  ASSERT_EQ(::pread(file_.get(), half.data(), half.size(), kChunk),
            static_cast<ssize_t>(half.size()));
  ASSERT_FALSE(IsInMemory(bytes().subspan(kChunk, kChunk)));
  for (int round = 0; round < 20; ++round)
    for (std::size_t at = kChunk; at < 2 * kChunk; at += 16 << 10)
      ASSERT_EQ(Contains(at, 4096, 0ms), IsInMemory(bytes().subspan(at, 4096))) << at;
}

}  // namespace
}  // namespace ffrecord::server
