// Goal: only regular files are opened, nothing blocks, every failure names its file and has its
// code. Method: open good and bad paths, count descriptors before and after.

#include "libffrecord/io/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "child.h"
#include "libffrecord/io/append_file.h"
#include "libffrecord/io/atomic_file.h"
#include "open_files.h"
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

TEST(FileTest, DirectDescriptorComesWithItsAlignmentAndReadsTheSameFile) {
  TempFolder folder;
  WriteFile(folder / "file", std::string(8192, 'x'));

  const auto file = OpenReadOnly(folder / "file", true).value();

  if (!file.direct_fd) GTEST_SKIP() << "no O_DIRECT on " << folder.path();
  EXPECT_GT(file.direct_alignment.memory_bytes, 0U);
  EXPECT_GT(file.direct_alignment.offset_bytes, 0U);
  EXPECT_EQ(::fcntl(file.direct_fd.get(), F_GETFD), FD_CLOEXEC);
  EXPECT_NE(::fcntl(file.direct_fd.get(), F_GETFL) & O_DIRECT, 0);
  alignas(4096) static char block[4096];
  EXPECT_EQ(::pread(file.direct_fd.get(), block, sizeof block, 4096), 4096);
  EXPECT_EQ(block[4095], 'x');
}

TEST(FileTest, FileSystemWithoutDirectIoIsNoFailure) {
  if (!std::filesystem::exists("/proc/version")) GTEST_SKIP() << "no /proc";
  const auto file = OpenReadOnly("/proc/version", true);

  ASSERT_TRUE(file);
  EXPECT_FALSE(file.value().direct_fd);
  EXPECT_EQ(file.value().direct_alignment.memory_bytes, 0U);
}

TEST(FileTest, WhatIsNoRegularFileIsRefusedAtOnce) {
  TempFolder folder;
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  const UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, (folder / "socket").c_str(), sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);

  ::alarm(20);  // A FIFO that blocks must not hold up the whole run.
  for (const auto& path :
       {folder.path(), folder / "fifo", folder / "socket", std::filesystem::path("/dev/null")}) {
    const auto file = OpenReadOnly(path, true);
    ASSERT_FALSE(file) << path;
    EXPECT_EQ(file.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(file.error().message.find(path.string()), std::string::npos);
  }
  ::alarm(0);
}

TEST(FileTest, MissingAndDeniedFilesHaveTheirCodesAndNames) {
  TempFolder folder;
  WriteFile(folder / "file", "x");
  WriteFile(folder / "secret", "x");
  ASSERT_EQ(::chmod((folder / "secret").c_str(), 0), 0);
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  const auto missing = OpenReadOnly(folder / "missing", false);
  const auto below_file = OpenReadOnly(folder / "file/x", false);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(missing.error().system_errno, 0);
  EXPECT_NE(missing.error().message.find("missing"), std::string::npos);
  EXPECT_EQ(below_file.error().code, ErrorCode::kNotFound);

  // Nothing is denied to root, so ask as somebody else.
  EXPECT_EQ(test::RunInChild([&] {
              if (::geteuid() == 0 && ::seteuid(65534) != 0) return 1;
              const auto denied = OpenReadOnly(folder / "secret", false);
              return !denied && denied.error().code == ErrorCode::kDenied ? 0 : 2;
            }),
            0);
}

TEST(FileTest, FailedOpensLeaveNoDescriptors) {
  TempFolder folder;
  WriteFile(folder / "file", "x");
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  const auto before = test::OpenFiles();
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(OpenReadOnly(folder.path(), true));
    EXPECT_FALSE(OpenReadOnly(folder / "fifo", true));
    EXPECT_FALSE(OpenReadOnly(folder / "missing", true));
    EXPECT_TRUE(OpenReadOnly(folder / "file", true));
  }
  EXPECT_EQ(test::OpenFiles(), before);
}

TEST(FileTest, ErrorsSayWhatWasTriedOnWhatAndTheRemedy) {
  const Error full = ErrnoError("write", "/data/a.ffr", ENOSPC);
  EXPECT_EQ(full.code, ErrorCode::kIo);
  EXPECT_EQ(full.system_errno, ENOSPC);
  EXPECT_EQ(full.message,
            "write /data/a.ffr: No space left on device; free some space or choose another file "
            "system");
  EXPECT_EQ(ErrnoError("open", "x", ENOENT).code, ErrorCode::kNotFound);
  EXPECT_EQ(ErrnoError("open", "x", EACCES).code, ErrorCode::kDenied);
  EXPECT_EQ(ErrnoError("link", "x", EEXIST).code, ErrorCode::kConflict);
  EXPECT_EQ(ErrnoError("read", "x", EIO).code, ErrorCode::kIo);
}

TEST(FileTest, ParentFolderIsSyncedOrItsAbsenceReported) {
  TempFolder folder;
  EXPECT_TRUE(SyncParentFolder(folder / "file"));
  EXPECT_TRUE(SyncParentFolder("file"));
  EXPECT_EQ(SyncParentFolder(folder / "missing/file").error().code, ErrorCode::kNotFound);
}

TEST(DescriptorLimitTest, IsRaisedAsFarAsAllowedAndThenOpeningSaysWhatToDo) {
  const TempFolder folder;
  WriteFile(folder / "file", "content");
  EXPECT_EQ(test::RunInChild([&] {
              const rlimit limit{300, 1000};
              if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
              MakeRoomForDescriptors(600);
              std::vector<ReadOnlyFile> files;
              for (int i = 0; i < 600; ++i) {
                auto opened = OpenReadOnly(folder / "file", false);
                if (!opened) return 2;
                files.push_back(std::move(opened).value());
              }
              MakeRoomForDescriptors(1000);  // More than can be had.
              for (int i = 0; i < 1000; ++i) {
                auto opened = OpenReadOnly(folder / "file", false);
                if (!opened)
                  return opened.error().message.find("ulimit -Hn") != std::string::npos ? 0 : 3;
                files.push_back(std::move(opened).value());
              }
              return 4;
            }),
            0);
}

// The kernel would cut the name at the zero, and open, or make, another file.
TEST(FileTest, APathWithAZeroByteIsNobodysName) {
  const TempFolder folder;
  const std::filesystem::path known = folder / "known";
  WriteFile(known, "content");
  const std::filesystem::path cut = known.string() + std::string("\0.ffr", 5);
  const std::filesystem::path fresh = (folder / "fresh").string() + std::string("\0.ffr", 5);

  const auto opened = OpenReadOnly(cut, false);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(opened.error().message.find("zero byte"), std::string::npos);
  const auto appended = AppendFile::Open(cut, nullptr);
  ASSERT_FALSE(appended);
  EXPECT_EQ(appended.error().code, ErrorCode::kInvalidArgument);
  const auto made = AtomicFile::Create(fresh, {}, nullptr);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(folder / "fresh"));
}

}  // namespace
}  // namespace ffrecord
