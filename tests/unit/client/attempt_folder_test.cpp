// Goal: nobody waits for the lock of an attempt's folder longer than he said.
// Method: another holder keeps the lock, or gives it back.
#include "client/checkpoint/attempt_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <chrono>
#include <thread>

#include "libffrecord/base/unique_fd.h"
#include "temp_folder.h"

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;

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

}  // namespace
}  // namespace ffrecord::client
