// Goal: the reserve takes its room where there is room, whatever cuts a call short, and gives all
// of it back.
// Method: reserves on the disk of the tests; a call that is cut short.

#include "server/storage/disk_reserve.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "interrupted_fallocate.h"
#include "temp_folder.h"

namespace ffrecord::server {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;

std::uint64_t AllocatedBytes(const std::filesystem::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<std::uint64_t>(status.st_blocks) * 512
                                            : 0;
}

TEST(DiskReserveTest, HoldsItsRoomAndGivesItBack) {
  const test::TempFolder folder;
  DiskReserve reserve(folder / "reserve", kMiB);
  ASSERT_TRUE(reserve.is_whole());
  EXPECT_GE(AllocatedBytes(folder / "reserve"), reserve.size_bytes());

  EXPECT_TRUE(reserve.Release());
  EXPECT_FALSE(reserve.is_whole());
  EXPECT_EQ(AllocatedBytes(folder / "reserve"), 0U);
  EXPECT_FALSE(reserve.Release());
}

TEST(DiskReserveTest, IsRestoredOnlyWhereAsMuchIsLeftToOthers) {
  const test::TempFolder folder;
  DiskReserve reserve(folder / "reserve", kMiB);
  ASSERT_TRUE(reserve.Release());

  reserve.Restore(2 * reserve.size_bytes() - 1);
  EXPECT_FALSE(reserve.is_whole());
  reserve.Restore(2 * reserve.size_bytes());
  EXPECT_TRUE(reserve.is_whole());
  EXPECT_GE(AllocatedBytes(folder / "reserve"), reserve.size_bytes());
}

// A reserve that could not be taken lets nothing be written: an interruption is no full disk.
TEST(DiskReserveTest, IsTakenWhileTheThreadIsInterrupted) {
  const test::TempFolder folder;
  test::fallocate_interruptions = 3;

  const DiskReserve reserve(folder / "reserve", kMiB);

  EXPECT_TRUE(reserve.is_whole());
  EXPECT_EQ(test::fallocate_interruptions, 0);
}

TEST(DiskReserveTest, APartOfItIsNotKept) {
  const test::TempFolder folder;
  test::WriteFile(folder / "reserve", std::string(4096, 'x'));
  test::fallocate_error = ENOSPC;

  const DiskReserve reserve(folder / "reserve", kMiB);

  test::fallocate_error = 0;
  EXPECT_FALSE(reserve.is_whole());
  EXPECT_EQ(AllocatedBytes(folder / "reserve"), 0U);
}

TEST(DiskReserveTest, SaysWhyItCannotBeTaken) {
  const test::TempFolder folder;
  test::fallocate_error = EFBIG;
  DiskReserve reserve(folder / "reserve", kMiB);
  EXPECT_EQ(reserve.missing_errno(), EFBIG);
  test::fallocate_error = 0;

  reserve.Restore(2 * reserve.size_bytes());
  EXPECT_EQ(reserve.missing_errno(), 0);
  EXPECT_TRUE(reserve.Release());
  EXPECT_EQ(reserve.missing_errno(), ENOSPC);
}

TEST(DiskReserveTest, NoLinkIsFollowed) {
  const test::TempFolder folder;
  std::filesystem::create_symlink(folder / "elsewhere", folder / "reserve");
  const DiskReserve reserve(folder / "reserve", kMiB);
  EXPECT_FALSE(reserve.is_whole());
  EXPECT_FALSE(std::filesystem::exists(folder / "elsewhere"));
}

}  // namespace
}  // namespace ffrecord::server
