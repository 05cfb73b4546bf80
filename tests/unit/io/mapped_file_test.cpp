// Goal: a mapping shows the file's bytes; a file that is cut under it shows zeros and ends nothing;
// bus errors of others go where they went before.
// Method: cut files under mappings, in threads and children; where a process must end, run it apart
// and look at how it ended.

#include "libffrecord/io/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "libffrecord/base/unique_fd.h"
#include "libffrecord/io/sigbus_guard.h"
#include "seed.h"
#include "temp_folder.h"

namespace ffrecord {
namespace {

using test::TempFolder;

constexpr std::size_t kPage = 4096;

// An open file of `size` bytes 'x'.
UniqueFd MakeFile(const std::filesystem::path& path, std::size_t size) {
  test::WriteFile(path, std::string(size, 'x'));
  return UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
}

std::size_t CountOf(std::span<const std::byte> bytes, std::byte value) {
  return static_cast<std::size_t>(std::ranges::count(bytes, value));
}

TEST(MappedFileTest, ShowsTheBytesAtAnyOffsetAfterTheFileIsClosed) {
  TempFolder folder;
  std::string content(3 * kPage, '\0');
  std::mt19937 random(test::Seed());
  for (char& letter : content) letter = static_cast<char>(random());
  test::WriteFile(folder / "file", content);
  UniqueFd fd(::open((folder / "file").c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<MappedFile> mappings;
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  for (int i = 0; i < 200; ++i) {
    const std::size_t offset = random() % content.size();
    const std::size_t size = random() % (content.size() - offset + 1);
    ranges.emplace_back(offset, size);
    mappings.push_back(MappedFile::Map(fd.get(), offset, size).value());
  }
  fd.Reset();

  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto [offset, size] = ranges[i];
    ASSERT_EQ(mappings[i].bytes().size(), size);
    EXPECT_TRUE(std::ranges::equal(mappings[i].bytes(),
                                   std::as_bytes(std::span(content).subspan(offset, size))));
  }
}

TEST(MappedFileTest, RefusesWhatCannotBeMapped) {
  TempFolder folder;
  const UniqueFd fd = MakeFile(folder / "file", 10);

  EXPECT_EQ(MappedFile::Map(-1, 0, 10).error().code, ErrorCode::kIo);
  EXPECT_EQ(MappedFile::Map(-1, 0, 10).error().system_errno, EBADF);
  EXPECT_EQ(MappedFile::Map(fd.get(), ~std::uint64_t{0}, 10).error().system_errno, EOVERFLOW);
  EXPECT_EQ(MappedFile::Map(fd.get(), 10, ~std::uint64_t{0}).error().system_errno, EOVERFLOW);
  EXPECT_EQ(MappedFile::Map(fd.get(), 0, std::uint64_t{1} << 62).error().system_errno, ENOMEM);
  EXPECT_TRUE(MappedFile::Map(fd.get(), 0, 0).value().bytes().empty());
}

TEST(MappedFileTest, LostPagesReadAsZerosAndTheOthersStay) {
  TempFolder folder;
  const UniqueFd fd = MakeFile(folder / "file", 10 * kPage);
  const auto mapped = MappedFile::Map(fd.get(), 100, 10 * kPage - 100).value();
  ASSERT_EQ(CountOf(mapped.bytes(), std::byte{'x'}), 10 * kPage - 100);

  ASSERT_EQ(::ftruncate(fd.get(), 4 * kPage + 5), 0);

  EXPECT_EQ(CountOf(mapped.bytes(), std::byte{'x'}), 4 * kPage + 5 - 100);
  EXPECT_EQ(CountOf(mapped.bytes(), std::byte{0}), 6 * kPage - 5);
}

TEST(MappedFileTest, MovedMappingsKeepTheirProtection) {
  TempFolder folder;
  const UniqueFd fd = MakeFile(folder / "file", 2 * kPage);
  auto first = MappedFile::Map(fd.get(), 0, 2 * kPage).value();
  auto second = MappedFile::Map(fd.get(), kPage, kPage).value();
  second = std::move(first);
  const MappedFile third(std::move(second));

  ASSERT_EQ(::ftruncate(fd.get(), 0), 0);

  EXPECT_EQ(CountOf(third.bytes(), std::byte{0}), 2 * kPage);
}

TEST(SigbusGuardTest, AWriterIntoPagesThatAreGoneWritesIntoPrivateMemoryAndIsTold) {
  TempFolder folder;
  const UniqueFd fd = MakeFile(folder / "file", 4 * kPage);
  void* const begin = ::mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  ASSERT_NE(begin, MAP_FAILED);
  {
    const SigbusGuard guard(begin, 4 * kPage, SigbusGuard::Access::kReadWrite);
    std::memset(begin, 'a', 4 * kPage);
    EXPECT_FALSE(guard.has_lost());
    ASSERT_EQ(::ftruncate(fd.get(), kPage), 0);

    std::memset(begin, 'b', 4 * kPage);

    EXPECT_TRUE(guard.has_lost());
    const std::span bytes(static_cast<const std::byte*>(begin), 4 * kPage);
    EXPECT_EQ(CountOf(bytes, std::byte{'b'}), 4 * kPage);
  }
  EXPECT_EQ(test::ReadFile(folder / "file"), std::string(kPage, 'b'));
  // An entry of the table that is used again is one of a reader.
  EXPECT_EXIT(
      {
        const auto mapped = MappedFile::Map(fd.get(), 0, kPage).value();
        const bool cut = ::ftruncate(fd.get(), 0) == 0;
        const bool is_zero = CountOf(mapped.bytes(), std::byte{0}) == kPage;
        if (cut && is_zero) const_cast<std::byte&>(mapped.bytes()[0]) = std::byte{1};
      },
      [](int status) {
        // A sanitizer ends the process in its own way.
        return WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGABRT);
      },
      "");
  ::munmap(begin, 4 * kPage);
}

TEST(MappedFileTest, ThousandsOfMappingsComeAndGoWhileThreadsFault) {
  TempFolder folder;
  const UniqueFd fd = MakeFile(folder / "file", 4 * kPage);
  std::atomic<std::size_t> wrong{0};
  const auto work = [&](std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<MappedFile> mappings;
    for (int i = 0; i < 3000; ++i) {
      mappings.push_back(MappedFile::Map(fd.get(), 0, 8 * kPage).value());
      // Behind the end of the file from the start: each look at it faults.
      const auto lost = mappings[random() % mappings.size()].bytes().subspan(4 * kPage);
      if (lost[random() % lost.size()] != std::byte{0}) ++wrong;
      if (random() % 2 == 0) mappings.erase(mappings.begin());
    }
  };

  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < 4; ++i) threads.emplace_back(work, test::Seed() + i);
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(wrong, 0U);
}

TEST(MappedFileTest, ForkedChildrenInheritMappingAndProtection) {
  TempFolder folder;
  const UniqueFd fd = MakeFile(folder / "file", 2 * kPage);
  const auto mapped = MappedFile::Map(fd.get(), 0, 2 * kPage).value();
  ASSERT_EQ(::ftruncate(fd.get(), kPage), 0);

  const pid_t child = ::fork();
  if (child == 0) ::_exit(CountOf(mapped.bytes(), std::byte{'x'}) == kPage ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);

  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
  EXPECT_EQ(CountOf(mapped.bytes(), std::byte{'x'}), kPage);
}

// What follows runs in fresh processes, for the handler is installed once in each.
class BusErrorDeathTest : public testing::Test {
 protected:
  void SetUp() override { testing::FLAGS_gtest_death_test_style = "threadsafe"; }

