// Goal: only regular files are opened, nothing blocks, every failure names its file and code.
// Method: open good and bad paths.

#include "libffrecord/io/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>

#include "temp_folder.h"

namespace ffrecord {
namespace {

using test::TempFolder;
using test::WriteFile;

TEST(FileTest, OpensARegularFileAndKnowsItsSize) {
  TempFolder folder;
  WriteFile(folder / "file", "hello");

  const auto file = OpenReadOnly(folder / "file", false);

  ASSERT_TRUE(file);
  EXPECT_EQ(file.value().size_bytes, 5U);
  EXPECT_FALSE(file.value().direct_fd);
  EXPECT_EQ(::fcntl(file.value().fd.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(::fcntl(file.value().fd.get(), F_GETFL) & O_NONBLOCK, 0);
}

}  // namespace
}  // namespace ffrecord
