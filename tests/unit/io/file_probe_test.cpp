// Goal: a probe of a file tells how it can be read, reads all of it that it says, and ends in time.
// Method: files of sizes around the blocks; a file whose pages are in memory, or were dropped; a
// file system without direct I/O; bounds of bytes and time.

#include <ffrecord/file_probe.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/file.h"
#include "temp_folder.h"

namespace ffrecord {
namespace {

using std::chrono::milliseconds;
using test::TempFolder;

constexpr std::size_t kMiB = 1 << 20;
// A slow machine reads all that is asked for.
constexpr milliseconds kNoEnd = std::chrono::hours(1);

FileFindings Probe(const std::filesystem::path& path, const FileProbeOptions& options) {
  auto found = ProbeFile(path, options);
  EXPECT_TRUE(found) << (found ? "" : found.error().message);
  return found ? std::move(found).value() : FileFindings{};
}

void DropPages(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::fsync(fd.get()), 0);
  ASSERT_EQ(::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED), 0);
}

TEST(FileProbeTest, ReadsInEachWayAndSaysHowMuch) {
  TempFolder folder;
  test::WriteFile(folder / "file", std::string(4 * kMiB + 1234, 'x'));
  const bool has_direct = static_cast<bool>(OpenReadOnly(folder / "file", true).value().direct_fd);

  const FileFindings found = Probe(folder / "file", {kNoEnd, 2 * kMiB});

  EXPECT_EQ(found.size_bytes, 4 * kMiB + 1234);
  EXPECT_EQ(found.why_not_direct.empty(), has_direct);
  EXPECT_EQ(found.direct_offset_alignment_bytes != 0, has_direct);
  ASSERT_EQ(found.rates.size(), has_direct ? 6 : 3);
  for (const ReadRate& rate : found.rates) {
    EXPECT_GT(rate.read_count, 0);
    EXPECT_GT(rate.duration.count(), 0);
    EXPECT_GT(rate.latency_median.count(), 0);
    EXPECT_GE(rate.latency_p99, rate.latency_median);
    EXPECT_LE(rate.read_bytes, 3 * kMiB);  // One block more than is allowed.
    EXPECT_LE(rate.read_bytes, rate.read_count * rate.block_bytes);
    EXPECT_GE(rate.read_bytes, 2 * kMiB);
    EXPECT_LE(rate.cached_bytes, rate.read_bytes);
  }
}

TEST(FileProbeTest, AFileInOrderIsReadOnce) {
  TempFolder folder;
  test::WriteFile(folder / "file", std::string(3 * kMiB + 7, 'x'));

  const FileFindings found = Probe(folder / "file", {kNoEnd, 8 * kMiB});

  for (const ReadRate& rate : found.rates) {
    if (!rate.is_random) {
      EXPECT_EQ(rate.read_bytes, 3 * kMiB + 7);
    }
  }
}

TEST(FileProbeTest, TellsWhatThePageCacheHolds) {
  TempFolder folder;
  test::WriteFile(folder / "file", std::string(8 * kMiB, 'x'));
  const FileFindings warm = Probe(folder / "file", {kNoEnd, kMiB});
  ASSERT_TRUE(warm.resident_share.has_value());
  EXPECT_GT(*warm.resident_share, 0.9);
  for (const ReadRate& rate : warm.rates) {
    if (!rate.is_direct) {
      EXPECT_GT(rate.cached_bytes, rate.read_bytes / 2);
    }
  }

  DropPages(folder / "file");
  const FileFindings cold = Probe(folder / "file", {kNoEnd, kMiB});

  if (*cold.resident_share > 0.5) GTEST_SKIP() << "pages of this file system are not dropped";
  EXPECT_LT(*cold.resident_share, 0.1);
  ASSERT_TRUE(cold.kept_share.has_value());
  EXPECT_GT(*cold.kept_share, 0.5);  // Read through the page cache, and there since.
}

TEST(FileProbeTest, WhatTheKernelReadsAheadWasNotThereBefore) {
  TempFolder folder;
  test::WriteFile(folder / "file", std::string(64 * kMiB, 'x'));
  DropPages(folder / "file");

  const FileFindings found = Probe(folder / "file", {kNoEnd, 24 * kMiB});

  if (*found.resident_share > 0.5) GTEST_SKIP() << "pages of this file system are not dropped";
  const ReadRate& in_order = found.rates.back();
  EXPECT_EQ(in_order.read_bytes, 24 * kMiB);
  EXPECT_EQ(in_order.cached_bytes, 0);  // Of no MiB have random reads brought all pages.
}

