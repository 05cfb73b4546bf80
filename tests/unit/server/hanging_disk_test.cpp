// Goal: a disk on which deletions or writes hang keeps its own extents, and no other disk's.
// Method: a daemon, or a store, with two disks in this process, whose unlink() and mkdir() wait in
// one of their folders.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string_view>
#include <thread>

#include "server_peers.h"
#include "temp_folder.h"

namespace {

std::atomic<bool> unlink_hangs{false};
std::atomic<bool> mkdir_hangs{false};
std::atomic<int> hanging_count{0};

void HangWhile(const std::atomic<bool>& hangs, std::string_view path) {
  if (!hangs) return;
  if (path.find("/hung/extents/") == std::string_view::npos) return;
  ++hanging_count;
  while (hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  --hanging_count;
}

}  // namespace

// In place of the C library's, for the whole program.
extern "C" int unlink(const char* path) noexcept {
  HangWhile(unlink_hangs, path);
  return static_cast<int>(::syscall(SYS_unlink, path));
}
extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  HangWhile(mkdir_hangs, path);
  return static_cast<int>(::syscall(SYS_mkdir, path, mode));
}

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;
using test::Eventually;

class HangingUnlinkTest : public ServerTest {
 protected:
  ~HangingUnlinkTest() override { unlink_hangs = false; }

  std::size_t FilesOn(const char* disk) const {
    std::size_t count = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / disk / "extents"))
      count += entry.is_regular_file() ? 1 : 0;
    return count;
  }
  // Extents that nobody publishes: given up soon.
  void PutSome(std::uint64_t upload) {
    auto channel = ConnectTo(two_);
    for (std::uint32_t i = 0; i < 8; ++i)
      ASSERT_TRUE(Put(*channel, MakeExtentId(upload, 0, i), "never published"));
  }

  test::TempFolder folder_;
  Daemon two_{{.data = {folder_ / "good", folder_ / "hung"}, .upload_grace = 1s}};
};

TEST_F(HangingUnlinkTest, OtherDisksAreCleanedAllTheSame) {
  unlink_hangs = true;
  PutSome(1);
  ASSERT_TRUE(Eventually([] { return hanging_count > 0; }));
  ASSERT_TRUE(Eventually([&] { return FilesOn("good") == 0; }));
  const std::size_t left_count = FilesOn("hung");
  EXPECT_GT(left_count, 0U);

  // Uploads that fall silent meanwhile are given up too.
  PutSome(2);
  ASSERT_TRUE(Eventually([&] { return FilesOn("good") == 0; }));
  EXPECT_GT(FilesOn("hung"), left_count);

  unlink_hangs = false;
  ASSERT_TRUE(Eventually([&] { return FilesOn("hung") == 0; }));
}

TEST(HangingWriteTest, NewExtentsGoToOtherDisks) {
  test::TempFolder folder;
  ExtentStore::Disks disks;
  for (const char* const name : {"hung", "good"}) {
    fs::create_directories(folder / name);
    disks.present.push_back(Disk::Open(folder / name / "extents").value());
  }
  const auto store = ExtentStore::Open(std::move(disks)).value();
  const Disk& good = *store->disks()[1];
  mkdir_hangs = true;
  std::thread writer([&] {
    // Disks take turns: the second one at the latest hangs.
    for (std::uint32_t i = 0; i < 2; ++i) (void)store->Create(MakeExtentId(1, 0, i), 10);
  });
  EXPECT_TRUE(Eventually([] { return hanging_count > 0; }));
  EXPECT_TRUE(Eventually([&] { return store->disks()[0]->reads().is_suspect(); }));
  EXPECT_FALSE(good.reads().is_suspect());

  for (std::uint32_t i = 0; i < 6; ++i) {
    auto other = store->Create(MakeExtentId(2, 0, i), 3);
    EXPECT_TRUE(other);
    EXPECT_TRUE(other.value().Append(AsBytes(std::string_view("new"))));
    EXPECT_EQ(other.value().Seal(Xxh3(AsBytes(std::string_view("new")))).value()->disk, &good);
  }

  mkdir_hangs = false;
  writer.join();
}

}  // namespace
}  // namespace ffrecord::server
