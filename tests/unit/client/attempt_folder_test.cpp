// Goal: nobody waits for the lock of an attempt's folder longer than he said, and nobody removes an
// attempt that may be alive.
// Method: another holder keeps the lock, or gives it back; this program's flock() fails, or is
// late; one folder is mounted twice, where locks by way of one mount do not hold for the other.
#include "client/checkpoint/attempt_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "libffrecord/base/unique_fd.h"
#include "temp_folder.h"

namespace {
std::function<int()>& BeforeLock() {  // Once; returns an errno for flock() to fail with, or 0.
  static std::function<int()> before;
  return before;
}
}  // namespace

extern "C" int flock(int fd, int operation) noexcept {
  const auto before = std::exchange(BeforeLock(), nullptr);
  if (const int failure = before ? before() : 0; failure != 0) {
    errno = failure;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_flock, fd, operation));
}

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

UniqueFd Locked(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY));
  EXPECT_EQ(::flock(fd.get(), LOCK_EX | LOCK_NB), 0);
  return fd;
}

TEST(AttemptFolderTest, ALockThatIsHeldEndsTheWaitInTime) {
  const test::TempFolder folder;
  const auto path = folder.path() / ".attempt-1-0";
  std::filesystem::create_directory(path);
  const UniqueFd held = Locked(path);
  const auto made = MakeAttemptFolder(path, 20ms);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(made.error().message.find(path.string()), std::string::npos) << made.error().message;
}

TEST(AttemptFolderTest, ALockThatIsGivenBackIsTaken) {
  const test::TempFolder folder;
  const auto path = folder.path() / ".attempt-1-0";
  std::filesystem::create_directory(path);
  UniqueFd held = Locked(path);
  std::thread giver([&] { held = UniqueFd(); });
  const auto made = MakeAttemptFolder(path, 60s);
  giver.join();
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_TRUE(made.value());
}

TEST(AttemptFolderTest, OneThatCouldNotBeLockedWhenItBeganStays) {
  const test::TempFolder folder;
  const auto path = folder.path() / ".attempt-5-0";
  BeforeLock() = [] { return ENOLCK; };
  const auto made = MakeAttemptFolder(path, 20ms);
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_FALSE(made.value());
  CollectDead(folder.path(), "");
  CollectGarbage(folder.path(), 5, [](std::uint64_t) { return true; });
  EXPECT_TRUE(fs::exists(path));
}

// Else each save that is killed in that moment leaves one, until a step is committed.
TEST(AttemptFolderTest, OneThatNobodyHasClaimedYetGoes) {
  const test::TempFolder folder;
  const auto path = folder.path() / ".attempt-5-0";
  fs::create_directory(path);
  CollectDead(folder.path(), "");
  EXPECT_FALSE(fs::exists(path));
}

// The one that was found has been removed by another collector, and a copy goes on under its name.
TEST(AttemptFolderTest, OneThatIsBegunAnewWhileItIsLockedStays) {
  const std::function<void(const fs::path&)> collectors[] = {
      [](const fs::path& run) { CollectDead(run, ""); },
      [](const fs::path& run) { CollectGarbage(run, 5, [](std::uint64_t) { return true; }); }};
  for (const auto& collect : collectors) {
    const test::TempFolder folder;
    const auto path = folder.path() / ".attempt-5-0";
    ASSERT_TRUE(MakeAttemptFolder(path, 20ms));  // And its lock is dropped.
    UniqueFd living;
    BeforeLock() = [&] {
      RemoveAttempt(path);
      living = MakeAttemptFolder(path, 20ms).value();
      return 0;
    };
    collect(folder.path());
    EXPECT_TRUE(living);
    EXPECT_TRUE(fs::exists(path));
    living = UniqueFd();
    collect(folder.path());
    EXPECT_FALSE(fs::exists(path));
  }
}

// As in two containers of one host that mount a bucket, or a share, each.
TEST(AttemptFolderTest, OneThatIsLockedByAnotherMountStays) {
  const test::TempFolder folder;
  const auto mount_all = [&] {
    if (::mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=1m") != 0) return false;
    for (const char* name : {"lower", "upper", "work-0", "work-1", "0", "1"})
      fs::create_directory(folder.path() / name);
    const auto mount_one = [&](const std::string& number) {
      const std::string base = folder.path().string();
      const std::string options = "lowerdir=" + base + "/lower,upperdir=" + base +
                                  "/upper,workdir=" + base + "/work-" + number + ",index=off";
      return ::mount("overlay", (base + "/" + number).c_str(), "overlay", 0, options.c_str()) == 0;
    };
    return mount_one("0") && mount_one("1");
  };
  const bool is_mounted = mount_all();
  if (is_mounted) {
    auto made = MakeAttemptFolder(folder.path() / "0/.attempt-5-0", 20ms);
    EXPECT_TRUE(made && made.value());
    EXPECT_TRUE(fs::exists(folder.path() / "1/.attempt-5-0"));
    CollectDead(folder.path() / "1", "");
    EXPECT_TRUE(fs::exists(folder.path() / "0/.attempt-5-0"));
    made = UniqueFd();
    CollectDead(folder.path() / "0", "");
    EXPECT_FALSE(fs::exists(folder.path() / "0/.attempt-5-0"));
  }
  for (const char* name : {"1", "0", ""}) ::umount2((folder.path() / name).c_str(), MNT_DETACH);
  if (!is_mounted) GTEST_SKIP() << "mounting one folder twice needs root";
}

}  // namespace
}  // namespace ffrecord::client
