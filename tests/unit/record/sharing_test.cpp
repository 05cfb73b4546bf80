// Goal: one reader serves many threads and, after fork, many processes.
// Method: readers used by threads at once, and by a parent and its children in every order.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AsString;

std::vector<std::string> Records() {
  std::vector<std::string> records;
  for (std::size_t i = 0; i < 2000; ++i)
    records.push_back(std::string(i % 700, static_cast<char>(i)));
  return records;
}

// Reads random batches; false if anything is not as it was written.
bool ReadsRight(const RecordReader& reader, const std::vector<std::string>& records,
                std::uint64_t seed, int rounds) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::uint64_t> indices(1 + random() % 64);
    for (auto& index : indices) index = random() % records.size();
    const auto batch = reader.ReadBatch(indices);
    if (!batch) return false;
    for (std::size_t i = 0; i < indices.size(); ++i)
      if (AsString(batch.value().record(i)) != records[indices[i]]) return false;
  }
  return true;
}

TEST(ThreadsTest, ManyReadWithOneReader) {
  const auto records = Records();
  for (const int version : {1, 2}) {
    const test::TestFile file(records, {.version = version, .pages_per_segment = 1});
    const auto reader = test::OpenOne(file.path()).value();
    const std::uint64_t seed = test::Seed();
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        if (!ReadsRight(reader, records, seed + t, 50)) ++wrong;
      });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
  }
}

// Runs `work` in a child; true if it returned true.
template <class Work>
bool InChild(Work work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work() ? 0 : 1);
  int status = -1;
  return child > 0 && ::waitpid(child, &status, 0) == child && WIFEXITED(status) &&
         WEXITSTATUS(status) == 0;
}

TEST(ForkTest, ParentAndChildrenGoOnReading) {
  const auto records = Records();
  for (const int version : {1, 2})
    for (const IoPolicy io : {IoPolicy::kBuffered, IoPolicy::kDirect}) {
      const test::TestFile file(records, {.version = version});
      const auto reader = test::OpenOne(file.path(), {.io = io}).value();
      ASSERT_TRUE(ReadsRight(reader, records, 1, 3));
      for (int child = 0; child < 3; ++child) {
        EXPECT_TRUE(InChild([&] {
          return ReadsRight(reader, records, 2, 10) &&
                 InChild([&] { return ReadsRight(reader, records, 3, 10); });
        }));
        EXPECT_TRUE(ReadsRight(reader, records, 4, 3));
      }
    }
}

TEST(ForkTest, ReaderUnusedBeforeTheForkWorksInBoth) {
  const auto records = Records();
  const test::TestFile file(records);
  const auto reader = test::OpenOne(file.path()).value();
  EXPECT_TRUE(InChild([&] { return ReadsRight(reader, records, 1, 10); }));
  EXPECT_TRUE(ReadsRight(reader, records, 1, 10));
}

TEST(ForkTest, WhileOtherThreadsReadTheChildIsNotStuck) {
  const auto records = Records();
  const test::TestFile file(records, {.pages_per_segment = 1});
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      // Opens anew each time, so that children are born while indexes are being fetched.
      while (!stop) {
        const auto reader = test::OpenOne(file.path()).value();
        ReadsRight(reader, records, t, 3);
      }
    });
  const auto reader = test::OpenOne(file.path()).value();
  for (int child = 0; child < 30; ++child)
    EXPECT_TRUE(InChild([&] {
      ::alarm(60);  // A child that is stuck dies of it.
      return ReadsRight(reader, records, 5, 3);
    }));
  stop = true;
  for (auto& thread : threads) thread.join();
}

TEST(ScarcityTest, TwoHundredReadersAtOnce) {
  const auto records = Records();
  const test::TestFile file(records);
  std::vector<RecordReader> readers;
  for (int i = 0; i < 200; ++i) readers.push_back(test::OpenOne(file.path()).value());
  for (std::uint64_t i = 0; i < readers.size(); ++i)
    EXPECT_TRUE(ReadsRight(readers[i], records, i, 1));
}

TEST(ScarcityTest, DescriptorsAreNotInheritedByOtherPrograms) {
  const test::TestFile file({"a"});
  const auto reader = test::OpenOne(file.path(), {.io = IoPolicy::kDirect}).value();
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // The folder's own descriptor.
    if (std::filesystem::read_symlink(entry.path(), gone) != file.path()) continue;
    ++found;
    const int fd = std::stoi(entry.path().filename());
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_GE(found, 1);
}

}  // namespace
}  // namespace ffrecord
