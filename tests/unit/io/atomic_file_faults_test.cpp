// Goal: a write, a sync or a system call that fails leaves the old file and nothing else, and is
// told. Method: every write and sync fails in turn, the disk is full, and the kernel refuses what
// makes files without a name.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "atomic_files.h"
#include "child.h"
#include "faulty_engine.h"
#include "libffrecord/io/atomic_file.h"
#include "open_files.h"
#include "refused_calls.h"
#include "temp_folder.h"

namespace {

// Whether somebody else locks the next file before its writer does; then the other's descriptor.
bool collector_is_next = false;
int collector_fd = -1;

}  // namespace

// In place of the C library's flock().
extern "C" int LockAsTold(int fd, int operation) noexcept __asm__("flock");
int LockAsTold(int fd, int operation) noexcept {
  const auto lock = [&](int file) {
    return static_cast<int>(::syscall(SYS_flock, file, operation));
  };
  if (std::exchange(collector_is_next, false)) {
    collector_fd = ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC);
    lock(collector_fd);
  }
  return lock(fd);
}

namespace ffrecord {
namespace {

using test::Bytes;
using test::FaultyEngine;
using test::kSkipped;
using test::ReadFile;
using test::RefuseCalls;
using test::RefuseUnnamedFiles;
using test::Replace;
using test::RunInChild;
using test::TempFolder;
using test::WriteFile;
using Kind = IoRequest::Kind;

TEST(AtomicFileTest, EachFailedWriteOrSyncKeepsTheOldFileAndIsNeverRetried) {
  const std::string text(20000, 'n');
  for (const bool direct : {false, true}) {
    for (const bool sticky : {false, true}) {
      for (const int system_errno : {EIO, ENOSPC, EDQUOT, EFBIG}) {
        for (const Kind kind : {Kind::kWrite, Kind::kSync}) {
          TempFolder folder;
          const std::uint64_t failures = test::ForEachFailure(
              kind, -system_errno, sticky, [&](std::unique_ptr<IoEngine> engine, auto failed) {
                WriteFile(folder / "file", "old");
                std::optional<AtomicFile> file;
                const auto replaced =
                    Replace(folder / "file", text, direct, std::move(engine), file);
                if (!failed()) {
                  ASSERT_TRUE(replaced) << replaced.error().message;
                  EXPECT_EQ(ReadFile(folder / "file"), text);
                  return;
                }
                ASSERT_FALSE(replaced);
                EXPECT_EQ(replaced.error().code, ErrorCode::kIo);
                EXPECT_EQ(replaced.error().system_errno, system_errno);
                EXPECT_NE(replaced.error().message.find("/file"), std::string::npos);
                // Poisoned: whatever is asked, the first error is the answer.
                EXPECT_EQ(file->Publish().error().message, replaced.error().message);
                EXPECT_EQ(file->Append(Bytes("x")).error().message, replaced.error().message);
                EXPECT_EQ(file->WriteAt(0, Bytes("x")).error().message, replaced.error().message);
                file.reset();
                EXPECT_EQ(ReadFile(folder / "file"), "old");
                EXPECT_EQ(folder.entry_count(), 1U);
              });
          // 20000 bytes are four full buffers, a tail and one overwriting; and there is one sync.
          EXPECT_GE(failures, kind == Kind::kWrite ? 6U : 1U);
        }
      }
    }
  }
}

TEST(AtomicFileTest, SyncsOnceAfterTheLastWrite) {
  TempFolder folder;
  auto counts = std::make_shared<test::FaultCounts>();
  std::optional<AtomicFile> file;

  ASSERT_TRUE(Replace(
      folder / "new", std::string(20000, 'n'), false,
      std::make_unique<FaultyEngine>(MakeIoEngine(8).value(), test::Faults{}, counts), file));

  EXPECT_EQ(counts->of(Kind::kSync), 1U);
  EXPECT_EQ(counts->last, Kind::kSync);
}

TEST(AtomicFileTest, FailedFolderSyncIsAnError) {
  TempFolder folder;
  const int status = RunInChild([&] {
    auto file = AtomicFile::Create(folder / "new", {}).value();
    if (!file.Append(Bytes("hello"))) return 10;
    if (!RefuseCalls({{SYS_fsync, EIO}})) return kSkipped;
    const auto published = file.Publish();
    if (published || published.error().system_errno != EIO) return 11;
    return 0;
  });
  if (status == kSkipped) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(status, 0);
}

// A file system of 1 MiB, gone at the end.
class SmallDisk {
 public:
  SmallDisk() : mounted_(::mount("tmpfs", folder_.path().c_str(), "tmpfs", 0, "size=1m") == 0) {}
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.path().c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  const TempFolder& folder() const { return folder_; }
  std::uint64_t free_blocks() const {
    struct statvfs status {};
    ::statvfs(folder_.path().c_str(), &status);
    return status.f_bfree;
  }

