// Goal: a disk on which deletions hang keeps its own files, and no other disk's.
// Method: a daemon with two disks in this process, whose unlink() waits in one of their folders.

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string_view>
#include <thread>

#include "server_peers.h"
#include "temp_folder.h"

namespace {

std::atomic<bool> hangs{false};
std::atomic<int> hanging_count{0};

}  // namespace

// In place of the C library's, for the whole program.
extern "C" int unlink(const char* path) noexcept {
  if (std::string_view(path).find("/hung/extents/") != std::string_view::npos) {
    ++hanging_count;
    while (hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --hanging_count;
  }
  return static_cast<int>(::syscall(SYS_unlink, path));
}

namespace ffrecord::server {
namespace {

namespace fs = std::filesystem;
using test::Eventually;

class HangingUnlinkTest : public ServerTest {
 protected:
  ~HangingUnlinkTest() override { hangs = false; }

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
  hangs = true;
  PutSome(1);
  ASSERT_TRUE(Eventually([] { return hanging_count > 0; }));
  ASSERT_TRUE(Eventually([&] { return FilesOn("good") == 0; }));
  const std::size_t left_count = FilesOn("hung");
  EXPECT_GT(left_count, 0U);

  // Uploads that fall silent meanwhile are given up too.
  PutSome(2);
  ASSERT_TRUE(Eventually([&] { return FilesOn("good") == 0; }));
  EXPECT_GT(FilesOn("hung"), left_count);

  hangs = false;
  ASSERT_TRUE(Eventually([&] { return FilesOn("hung") == 0; }));
}

}  // namespace
}  // namespace ffrecord::server
