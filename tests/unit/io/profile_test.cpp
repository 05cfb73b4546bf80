// Goal: a profile's file has every event that was recorded, in whatever process or thread, until
// newer ones take its place; what is not whole is recognised as such; nothing is written when it
// is off.
// Method: read the file as docs/internals/profile-format.md describes it, by code of the test's
// own, after threads, forked children and killed processes have written to it.

#include <ffrecord/profile.h>

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "child.h"
#include "child_threads.h"
#include "seed.h"
#include "temp_folder.h"

namespace ffrecord {
namespace {

using test::TempFolder;

constexpr std::size_t kOpenAt = 4096 + std::size_t{512} * 128;
constexpr std::size_t kRingsAt = kOpenAt + std::size_t{128} * 64;
const Profile::Options kSmall{.coarse_events = 64, .fine_events = 256};

struct Seen {
  std::vector<std::vector<std::uint64_t>> coarse, fine, open;
  std::size_t torn = 0;
  std::uint64_t coarse_count = 0, fine_count = 0;
  std::uint32_t has_ended = 0;
  std::string content;
};

std::uint64_t WordAt(const std::string& content, std::size_t at) {
  std::uint64_t word = 0;
  std::memcpy(&word, content.data() + at, sizeof(word));
  return word;
}

bool IsWhole(const std::vector<std::uint64_t>& words) {
  std::uint64_t check = 0;
  for (std::size_t i = 0; i < 7; ++i) check = (check ^ words[i]) * 0x9E3779B97F4A7C15;
  return check == words[7];
}

std::vector<std::uint64_t> SlotAt(const std::string& content, std::size_t at) {
  std::vector<std::uint64_t> words(8);
  std::memcpy(words.data(), content.data() + at, 64);
  return words;
}

Seen ReadProfile(const std::filesystem::path& path, const Profile::Options& options = kSmall) {
  Seen seen;
  seen.content = test::ReadFile(path);
  const std::string& content = seen.content;
  EXPECT_EQ(content.size(),
            kRingsAt + (std::size_t{options.coarse_events} + options.fine_events) * 64);
  EXPECT_EQ(content.substr(0, 8), "FFRPROF\n");
  seen.coarse_count = WordAt(content, 128);
  seen.fine_count = WordAt(content, 192);
  std::memcpy(&seen.has_ended, content.data() + 44, sizeof(seen.has_ended));
  const auto ring = [&](std::size_t at, std::size_t slots, std::uint64_t count, auto& events) {
    for (std::size_t i = 0; i < std::min<std::uint64_t>(slots, count); ++i) {
      const auto words = SlotAt(content, at + i * 64);
      if (words[0] != 0 && (words[0] - 1) % slots == i && IsWhole(words))
        events.push_back(words);
      else
        ++seen.torn;
    }
  };
  ring(kRingsAt, options.coarse_events, seen.coarse_count, seen.coarse);
  ring(kRingsAt + std::size_t{options.coarse_events} * 64, options.fine_events, seen.fine_count,
       seen.fine);
  for (std::size_t i = 0; i < 128; ++i)
    if (const auto words = SlotAt(content, kOpenAt + i * 64); words[0] == 1 && IsWhole(words))
      seen.open.push_back(words);
  return seen;
}

ProfileEvent EventOf(ProfileKind kind, std::uint64_t number) {
  ProfileEvent event;
  event.begin_ns = static_cast<std::int64_t>(number);
  event.end_ns = static_cast<std::int64_t>(number) + 5;
  event.size_bytes = number * 3;
  event.detail = number;
  event.first = static_cast<std::uint32_t>(number * 7);
  event.second = static_cast<std::uint32_t>(number * 11);
  event.kind = static_cast<std::uint16_t>(kind);
  return event;
}

// Whether no other event's words are in it.
bool IsConsistent(const std::vector<std::uint64_t>& words) {
  const std::uint64_t number = words[4];
  return words[1] == number && words[2] == number + 5 && words[3] == number * 3 &&
         static_cast<std::uint32_t>(words[5]) == static_cast<std::uint32_t>(number * 7) &&
         words[5] >> 32 == static_cast<std::uint32_t>(number * 11);
}

class ProfileTest : public testing::Test {
 protected:
  void TearDown() override { Profile::Close(); }