TEST(FileProbeTest, BlocksThatAreNotInMemoryArePreferred) {
  TempFolder folder;
  test::WriteFile(folder / "file", std::string(64 * kMiB, 'x'));
  DropPages(folder / "file");
  std::string part(24 * kMiB, '\0');
  std::ifstream(folder / "file").read(part.data(), static_cast<std::streamsize>(part.size()));

  const FileFindings found = Probe(folder / "file", {kNoEnd, 4 * kMiB});

  // Those of the last writes may stay for a while.
  if (*found.resident_share > 0.6) GTEST_SKIP() << "pages of this file system are not dropped";
  EXPECT_GT(*found.resident_share, 0.3);
  for (const ReadRate& rate : found.rates) {
    if (rate.is_random && !rate.is_direct) {
      EXPECT_LT(static_cast<double>(rate.cached_bytes),
                static_cast<double>(rate.read_bytes) * *found.resident_share / 2);
    }
  }
}

TEST(FileProbeTest, DirectReadsLeaveThePageCacheAlone) {
  TempFolder folder;
  test::WriteFile(folder / "file", std::string(64 << 10, 'x'));
  DropPages(folder / "file");

  const FileFindings found = Probe(folder / "file", {kNoEnd, kMiB});

  if (*found.resident_share > 0.5) GTEST_SKIP() << "pages of this file system are not dropped";
  const auto buffered =
      std::ranges::find_if(found.rates, [](const ReadRate& rate) { return !rate.is_direct; });
  EXPECT_LT(buffered->cached_bytes, buffered->read_bytes);
}

TEST(FileProbeTest, SmallAndEmptyFilesAreRead) {
  TempFolder folder;
  test::WriteFile(folder / "one", "x");
  test::WriteFile(folder / "empty", "");

  const FileFindings one = Probe(folder / "one", {milliseconds(60), 1000});
  EXPECT_GE(one.rates.size(), 3);
  for (const ReadRate& rate : one.rates) EXPECT_EQ(rate.read_bytes, rate.read_count);

  const FileFindings empty = Probe(folder / "empty", {milliseconds(60), 1000});
  EXPECT_TRUE(empty.rates.empty());
  EXPECT_FALSE(empty.resident_share.has_value());
}

TEST(FileProbeTest, AFileSystemWithoutDirectIoIsReadThroughThePageCache) {
  const std::filesystem::path path = "/dev/shm/ffrecord-probe-" + std::to_string(::getpid());
  test::WriteFile(path, std::string(kMiB, 'x'));
  const bool has_direct = static_cast<bool>(OpenReadOnly(path, true).value().direct_fd);

  const FileFindings found = Probe(path, {milliseconds(60), kMiB});

  std::filesystem::remove(path);
  if (has_direct) GTEST_SKIP() << "tmpfs of this kernel has direct I/O";
  EXPECT_NE(found.why_not_direct, "");
  EXPECT_EQ(found.direct_memory_alignment_bytes, 0);
  EXPECT_EQ(found.rates.size(), 3);
}

TEST(FileProbeTest, AFileThatNoProcessCanMapIsRead) {
  const std::filesystem::path path = "/dev/shm/ffrecord-map-" + std::to_string(::getpid());
  test::WriteFile(path, "x");
  const int truncated = ::truncate(path.c_str(), std::int64_t{1} << 48);

  const auto found = ProbeFile(path, {milliseconds(60), kMiB});

  std::filesystem::remove(path);
  if (truncated != 0) GTEST_SKIP() << "this file system has no such large files";
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_FALSE(found.value().resident_share.has_value());
  EXPECT_GE(found.value().rates.size(), 3);
}

TEST(FileProbeTest, EndsWithItsTime) {
  TempFolder folder;
  test::WriteFile(folder / "file", std::string(kMiB, 'x'));

  // Without the bound of time, random reads of a petabyte.
  const FileFindings found = Probe(folder / "file", {milliseconds(300), std::uint64_t{1} << 50});

  EXPECT_FALSE(found.rates.empty());
}

TEST(FileProbeTest, WrongFilesAndOptionsAreRefused) {
  TempFolder folder;
  EXPECT_EQ(ProbeFile(folder / "none", {}).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(ProbeFile(folder / ".", {}).error().code, ErrorCode::kInvalidArgument);
  test::WriteFile(folder / "file", "x");
  EXPECT_EQ(ProbeFile(folder / "file", {milliseconds(0), 1}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(ProbeFile(folder / "file", {milliseconds(1), 0}).error().code,
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ffrecord
