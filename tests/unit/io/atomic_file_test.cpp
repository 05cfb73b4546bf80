// Goal: a file appears under its name whole, or not at all, and nothing else stays in its folder.
// Method: write through each mode, compare with a model; then let every write and sync fail in
// turn, fill the disk, and look at the folder.

#include "libffrecord/io/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "child.h"
#include "faulty_engine.h"
#include "libffrecord/io/this_host.h"
#include "libffrecord/io/unnamed_file.h"
#include "open_files.h"
#include "refused_calls.h"
#include "seed.h"
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

using test::FaultyEngine;
using test::kSkipped;
using test::ReadFile;
using test::RefuseCalls;
using test::RunInChild;
using test::TempFolder;
using test::WriteFile;
using Kind = IoRequest::Kind;

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string RandomText(std::mt19937& random, std::size_t size) {
  std::string text(size, '\0');
  for (char& letter : text) letter = static_cast<char>(random());
  return text;
}

TEST(AtomicFileTest, IsAbsentUntilItIsPublishedWhole) {
  TempFolder folder;
  auto file = AtomicFile::Create(folder / "new.ffr", {}).value();

  ASSERT_TRUE(file.Append(Bytes("hello ")));
  ASSERT_TRUE(file.Append(Bytes("world")));
  EXPECT_EQ(folder.entry_count(), 0U);
  EXPECT_EQ(file.size_bytes(), 11U);
  ASSERT_TRUE(file.Publish());

  EXPECT_EQ(ReadFile(folder / "new.ffr"), "hello world");
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(AtomicFileTest, DiscardedLeavesNothing) {
  TempFolder folder;
  {
    auto file = AtomicFile::Create(folder / "new.ffr", {}).value();
    const std::string large(5 << 20, 'x');
    ASSERT_TRUE(file.Append(Bytes(large)));
  }

  EXPECT_EQ(folder.entry_count(), 0U);
}

TEST(AtomicFileTest, AnEmptyFileIsPublishedEmpty) {
  TempFolder folder;
  auto file = AtomicFile::Create(folder / "empty", {}).value();

  ASSERT_TRUE(file.Publish());

  EXPECT_TRUE(std::filesystem::exists(folder / "empty"));
  EXPECT_EQ(std::filesystem::file_size(folder / "empty"), 0U);
}

TEST(AtomicFileTest, RandomAppendsAndOverwritesMatchAModelInEachMode) {
  std::mt19937 random(test::Seed());
  TempFolder folder;
  for (int round = 0; round < 60; ++round) {
    AtomicFile::Options options;
    options.direct = random() % 2 == 0;
    options.buffer_size_bytes = 4096 * (1 + random() % 4);
    options.buffers_in_flight = 1 + random() % 4;
    options.expected_size_bytes = random() % 2 * (random() % 400000);
    test::Faults faults;
    faults.seed = static_cast<std::uint32_t>(random());
    faults.disorder = random() % 2 == 0;
    faults.direct_alignment_bytes = 4096;
    // Direct I/O is short by whole blocks; other transfers by any number of bytes.
    if (random() % 2 == 0) faults.short_transfer_unit_bytes = options.direct ? 512 : 1;
    auto engine = std::make_unique<FaultyEngine>(MakeIoEngine(16).value(), faults);
    const std::string name = "file" + std::to_string(round);
    auto file = AtomicFile::Create(folder / name, options, std::move(engine)).value();
    std::string model;
    for (std::size_t step = random() % 40; step > 0; --step) {
      const std::string text = RandomText(random, random() % 20000);
      if (random() % 3 != 0 || model.empty()) {
        ASSERT_TRUE(file.Append(Bytes(text)));
        model += text;
      } else if (random() % 4 == 0) {
        ASSERT_TRUE(file.AppendZeros(text.size()));
        model.append(text.size(), '\0');
      } else {
        const std::size_t offset = random() % model.size();
        const std::string_view part(text.data(), std::min(text.size(), model.size() - offset));
        const auto written = file.WriteAt(offset, Bytes(part));
        ASSERT_TRUE(written) << written.error().message;
        model.replace(offset, part.size(), part);
      }
      ASSERT_EQ(file.size_bytes(), model.size());
    }

    const auto published = file.Publish();

    ASSERT_TRUE(published) << published.error().message;
    ASSERT_TRUE(ReadFile(folder / name) == model) << "round " << round;
    struct stat status {};
    ASSERT_EQ(::stat((folder / name).c_str(), &status), 0);
    EXPECT_LE(static_cast<std::size_t>(status.st_blocks) * 512, model.size() + 65536)
        << "what was reserved in vain is still there";
  }
  EXPECT_EQ(folder.entry_count(), 60U);
}

// Names, conflicts and bad arguments.

TEST(AtomicFileTest, ExistingNameIsAConflictAtOnceAndStays) {
  TempFolder folder;
  WriteFile(folder / "old.ffr", "old");

  const auto file = AtomicFile::Create(folder / "old.ffr", {});

  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, ErrorCode::kConflict);
  EXPECT_NE(file.error().message.find("old.ffr"), std::string::npos);
  EXPECT_EQ(ReadFile(folder / "old.ffr"), "old");
}