  TempFolder folder_;
  const std::filesystem::path path_ = folder_ / "a.ffrprof";
};

TEST_F(ProfileTest, RecordsNothingUntilItIsOpenedAndAfterItIsClosed) {
  EXPECT_FALSE(Profile::is_on());
  Profile::Record(EventOf(ProfileKind::kWait, 1));
  EXPECT_EQ(Profile::Begin(EventOf(ProfileKind::kWait, 1)), 0U);
  EXPECT_EQ(Profile::Name("daemon"), 0U);
  ASSERT_TRUE(Profile::Open(path_, kSmall));
  EXPECT_TRUE(Profile::is_on());
  EXPECT_EQ(ReadProfile(path_).has_ended, 0U);
  Profile::Close();
  Profile::Close();
  Profile::Record(EventOf(ProfileKind::kWait, 2));
  const Seen seen = ReadProfile(path_);
  EXPECT_EQ(seen.coarse_count, 0U);
  EXPECT_EQ(seen.has_ended, 1U);
}

TEST_F(ProfileTest, KeepsTheNewestEventsOfEachRing) {
  ASSERT_TRUE(Profile::Open(path_, kSmall));
  for (std::uint64_t i = 0; i < 1000; ++i) {
    Profile::Record(EventOf(ProfileKind::kRead, i));
    if (i % 20 == 0) Profile::Record(EventOf(ProfileKind::kOptimizer, i));
  }
  const Seen seen = ReadProfile(path_);
  EXPECT_EQ(seen.torn, 0U);
  EXPECT_EQ(seen.coarse.size(), 50U);  // The flood of the others has not reached them.
  ASSERT_EQ(seen.fine.size(), 256U);
  for (const auto& words : seen.fine) {
    EXPECT_TRUE(IsConsistent(words));
    EXPECT_GE(words[4], 1000U - 256U);
  }
}

TEST_F(ProfileTest, ThreadsShareARingWithoutMixingTheirEvents) {
  ASSERT_TRUE(Profile::Open(path_, kSmall));
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 8; ++t)
    threads.emplace_back([t] {
      for (std::uint64_t i = 0; i < 5000; ++i)
        Profile::Record(EventOf(ProfileKind::kDecode, t * 100'000 + i));
    });
  for (std::thread& thread : threads) thread.join();
  const Seen seen = ReadProfile(path_);
  EXPECT_EQ(seen.fine_count, 40'000U);
  // A thread that was overtaken by a whole round may have left a slot that two have written.
  EXPECT_GE(seen.fine.size(), 256U - 8U);
  for (const auto& words : seen.fine) EXPECT_TRUE(IsConsistent(words));
}

TEST_F(ProfileTest, ForkedChildrenWriteToTheFileOfTheirParentByThreadsOfTheirOwn) {
  ASSERT_TRUE(Profile::Open(path_, kSmall));
  Profile::Record(EventOf(ProfileKind::kWait, 1));
  const std::uint16_t before = Profile::Name("before");
  for (std::uint64_t child = 0; child < 3; ++child)
    EXPECT_EQ(test::RunInChild([&] {
                ProfileEvent event = EventOf(ProfileKind::kWait, 10 + child);
                event.name = Profile::Name("of a child " + std::to_string(child));
                Profile::Record(event);
                if (Profile::Name("before") != before) return 1;
                Profile::Close();
                return 0;
              }),
              0);
  Profile::Record(EventOf(ProfileKind::kWait, 2));
  const Seen seen = ReadProfile(path_);
  ASSERT_EQ(seen.coarse.size(), 5U);
  std::set<std::uint64_t> threads, names;
  for (const auto& words : seen.coarse) {
    EXPECT_TRUE(IsConsistent(words));
    threads.insert(words[6] >> 32);
    names.insert(words[6] >> 16 & 0xFFFF);
  }
  EXPECT_EQ(threads.size(), 4U);
  EXPECT_EQ(names.size(), 4U);  // None, and one for each child.
  EXPECT_EQ(seen.has_ended, 0U);
}

TEST_F(ProfileTest, AProcessThatIsKilledAnywhereLeavesWholeEventsAndSaysWhatItWasIn) {
  std::mt19937_64 random(test::Seed());
  for (int round = 0; round < 20; ++round) {
    const auto path = folder_ / std::to_string(round);
    int pipes[2];
    ASSERT_EQ(::pipe(pipes), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      if (!Profile::Open(path, kSmall)) ::_exit(1);
      static_cast<void>(Profile::Begin(EventOf(ProfileKind::kSave, 77)));
      static_cast<void>(::write(pipes[1], "x", 1));
      for (std::uint64_t i = 0;; ++i) Profile::Record(EventOf(ProfileKind::kRead, i));
    }
    char begun = 0;
    ASSERT_EQ(::read(pipes[0], &begun, 1), 1);
    // At a random point of its work, which only this thread knows.
    for (std::uint64_t spins = random() % 100'000; spins > 0; --spins)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    EXPECT_EQ(test::WaitForChild(child), -SIGKILL);
    ::close(pipes[0]);
    ::close(pipes[1]);
    const Seen seen = ReadProfile(path);
    EXPECT_LE(seen.torn, 1U);
    for (const auto& words : seen.fine) EXPECT_TRUE(IsConsistent(words));
    ASSERT_EQ(seen.open.size(), 1U);
    EXPECT_EQ(seen.open[0][4], 77U);
    EXPECT_EQ(seen.has_ended, 0U);
  }
}

TEST_F(ProfileTest, WhatHasBegunIsUnfinishedUntilItEnds) {
  ASSERT_TRUE(Profile::Open(path_, kSmall));
  std::vector<std::uint64_t> tokens;
  for (std::uint64_t i = 0; i < 130; ++i)
    tokens.push_back(Profile::Begin(EventOf(ProfileKind::kCollective, i)));
  EXPECT_EQ(tokens[128], 0U);  // There is no more room, and it is recorded all the same.
  EXPECT_EQ(ReadProfile(path_).open.size(), 128U);
  for (std::uint64_t i = 0; i < tokens.size(); ++i)
    Profile::End(tokens[i], EventOf(ProfileKind::kCollective, i));
  const Seen seen = ReadProfile(path_);
  EXPECT_EQ(seen.open.size(), 0U);
  EXPECT_EQ(seen.coarse_count, 130U);
}

TEST_F(ProfileTest, ATokenOfAnEarlierProfileEndsNothingOfThisOne) {
  ASSERT_TRUE(Profile::Open(path_, kSmall));
  const std::uint64_t token = Profile::Begin(EventOf(ProfileKind::kSave, 1));
  const auto other = folder_ / "b";
  ASSERT_TRUE(Profile::Open(other, kSmall));
  EXPECT_NE(Profile::Begin(EventOf(ProfileKind::kLoad, 2)), 0U);
  Profile::End(token, EventOf(ProfileKind::kSave, 1));
  EXPECT_EQ(ReadProfile(other).open.size(), 1U);
  EXPECT_EQ(ReadProfile(path_).has_ended, 1U);
}

TEST_F(ProfileTest, ThreadsMayRecordWhileProfilesAreOpenedAndClosed) {
  std::atomic<bool> is_over = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (std::uint64_t i = 0; !is_over; ++i) {
        const std::uint64_t token = Profile::Begin(EventOf(ProfileKind::kSave, i));
        Profile::Record(EventOf(ProfileKind::kRead, i));
        Profile::End(token, EventOf(ProfileKind::kSave, i));
      }
    });
  for (int round = 0; round < 30; ++round) {
    ASSERT_TRUE(Profile::Open(folder_ / std::to_string(round), kSmall));
    Profile::Name("name " + std::to_string(round));
    if (round % 3 == 0) Profile::Close();
  }
  is_over = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ProfileTest, NamesKeepTheirEndAndHaveABound) {
  ASSERT_TRUE(Profile::Open(path_, kSmall));
  const std::string deep = std::string(500, 'd') + "/file.ffr";
  EXPECT_EQ(Profile::Name(deep), 1U);
  EXPECT_EQ(Profile::Name(deep), 1U);
  EXPECT_EQ(Profile::Name(""), 0U);
  for (std::uint32_t i = 2; i <= 512; ++i) EXPECT_EQ(Profile::Name(std::to_string(i)), i);
  EXPECT_EQ(Profile::Name("one too many"), 0U);
  const std::string content = test::ReadFile(path_);
  EXPECT_EQ(content[4096], 126);
  EXPECT_EQ(content.substr(4096 + 2, 126), deep.substr(deep.size() - 126));
}

TEST_F(ProfileTest, RefusesFilesThatItCannotWriteOrThatAreNoProfiles) {
  EXPECT_EQ(Profile::Open(folder_ / "no" / "such", kSmall).error().code, ErrorCode::kIo);
  test::WriteFile(path_, "something else");
  EXPECT_EQ(Profile::Open(path_, kSmall).error().system_errno, EEXIST);
  EXPECT_EQ(Profile::Attach(path_).error().code, ErrorCode::kCorruption);
  EXPECT_EQ(Profile::Attach(folder_ / "none").error().code, ErrorCode::kIo);
  EXPECT_EQ(Profile::Open(folder_ / "x", {.coarse_events = 0}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(Profile::is_on());
}

TEST_F(ProfileTest, AProfileThatCannotBeOpenedLeavesTheOneThatIsOn) {
  ASSERT_TRUE(Profile::Open(path_, kSmall));
  EXPECT_FALSE(Profile::Open(folder_ / "no" / "such", kSmall));
  EXPECT_TRUE(Profile::is_on());
  Profile::Record(EventOf(ProfileKind::kWait, 1));
  EXPECT_EQ(ReadProfile(path_).coarse.size(), 1U);
}

TEST_F(ProfileTest, AnotherProcessThatAttachesWritesToTheSameFile) {
  ASSERT_TRUE(Profile::Open(path_, kSmall));
  EXPECT_EQ(test::RunInChild([&] {
              if (!Profile::Attach(path_)) return 1;
              Profile::Record(EventOf(ProfileKind::kDecode, 5));
              Profile::Close();
              return 0;
            }),
            0);
  const Seen seen = ReadProfile(path_);
  EXPECT_EQ(seen.fine_count, 1U);
  EXPECT_EQ(seen.has_ended, 0U);
}

TEST_F(ProfileTest, AFileThatIsCutOffUnderItLosesEventsAndEndsNothing) {
  // Its atomic operations fault while they hold a lock that those of the handler need.
  if (!test::kChildMayHaveThreads) GTEST_SKIP() << "ThreadSanitizer";
  ASSERT_TRUE(Profile::Open(path_, kSmall));
  std::filesystem::resize_file(path_, 0);
  for (std::uint64_t i = 0; i < 1000; ++i) Profile::Record(EventOf(ProfileKind::kRead, i));
  EXPECT_TRUE(Profile::is_on());
}

}  // namespace
}  // namespace ffrecord
