// Goal: a reader over more files than a process may have open reads them all, and says which file
// it lost. Method: a child with a low limit of descriptors, over many names of a few files.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "child.h"
#include "seed.h"
#include "temp_folder.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AsString;

constexpr std::size_t kFileCount = 300;
constexpr std::size_t kRecordsPerFile = 3;

std::string Record(std::size_t kind, std::size_t record) {
  return "file kind " + std::to_string(kind) + " record " + std::to_string(record);
}

struct ManyFilesTest : testing::Test {
  ManyFilesTest() {
    constexpr std::size_t kKinds = 3;
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      std::vector<std::string> records;
      for (std::size_t record = 0; record < kRecordsPerFile; ++record)
        records.push_back(Record(kind, record));
      const test::TestFile file(records);
      for (std::size_t i = kind; i < kFileCount; i += kKinds)
        std::filesystem::copy_file(file.path(), PathOf(i));
    }
    for (std::size_t i = 0; i < kFileCount; ++i) paths.push_back(PathOf(i));
  }
  std::filesystem::path PathOf(std::size_t i) const { return folder / std::to_string(i); }
  static std::string Expected(std::uint64_t index) {
    return Record(index / kRecordsPerFile % 3, index % kRecordsPerFile);
  }

  static bool ReadsRight(const RecordReader& reader, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    for (int round = 0; round < 5; ++round) {
      std::vector<std::uint64_t> indices(400);
      for (auto& index : indices) index = random() % reader.record_count();
      const auto batch = reader.ReadBatch(indices);
      if (!batch) return false;
      for (std::size_t i = 0; i < indices.size(); ++i)
        if (AsString(batch.value().record(i)) != Expected(indices[i])) return false;
    }
    return true;
  }

  const test::TempFolder folder;
  std::vector<std::filesystem::path> paths;
};

int Limit() {
  const rlimit limit{96, 96};
  return ::setrlimit(RLIMIT_NOFILE, &limit);
}

TEST_F(ManyFilesTest, AreReadByManyThreadsUnderALowLimitWithEveryPolicy) {
  for (const IoPolicy io : {IoPolicy::kBuffered, IoPolicy::kDirect, IoPolicy::kAuto})
    EXPECT_EQ(test::RunInChild([&] {
                if (Limit() != 0) return 1;
                const auto reader = RecordReader::Open(paths, {.io = io});
                if (!reader) return 2;
                std::atomic<int> right{0};
                std::vector<std::thread> threads;
                for (unsigned i = 0; i < 4; ++i)
                  threads.emplace_back(
                      [&, i] { right += ReadsRight(reader.value(), test::Seed() + i) ? 1 : 0; });
                for (std::thread& thread : threads) thread.join();
                return right == 4 ? 0 : 3;
              }),
              0)
        << static_cast<int>(io);
}

// Without any descriptor, one range waits for one; neither the next file nor the next record does.
TEST_F(ManyFilesTest, WithoutDescriptorsAReaderWaitsOnce) {
  EXPECT_EQ(test::RunInChild([&] {
              using Clock = std::chrono::steady_clock;
              if (Limit() != 0) return 1;
              const auto reader = RecordReader::Open(paths, {.io = IoPolicy::kDirect}).value();
              const std::vector<std::uint64_t> indices{600, 603, 606, 700};
              if (!reader.ReadBatch(indices)) return 2;  // Their indexes are mapped from now on.
              if (!reader.ReadBatch(test::UpTo(300))) return 2;  // The other files are closed.
              const rlimit none{3, 96};
              ::setrlimit(RLIMIT_NOFILE, &none);
              const auto begin = Clock::now();
              const Batch batch = reader.ReadBatch(indices).value();
              for (const ErrorCode status : batch.statuses()) EXPECT_EQ(status, ErrorCode::kIo);
              const auto first = Clock::now() - begin;
              EXPECT_GT(first, std::chrono::seconds(4));
              EXPECT_LT(first, std::chrono::seconds(15));  // Not once for each record.
              const Batch again = reader.ReadBatch(indices).value();
              EXPECT_EQ(again.statuses()[0], ErrorCode::kIo);
              EXPECT_LT(Clock::now() - begin - first, first);
              const rlimit some{96, 96};
              ::setrlimit(RLIMIT_NOFILE, &some);
              return ReadsRight(reader, test::Seed()) ? 0 : 3;
            }),
            0);
}

TEST_F(ManyFilesTest, AReplacedOneSpoilsItsOwnRecordsAndIsNamed) {
  EXPECT_EQ(test::RunInChild([&] {
              if (Limit() != 0) return 1;
              const auto reader = RecordReader::Open(paths, {.io = IoPolicy::kDirect}).value();
              std::filesystem::copy_file(paths[0], folder / "other");
              std::filesystem::rename(folder / "other", paths[150]);
              std::filesystem::remove(paths[151]);
              // By then neither is open any more.
              if (!reader.ReadBatch(test::UpTo(300))) return 2;
              const std::vector<std::uint64_t> indices{449, 450, 453, 456};
              const Batch batch = reader.ReadBatch(indices).value();
              EXPECT_EQ(batch.statuses()[0], ErrorCode::kOk);
              EXPECT_EQ(batch.statuses()[1], ErrorCode::kCorruption);
              EXPECT_EQ(batch.statuses()[2], ErrorCode::kIo);
              EXPECT_EQ(batch.statuses()[3], ErrorCode::kOk);
              EXPECT_NE(reader.Describe(450, batch.statuses()[1]).find("another file has taken"),
                        std::string::npos);
              EXPECT_NE(reader.Describe(453, batch.statuses()[2]).find("No such file"),
                        std::string::npos);
              return 0;
            }),
            0);
}

}  // namespace
}  // namespace ffrecord
