// Goal: a file appears under its name whole, or not at all, and nothing else stays in its folder.
// Method: write through each mode and compare with a model; names that are taken, bad paths and bad
// ranges.

#include "libffrecord/io/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>
#include <string>

#include "atomic_files.h"
#include "child.h"
#include "faulty_engine.h"
#include "open_files.h"
#include "seed.h"
#include "temp_folder.h"

namespace ffrecord {
namespace {

using test::Bytes;
using test::FaultyEngine;
using test::ReadFile;
using test::RunInChild;
using test::TempFolder;
using test::WriteFile;

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

}  // namespace
}  // namespace ffrecord
