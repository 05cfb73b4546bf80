// Goal: a writer that forks or is killed leaves whole files, and at most one name that the next
// writer collects.
// Method: kill a child at random moments and at each of its system calls; leftovers of the dead, of
// the living and of other hosts.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <random>
#include <string>

#include "atomic_files.h"
#include "child.h"
#include "libffrecord/io/atomic_file.h"
#include "libffrecord/io/this_host.h"
#include "libffrecord/io/unnamed_file.h"
#include "seed.h"
#include "temp_folder.h"

namespace ffrecord {
namespace {

using test::Bytes;
using test::kSkipped;
using test::ReadFile;
using test::RefuseUnnamedFiles;
using test::Replace;
using test::RunInChild;
using test::TempFolder;
using test::WriteFile;

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
  struct stat there {};
  ASSERT_EQ(::stat(folder.path().c_str(), &there), 0);
  const std::string dead = ".ffrecord-" + ThisHost(there.st_dev) + "-0123456789abcdef.tmp";
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