TEST(AtomicFileTest, NameTakenMeanwhileIsAConflictAndTheOtherWriterWins) {
  TempFolder folder;
  auto file = AtomicFile::Create(folder / "new", {}).value();
  ASSERT_TRUE(file.Append(Bytes("mine")));
  WriteFile(folder / "new", "theirs");

  const auto published = file.Publish();

  ASSERT_FALSE(published);
  EXPECT_EQ(published.error().code, ErrorCode::kConflict);
  EXPECT_EQ(ReadFile(folder / "new"), "theirs");
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(AtomicFileTest, ReplacesWhatIsThereOrCreatesIt) {
  TempFolder folder;
  WriteFile(folder / "old", "old");
  AtomicFile::Options replace;
  replace.replace = true;
  for (const char* name : {"old", "new"}) {
    auto file = AtomicFile::Create(folder / name, replace).value();
    ASSERT_TRUE(file.Append(Bytes("next")));
    ASSERT_TRUE(file.Publish());
    EXPECT_EQ(ReadFile(folder / name), "next");
  }
  EXPECT_EQ(folder.entry_count(), 2U);
}

TEST(AtomicFileTest, BadPathsAreRefusedWithTheirCode) {
  TempFolder folder;
  WriteFile(folder / "file", "x");
  std::filesystem::create_directory(folder / "folder");
  ASSERT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  AtomicFile::Options replace;
  replace.replace = true;
  const auto code = [&](const std::filesystem::path& path) {
    const auto file = AtomicFile::Create(path, replace);
    return file ? ErrorCode::kOk : file.error().code;
  };

  EXPECT_EQ(code(folder / "missing/new"), ErrorCode::kNotFound);
  EXPECT_EQ(code(folder / "file/new"), ErrorCode::kNotFound);
  EXPECT_EQ(code(folder / "folder"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(folder / "folder/"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(folder / "folder/.."), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(folder / "fifo"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(""), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(folder / std::string(300, 'n')), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code("/proc/new"), ErrorCode::kNotFound);  // Nothing can be created there.
}

TEST(AtomicFileTest, BadOptionsAndRangesAreRefused) {
  TempFolder folder;
  const auto code = [&](AtomicFile::Options options) {
    const auto file = AtomicFile::Create(folder / "new", options);
    return file ? ErrorCode::kOk : file.error().code;
  };
  AtomicFile::Options odd;
  odd.buffer_size_bytes = 5000;
  AtomicFile::Options none;
  none.buffers_in_flight = 0;
  AtomicFile::Options huge;
  huge.expected_size_bytes = ~std::uint64_t{0};
  EXPECT_EQ(code(odd), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(none), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(huge), ErrorCode::kInvalidArgument);

  auto file = AtomicFile::Create(folder / "new", {}).value();
  ASSERT_TRUE(file.Append(Bytes("12345")));
  EXPECT_EQ(file.WriteAt(4, Bytes("xx")).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(file.WriteAt(~std::uint64_t{0}, Bytes("x")).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(file.WriteAt(4, Bytes("x")));  // A refused range has not harmed the file.
  ASSERT_TRUE(file.Publish());
  EXPECT_EQ(file.Append(Bytes("more")).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(file.Publish().error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ReadFile(folder / "new"), "1234x");
}

TEST(AtomicFileTest, StaysInItsFolderIfThatIsRenamedAndTheProcessMovesOn) {
  TempFolder folder;
  std::filesystem::create_directory(folder / "a");
  EXPECT_EQ(RunInChild([&] {
              if (::chdir((folder / "a").c_str()) != 0) return 1;
              auto file = AtomicFile::Create("new", {}).value();
              if (!file.Append(Bytes("hello")) || ::chdir("/") != 0) return 2;
              std::filesystem::rename(folder / "a", folder / "b");
              return file.Publish() ? 0 : 3;
            }),
            0);
  EXPECT_EQ(ReadFile(folder / "b/new"), "hello");
}

TEST(AtomicFileTest, DirectModeWritesPastThePageCache) {
  TempFolder folder;
  const auto before = test::OpenFiles();
  AtomicFile::Options options;
  options.direct = true;
  auto file = AtomicFile::Create(folder / "new", options).value();
  bool direct = false;
  for (const int fd : test::OpenFiles()) {
    if (before.contains(fd)) continue;
    EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
    if ((::fcntl(fd, F_GETFL) & O_DIRECT) != 0) direct = true;
  }
  struct statx status {};
  ASSERT_EQ(::statx(AT_FDCWD, folder.path().c_str(), 0, STATX_BASIC_STATS, &status), 0);
  if (!direct) GTEST_SKIP() << "no O_DIRECT on " << folder.path();
  ASSERT_TRUE(file.Append(Bytes(std::string((1 << 20) + 10, 'x'))));
  ASSERT_TRUE(file.Publish());
  EXPECT_EQ(ReadFile(folder / "new"), std::string((1 << 20) + 10, 'x'));
}

// Failures.

// Writes `text` over `path` in pieces, small enough for several writes in flight.
Result<void> Replace(const std::filesystem::path& path, std::string_view text, bool direct,
                     std::unique_ptr<IoEngine> engine, std::optional<AtomicFile>& file) {
  AtomicFile::Options options;
  options.replace = true;
  options.direct = direct;
  options.buffer_size_bytes = 4096;
  options.buffers_in_flight = 2;
  file.emplace(FFR_TRY(AtomicFile::Create(path, options, std::move(engine))));
  for (std::size_t at = 0; at < text.size(); at += 1000) {
    if (auto appended = file->Append(Bytes(text.substr(at, 1000))); !appended) return appended;
  }
  if (auto written = file->WriteAt(10, Bytes(text.substr(10, 20))); !written) return written;
  return file->Publish();
}

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

constexpr int kTmpfileBit = 020000000;  // Of O_TMPFILE, without O_DIRECTORY.

bool RefuseUnnamedFiles() { return RefuseCalls({{SYS_openat, EOPNOTSUPP, 2, kTmpfileBit}}); }

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

// Fork and kill.

TEST(AtomicFileTest, ForkedChildLeavesTheParentsWritesAlone) {
  TempFolder folder;
  AtomicFile::Options options;
  options.buffer_size_bytes = 4096;
  const std::string text(1 << 20, 'p');
  auto file = AtomicFile::Create(folder / "new", options).value();
  ASSERT_TRUE(file.Append(Bytes(text)));

  EXPECT_EQ(RunInChild([&] {
              file.~AtomicFile();
              auto own = AtomicFile::Create(folder / "own", {}).value();
              return own.Append(Bytes("child")) && own.Publish() ? 0 : 1;
            }),
            0);

  ASSERT_TRUE(file.Append(Bytes(text)));
  ASSERT_TRUE(file.Publish());
  EXPECT_EQ(ReadFile(folder / "new"), text + text);
  EXPECT_EQ(ReadFile(folder / "own"), "child");
}

// What a child writes until it is killed: file after file, each of its own letter, then over one.
void WriteForEver(const TempFolder& folder) {
  for (int i = 0;; ++i) {
    const std::string text(300000, static_cast<char>('a' + i % 26));
    auto file = AtomicFile::Create(folder / ("new" + std::to_string(i)), {}).value();
    if (!file.Append(Bytes(text)) || !file.Publish()) ::_exit(1);
    std::optional<AtomicFile> replaced;
    if (!Replace(folder / "old", text, true, MakeIoEngine(8).value(), replaced)) ::_exit(2);
  }
}

// Every file is whole; beside them there may be the temporary name of a replacement.
void CheckWholeFiles(const TempFolder& folder) {
  std::size_t temporary = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    const std::string text = ReadFile(entry.path());
    if (entry.path().extension() == ".tmp") ++temporary;
    if (entry.path().filename() == "old" && text == "old") continue;
    EXPECT_EQ(text.size(), 300000U) << entry.path();
    EXPECT_EQ(text.find_first_not_of(text[0]), std::string::npos) << entry.path();
  }
  EXPECT_LE(temporary, 1U);
  EXPECT_TRUE(std::filesystem::exists(folder / "old"));
}

TEST(AtomicFileTest, KilledAtRandomMomentsLeavesWholeFilesOrNone) {
  std::mt19937 random(test::Seed());
  for (int round = 0; round < 100; ++round) {
    TempFolder folder;
    WriteFile(folder / "old", "old");
    const pid_t child = ::fork();
    if (child == 0) WriteForEver(folder);
    ::usleep(static_cast<useconds_t>(random() % 15000));
    ::kill(child, SIGKILL);
    ASSERT_EQ(test::WaitForChild(child), -SIGKILL);

    CheckWholeFiles(folder);
  }
}

const std::string kReplacement(300000, 'n');

// A traced child that replaces `folder`/old and is killed where `kill` says.
template <class Kill>
std::optional<test::SystemCalls> ReplaceInChild(const TempFolder& folder, Kill kill) {
  return test::TraceInChild([] {},
                            [&] {
                              std::optional<AtomicFile> file;
                              if (!Replace(folder / "old", kReplacement, false, nullptr, file))
                                ::_exit(1);
                            },
                            kill);
}

// The kernel may let go of a killed process's lock a little later; a leftover that stays for ever
// ends the test by its time limit.
void ReplaceUntilNoLeftovers(const TempFolder& folder) {
  do {
    std::optional<AtomicFile> next;
    ASSERT_TRUE(Replace(folder / "old", kReplacement, false, nullptr, next));
  } while (folder.entry_count() > 1);
}

TEST(AtomicFileTest, KilledAtEachSystemCallLeavesTheOldOrTheNewFile) {
  bool old_seen = false;
  for (std::size_t kill_at = 1;; ++kill_at) {
    TempFolder folder;
    WriteFile(folder / "old", "old");
    const auto calls = ReplaceInChild(folder, test::AtCall(kill_at));
    if (!calls) GTEST_SKIP() << "no tracing here";
    CheckWholeFiles(folder);
    if (ReadFile(folder / "old") == "old") old_seen = true;
    if (calls->size() < kill_at) {
      EXPECT_EQ(ReadFile(folder / "old"), kReplacement);
      EXPECT_EQ(folder.entry_count(), 1U);
      EXPECT_GT(kill_at, 10U);
      break;
    }
    ReplaceUntilNoLeftovers(folder);
  }
  EXPECT_TRUE(old_seen);
}

TEST(AtomicFileTest, KilledBeforeTheRenameLeavesANameThatTheNextWriterCollects) {
  TempFolder folder;
  WriteFile(folder / "old", "old");
  const auto calls = ReplaceInChild(folder, [](const test::SystemCalls& entered) {
    return entered.back() == SYS_renameat || entered.back() == SYS_renameat2;
  });
  if (!calls) GTEST_SKIP() << "no tracing here";
  CheckWholeFiles(folder);
  EXPECT_EQ(ReadFile(folder / "old"), "old");
  EXPECT_EQ(folder.entry_count(), 2U);
  ReplaceUntilNoLeftovers(folder);
  EXPECT_EQ(ReadFile(folder / "old"), kReplacement);
}

TEST(AtomicFileTest, OnlyLeftoversOfTheDeadAreCollected) {
  TempFolder folder;
  const std::string dead = ".ffrecord-" + std::string(ThisHost()) + "-0123456789abcdef.tmp";
  WriteFile(folder / dead, "left by a killed writer");
  WriteFile(folder / ".ffrecord-notours.tmp", "someone's");
  WriteFile(folder / "old", "old");
  const int status = RunInChild([&] {
    if (!RefuseUnnamedFiles()) return kSkipped;
    auto living = AtomicFile::Create(folder / "living", {}).value();  // Has a temporary name now.
    if (!living.Append(Bytes("alive"))) return 1;
    if (folder.entry_count() != 3) return 2;  // The dead one's is gone.
    AtomicFile::Options replace;
    replace.replace = true;
    auto other = AtomicFile::Create(folder / "old", replace).value();
    if (!other.Append(Bytes("new")) || !other.Publish()) return 3;
    return living.Publish() ? 0 : 4;
  });
  if (status == kSkipped) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ReadFile(folder / "living"), "alive");
  EXPECT_EQ(ReadFile(folder / "old"), "new");
  EXPECT_EQ(ReadFile(folder / ".ffrecord-notours.tmp"), "someone's");
  EXPECT_EQ(folder.entry_count(), 3U);
}

// Where locks do not reach other hosts, a writer on one of them looks dead.
TEST(AtomicFileTest, WhatAnotherHostWritesIsLeftAloneUntilItWasForgotten) {
  constexpr const char* kForeign = ".ffrecord-00000000000000aa-0123456789abcdef.tmp";
  constexpr const char* kNobodys = ".ffrecord-0123456789abcdef.tmp";  // Of an earlier version.
  TempFolder folder;
  const auto replace = [&] {
    std::optional<AtomicFile> next;
    ASSERT_TRUE(Replace(folder / "new", kReplacement, false, nullptr, next));
  };
  const auto set_age = [&](std::chrono::hours age) {
    const auto then = std::filesystem::file_time_type::clock::now() - age;
    for (const char* name : {kForeign, kNobodys})
      std::filesystem::last_write_time(folder / name, then);
  };
  for (const char* name : {kForeign, kNobodys}) WriteFile(folder / name, "still being written");
  replace();
  EXPECT_EQ(folder.entry_count(), 3U);
  set_age(UnnamedFile::kForeignLeftoverAge - std::chrono::hours(1));
  replace();
  EXPECT_EQ(folder.entry_count(), 3U);
  set_age(UnnamedFile::kForeignLeftoverAge + std::chrono::hours(1));
  replace();
  EXPECT_EQ(folder.entry_count(), 1U);
}

}  // namespace
}  // namespace ffrecord