 private:
  TempFolder folder_;
  bool mounted_;
};

TEST(AtomicFileTest, FullDiskIsReportedAndLeavesTheOldFileAndAllSpace) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs is refused: " << std::strerror(errno);
  WriteFile(disk.folder() / "file", "old");
  const std::uint64_t free_blocks = disk.free_blocks();
  const std::string text(2 << 20, 'n');
  for (const bool direct : {false, true}) {
    std::optional<AtomicFile> file;

    const auto replaced =
        Replace(disk.folder() / "file", text, direct, MakeIoEngine(8).value(), file);

    ASSERT_FALSE(replaced);
    EXPECT_EQ(replaced.error().code, ErrorCode::kIo);
    EXPECT_EQ(replaced.error().system_errno, ENOSPC);
    EXPECT_NE(replaced.error().message.find("free some space"), std::string::npos);
    file.reset();
    EXPECT_EQ(ReadFile(disk.folder() / "file"), "old");
    EXPECT_EQ(disk.folder().entry_count(), 1U);
    EXPECT_EQ(disk.free_blocks(), free_blocks);
  }
}

TEST(AtomicFileTest, KnownSizeThatDoesNotFitFailsBeforeAnythingIsWritten) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs is refused: " << std::strerror(errno);
  const std::uint64_t free_blocks = disk.free_blocks();
  AtomicFile::Options options;
  options.expected_size_bytes = 2 << 20;

  const auto file = AtomicFile::Create(disk.folder() / "new", options);

  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().system_errno, ENOSPC);
  EXPECT_EQ(disk.folder().entry_count(), 0U);
  EXPECT_EQ(disk.free_blocks(), free_blocks);
}

TEST(AtomicFileTest, FailedCreationsLeaveNoDescriptors) {
  TempFolder folder;
  WriteFile(folder / "old", "old");
  const auto before = test::OpenFiles();
  AtomicFile::Options options;
  options.expected_size_bytes = std::uint64_t{1} << 62;
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(AtomicFile::Create(folder / "old", {}));
    EXPECT_FALSE(AtomicFile::Create(folder / "missing/new", {}));
    EXPECT_FALSE(AtomicFile::Create(folder / "new", options));
  }
  EXPECT_EQ(test::OpenFiles(), before);
  EXPECT_EQ(folder.entry_count(), 1U);
}

// Without O_TMPFILE: the same promises, with a name that ends in .tmp until Publish().

TEST(AtomicFileTest, WithoutUnnamedFilesATemporaryNameDoesTheSame) {
  TempFolder folder;
  const auto without = [&](bool rename_refused) {
    if (!RefuseUnnamedFiles()) return kSkipped;
    if (rename_refused && !RefuseCalls({{SYS_renameat2, EINVAL}})) return kSkipped;
    const auto path = folder / (rename_refused ? "linked.ffr" : "renamed.ffr");
    const std::size_t others = folder.entry_count();
    {
      auto discarded = AtomicFile::Create(path, {}).value();
      if (!discarded.Append(Bytes("x"))) return 1;
      if (folder.entry_count() != others + 1) return 2;
      for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
        if (entry.path() == path) return 3;
      // A child that ends does not take the parent's file with it.
      if (RunInChild([&] {
            discarded.~AtomicFile();
            return 0;
          }) != 0)
        return 4;
      if (folder.entry_count() != others + 1) return 5;
    }
    if (folder.entry_count() != others) return 6;
    auto file = AtomicFile::Create(path, {}).value();
    auto second = AtomicFile::Create(path, {}).value();
    if (!file.Append(Bytes("first")) || !file.Publish()) return 7;
    if (ReadFile(path) != "first" || folder.entry_count() != others + 2) return 8;
    const auto conflict = second.Publish();
    if (conflict || conflict.error().code != ErrorCode::kConflict) return 9;
    second = AtomicFile::Create(folder / "unused", {}).value();
    if (ReadFile(path) != "first") return 10;
    AtomicFile::Options replace;
    replace.replace = true;
    auto third = AtomicFile::Create(path, replace).value();
    if (!third.Append(Bytes("third")) || !third.Publish() || ReadFile(path) != "third") return 11;
    return 0;
  };
  for (const bool rename_refused : {false, true}) {
    const int status = RunInChild([&] { return without(rename_refused); });
    if (status == kSkipped) GTEST_SKIP() << "no seccomp here";
    EXPECT_EQ(status, 0);
  }
  // What the children had open when they ended with _exit() stays, but never as a record file.
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    if (entry.path().extension() == ".ffr") {
      EXPECT_EQ(ReadFile(entry.path()), "third");
    }
}