  // Makes and uses a cut mapping of ours, then reads a lost page of a mapping that is not ours.
  static void FaultElsewhere() {
    TempFolder folder;
    const UniqueFd fd = MakeFile(folder / "file", kPage);
    const auto mapped = MappedFile::Map(fd.get(), 0, kPage).value();
    void* foreign = ::mmap(nullptr, kPage, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (::ftruncate(fd.get(), 0) != 0 || CountOf(mapped.bytes(), std::byte{0}) != kPage) ::_exit(1);
    std::filesystem::remove_all(folder.path());
    std::thread([&] { ::_exit(*static_cast<volatile char*>(foreign)); }).join();
  }

  static void SendElsewhere() {
    TempFolder folder;
    const UniqueFd fd = MakeFile(folder / "file", kPage);
    const auto mapped = MappedFile::Map(fd.get(), 0, kPage).value();
    std::filesystem::remove_all(folder.path());
    ::kill(::getpid(), SIGBUS);
    ::_exit(0);
  }

  // Sends a bus error that names an address of ours, where nothing is lost.
  static void SendWithAddress() {
    TempFolder folder;
    const UniqueFd fd = MakeFile(folder / "file", kPage);
    const auto mapped = MappedFile::Map(fd.get(), 0, kPage).value();
    std::filesystem::remove_all(folder.path());
    siginfo_t info{};
    info.si_code = SI_QUEUE;
    info.si_addr = const_cast<std::byte*>(mapped.bytes().data());
    ::syscall(SYS_rt_tgsigqueueinfo, ::getpid(), ::gettid(), SIGBUS, &info);
    ::_exit(CountOf(mapped.bytes(), std::byte{'x'}) == kPage ? 1 : 2);
  }

  template <class Handler>
  static void InstallBefore(Handler handler, int flags) {
    struct sigaction action {};
    if constexpr (std::is_invocable_v<Handler, int, siginfo_t*, void*>)
      action.sa_sigaction = handler;
    else
      action.sa_handler = handler;
    action.sa_flags = flags;
    ::sigaction(SIGBUS, &action, nullptr);
  }
};

TEST_F(BusErrorDeathTest, FaultElsewhereEndsTheProcessAsWithoutUs) {
  EXPECT_EXIT(
      {
        InstallBefore(SIG_DFL, 0);
        FaultElsewhere();
      },
      testing::KilledBySignal(SIGBUS), "");
}

// Some training frameworks do this when they end.
TEST_F(BusErrorDeathTest, NextMappingBringsProtectionBackWhereTheDefaultWasSet) {
  EXPECT_EXIT(
      {
        TempFolder folder;
        const UniqueFd fd = MakeFile(folder / "file", kPage);
        const auto before = MappedFile::Map(fd.get(), 0, kPage).value();
        ::signal(SIGBUS, SIG_DFL);
        const auto after = MappedFile::Map(fd.get(), 0, kPage).value();
        const bool cut = ::ftruncate(fd.get(), 0) == 0;
        std::filesystem::remove_all(folder.path());
        const bool zeros = CountOf(before.bytes(), std::byte{0}) == kPage &&
                           CountOf(after.bytes(), std::byte{0}) == kPage;
        ::_exit(cut && zeros ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

// torch does this in each of its worker processes.
TEST_F(BusErrorDeathTest, ProtectionIsTakenBackFromAHandlerThatStillGetsWhatIsElsewhere) {
  EXPECT_EXIT(
      {
        TempFolder folder;
        const UniqueFd fd = MakeFile(folder / "file", kPage);
        const auto mapped = MappedFile::Map(fd.get(), 0, kPage).value();
        InstallBefore(
            +[](int) { ::_exit(42); }, 0);
        SigbusGuard::TakeOver();
        SigbusGuard::TakeOver();
        const bool cut = ::ftruncate(fd.get(), 0) == 0;
        std::filesystem::remove_all(folder.path());
        if (!cut || CountOf(mapped.bytes(), std::byte{0}) != kPage) ::_exit(1);
        FaultElsewhere();
      },
      testing::ExitedWithCode(42), "");
}

TEST_F(BusErrorDeathTest, FaultElsewhereReachesThePlainHandlerBeforeOurs) {
  EXPECT_EXIT(
      {
        InstallBefore(
            +[](int) { ::_exit(42); }, 0);
        FaultElsewhere();
      },
      testing::ExitedWithCode(42), "");
}

TEST_F(BusErrorDeathTest, FaultElsewhereReachesTheInformedHandlerBeforeOurs) {
  EXPECT_EXIT(
      {
        InstallBefore(
            +[](int, siginfo_t* info, void*) { ::_exit(info->si_code == BUS_ADRERR ? 43 : 1); },
            SA_SIGINFO);
        FaultElsewhere();
      },
      testing::ExitedWithCode(43), "");
}

TEST_F(BusErrorDeathTest, IgnoredFaultElsewhereStillEndsTheProcess) {
  EXPECT_EXIT(
      {
        InstallBefore(SIG_IGN, 0);
        FaultElsewhere();
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(BusErrorDeathTest, SentSignalEndsTheProcessAsWithoutUs) {
  EXPECT_EXIT(
      {
        InstallBefore(SIG_DFL, 0);
        SendElsewhere();
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(BusErrorDeathTest, SentSignalIsNotTakenForALostPage) {
  EXPECT_EXIT(
      {
        InstallBefore(SIG_DFL, 0);
        SendWithAddress();
      },
      testing::KilledBySignal(SIGBUS), "");
}

TEST_F(BusErrorDeathTest, SentSignalIsIgnoredIfItWasBefore) {
  EXPECT_EXIT(
      {
        InstallBefore(SIG_IGN, 0);
        SendElsewhere();
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ffrecord
