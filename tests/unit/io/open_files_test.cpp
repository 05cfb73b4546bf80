// Goal: a list of more files than may be open at a time is read as if all were open, and a file
// that is no longer the one that was opened is refused. Method: children with a low limit of
// descriptors; every file holds its own number.

#include "libffrecord/io/open_files.h"

#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "child.h"
#include "open_files.h"
#include "seed.h"
#include "temp_folder.h"

namespace ffrecord {
namespace {

using test::RunInChild;
using test::TempFolder;
using Way = OpenFiles::Way;

constexpr rlim_t kLimit = 96;
constexpr std::uint32_t kFileCount = 300;

// Files of 4096 bytes that begin with their number.
struct OpenFilesTest : testing::Test {
  OpenFilesTest() {
    for (std::uint32_t i = 0; i < kFileCount; ++i) {
      paths.push_back(folder / ("file-" + std::to_string(i)));
      Write(paths.back(), i);
    }
  }
  static void Write(const std::filesystem::path& path, std::uint32_t number) {
    std::string content = std::to_string(number) + ";";
    content.resize(4096, '.');
    std::ofstream(path, std::ios::binary) << content;
  }
  // Whether the file, taken now, is the one with its number.
  static bool IsRight(const OpenFiles& files, std::uint32_t file, Way way = Way::kBuffered) {
    const auto pin = files.Take(file, way);
    if (!pin) return false;
    alignas(4096) char content[4096];
    return ::pread(pin.value().fd(), content, 4096, 0) == 4096 &&
           std::stoul(std::string(content, sizeof(content))) == file;
  }
  // In a process that may have kLimit descriptors and no more.
  template <class Work>
  int RunLimited(Work work) {
    return RunInChild([&] {
      const rlimit limit{kLimit, kLimit};
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 100;
      const auto files = OpenFiles::Open(paths, true);
      return files ? work(*files.value()) : 101;
    });
  }