TEST(AtomicFileTest, FileSystemThatCannotPublishIsFoundBeforeAnythingIsWritten) {
  const TempFolder folder;
  // 1: all is well; 2: it is refused at once, in words, and nothing is left.
  const auto outcome = [&](const std::vector<test::RefusedCall>& calls) {
    return RunInChild([&] {
      if (!RefuseUnnamedFiles() || !RefuseCalls(calls)) return kSkipped;
      auto file = AtomicFile::Create(folder / "new.ffr", {});
      if (file) return file.value().Publish() && ReadFile(folder / "new.ffr").empty() ? 1 : 3;
      const bool is_clear = file.error().message.find("hard links") != std::string::npos;
      return is_clear && folder.entry_count() == 0 ? 2 : 4;
    });
  };
  const test::RefusedCall no_links{SYS_linkat, EPERM};
  const test::RefusedCall no_renames{SYS_renameat2, EINVAL};
  const int first = outcome({no_links});
  if (first == kSkipped) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(first, 1);
  std::filesystem::remove(folder / "new.ffr");
  EXPECT_EQ(outcome({no_links, no_renames}), 2);
  EXPECT_EQ(outcome({no_renames}), 1);
}

TEST(AtomicFileTest, UnnamedFilesThatCannotBeNamedLaterAreNotUsed) {
  const TempFolder folder;
  // 1: published by a rename; 2: refused before anything is written.
  const auto outcome = [&](bool replace, const std::vector<test::RefusedCall>& calls) {
    return RunInChild([&] {
      if (!RefuseCalls(calls)) return kSkipped;
      AtomicFile::Options options;
      options.replace = replace;
      auto file = AtomicFile::Create(folder / "new.ffr", options);
      if (!file) return file.error().message.find("hard links") != std::string::npos ? 2 : 3;
      if (!file.value().Append(Bytes("hello"))) return 4;
      return file.value().Publish() && ReadFile(folder / "new.ffr") == "hello" ? 1 : 5;
    });
  };
  for (const int refusal : {EPERM, EOPNOTSUPP, ENOSYS}) {
    const test::RefusedCall no_links{SYS_linkat, refusal};
    const test::RefusedCall no_renames{SYS_renameat2, EINVAL};
    const int first = outcome(false, {no_links});
    if (first == kSkipped) GTEST_SKIP() << "no seccomp here";
    EXPECT_EQ(first, 1);
    EXPECT_EQ(outcome(true, {no_links}), 1);
    std::filesystem::remove(folder / "new.ffr");
    EXPECT_EQ(outcome(false, {no_links, no_renames}), 2);
    EXPECT_EQ(folder.entry_count(), 0U);
  }
}

// Another writer who collects has just seen the new temporary name: it locks the file first, and
// removes the name when its writer believes to have it.
TEST(AtomicFileTest, TemporaryNameThatAnotherIsAboutToCollectIsGivenUp) {
  const TempFolder folder;
  const int status = RunInChild([&] {
    if (!RefuseUnnamedFiles()) return kSkipped;
    AtomicFile::Options replace;
    replace.replace = true;
    collector_is_next = true;
    auto file = AtomicFile::Create(folder / "new", replace);
    if (!file || collector_fd < 0) return 1;
    const auto name =
        std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(collector_fd));
    ::unlink(name.c_str());
    if (!file.value().Append(Bytes("hello"))) return 2;
    return file.value().Publish() ? 0 : 3;
  });
  if (status == kSkipped) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ReadFile(folder / "new"), "hello");
  EXPECT_EQ(folder.entry_count(), 1U);
}

}  // namespace
}  // namespace ffrecord