  const TempFolder folder;
  std::vector<std::filesystem::path> paths;
};

TEST_F(OpenFilesTest, EveryFileIsReadThoughFewAreOpen) {
  EXPECT_EQ(RunLimited([&](OpenFiles& files) {
              if (!files.OpenDirectly(4096)) return 1;
              std::mt19937_64 random(test::Seed());
              for (int i = 0; i < 3000; ++i) {
                const auto file = static_cast<std::uint32_t>(random() % kFileCount);
                const bool direct = random() % 2 == 0 && files.direct_alignment_bytes(file) > 0;
                if (!IsRight(files, file, direct ? Way::kDirect : Way::kBuffered)) return 2;
              }
              if (files.open_count() > kLimit / 2) return 3;
              // The rest of the process has some too.
              return test::OpenFiles().size() < kLimit - 10 ? 0 : 4;
            }),
            0);
}

TEST_F(OpenFilesTest, WhatIsPinnedStaysOpen) {
  EXPECT_EQ(RunLimited([&](OpenFiles& files) {
              std::vector<OpenFiles::Pin> pins;
              for (std::uint32_t file = 0; file < files.pin_count_max(); ++file)
                pins.push_back(files.Take(file, Way::kBuffered).value());
              for (std::uint32_t file = 0; file < kFileCount; ++file)
                if (!IsRight(files, file)) return 1;
              for (std::uint32_t file = 0; file < pins.size(); ++file) {
                char content[9] = {};
                if (::pread(pins[file].fd(), content, 8, 0) != 8) return 2;
                if (std::stoul(content) != file) return 3;
              }
              return 0;
            }),
            0);
}

// One that is closed and opened again gets another descriptor, for the next file has taken its own.
TEST_F(OpenFilesTest, ManyThreadsTakeAndGiveBack) {
  EXPECT_EQ(RunLimited([&](OpenFiles& files) {
              std::atomic<int> wrong{0};
              std::vector<std::thread> threads;
              for (std::uint32_t i = 0; i < 8; ++i)
                threads.emplace_back([&, i] {
                  std::mt19937_64 random(test::Seed() + i);
                  for (int round = 0; round < 1000; ++round)
                    if (!IsRight(files, static_cast<std::uint32_t>(random() % kFileCount))) ++wrong;
                });
              for (std::thread& thread : threads) thread.join();
              return wrong == 0 && files.open_count() <= kLimit / 2 + 8 ? 0 : 1;
            }),
            0);
}

// How often a file is opened while the descriptor is open; -1: the kernel does not tell.
int OpenedCount(int events) {
  int count = 0;
  alignas(inotify_event) std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t size = ::read(events, buffer.data(), buffer.size());
    if (size <= 0) return errno == EAGAIN ? count : -1;
    count += static_cast<int>(size / static_cast<ssize_t>(sizeof(inotify_event)));
  }
}

// Closing the files in turn would close each of these once while all others are opened for it.
TEST_F(OpenFilesTest, FilesThatAreUsedAllTheTimeMostlyStayOpen) {
  constexpr std::uint32_t kUsedCount = 8;
  EXPECT_EQ(RunLimited([&](OpenFiles& files) {
              const int events = ::inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
              if (events < 0) return 1;
              const auto use = [&] {
                for (std::uint32_t i = 0; i < kUsedCount; ++i)
                  if (!IsRight(files, 20 * i)) return false;
                return true;
              };
              if (!use()) return 2;
              for (std::uint32_t i = 0; i < kUsedCount; ++i)
                if (::inotify_add_watch(events, paths[20 * i].c_str(), IN_OPEN) < 0) return 3;
              constexpr int kRounds = 1000;
              for (std::uint32_t round = 0; round < kRounds; ++round)
                if (!IsRight(files, (7 * round) % kFileCount) || !use()) return 4;
              const int opened_count = OpenedCount(events);
              // In turn, each would be opened again for every kLimit / 2 others.
              constexpr int kInTurn = kRounds * kUsedCount / static_cast<int>(kLimit / 2);
              EXPECT_GE(opened_count, 0);
              EXPECT_LT(opened_count, kInTurn / 3);
              return 0;
            }),
            0);
}

TEST_F(OpenFilesTest, ChildAndParentBothGoOn) {
  EXPECT_EQ(RunLimited([&](OpenFiles& files) {
              const auto all = [&] {
                for (std::uint32_t file = 0; file < kFileCount; ++file)
                  if (!IsRight(files, file)) return 1;
                return 0;
              };
              // While a pin is held here, which the child has no use for.
              const auto pin = files.Take(5, Way::kBuffered).value();
              if (RunInChild([&] { return all() + RunInChild(all); }) != 0) return 2;
              return all();
            }),
            0);
}

TEST_F(OpenFilesTest, AnotherFileOfTheSameNameIsRefusedAndSaysSo) {
  const std::uint32_t last = kFileCount - 1;  // Opened last, so it is not open.
  EXPECT_EQ(RunLimited([&](OpenFiles& files) {
              Write(folder / "other", last);
              std::filesystem::rename(folder / "other", paths[last]);
              const auto replaced = files.Take(last, Way::kBuffered);
              EXPECT_EQ(replaced.error().code, ErrorCode::kCorruption);
              EXPECT_NE(replaced.error().message.find(paths[last].string() +
                                                      ": another file has taken its name"),
                        std::string::npos);
              std::filesystem::resize_file(paths[last - 1], 100);
              EXPECT_EQ(files.Take(last - 1, Way::kBuffered).error().code, ErrorCode::kCorruption);
              std::filesystem::remove(paths[last - 2]);
              EXPECT_EQ(files.Take(last - 2, Way::kBuffered).error().code, ErrorCode::kNotFound);
              return IsRight(files, last - 3) ? 0 : 1;
            }),
            0);
}

TEST_F(OpenFilesTest, AListThatFitsStaysOpen) {
  const std::span few(paths.data(), 10);
  const auto files = OpenFiles::Open(few, false).value();
  for (const auto& path : few) std::filesystem::remove(path);
  for (std::uint32_t file = 0; file < few.size(); ++file) EXPECT_TRUE(IsRight(*files, file));
}

TEST_F(OpenFilesTest, EveryDescriptorIsClosed) {
  const auto before = test::OpenFiles();
  EXPECT_EQ(RunLimited([&](OpenFiles& files) {
              for (std::uint32_t file = 0; file < kFileCount; ++file)
                if (!IsRight(files, file)) return 1;
              return 0;
            }),
            0);
  static_cast<void>(OpenFiles::Open(paths, true).value()->OpenDirectly(4096));
  EXPECT_EQ(test::OpenFiles(), before);
}

}  // namespace
}  // namespace ffrecord
