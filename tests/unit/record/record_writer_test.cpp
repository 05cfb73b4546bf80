// Goal: a writer leaves a whole file or none, in constant memory, and says what it refuses.
// Method: writers discarded, killed, failed at each request in turn; summaries against readers.

#include <ffrecord/record_writer.h>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>

#include "child.h"
#include "faulty_engine.h"
#include "killing_engine.h"
#include "libffrecord/format/fingerprint.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AsBytes;
using test::OpenOne;
using test::TempFolder;
using test::TestFile;

TEST(RecordWriterTest, SummaryIsThatOfTheFile) {
  const TempFolder folder;
  auto writer = RecordWriter::Create(folder / "a.ffr", {}, {}).value();
  ASSERT_TRUE(writer.Write(AsBytes("abc")));
  ASSERT_TRUE(writer.Write({}));
  EXPECT_EQ(writer.record_count(), 2U);
  const WriteSummary summary = writer.Close().value();

  FingerprintChain chain({});
  chain.Add(AsBytes("abc"));
  chain.Add({});
  EXPECT_EQ(summary.record_count, 2U);
  EXPECT_EQ(summary.raw_size_bytes, 3U);
  EXPECT_EQ(summary.file_size_bytes, std::filesystem::file_size(folder / "a.ffr"));
  EXPECT_EQ(summary.fingerprint, chain.digest());
  EXPECT_EQ(OpenOne(folder / "a.ffr").value().file(0).fingerprint, chain.digest());
}

// What was given as a path is looked up once: the process may move on, and so may the folder.
TEST(RecordWriterTest, FileIsThatOfTheFolderInWhichItWasBegun) {
  const TempFolder folder;
  const auto close = [&](int version) {
    std::filesystem::create_directory(folder / "a");
    std::filesystem::current_path(folder / "a");
    const std::string name = std::to_string(version) + ".ffr";
    const auto finish = [&](auto writer) {
      if (!writer || !writer.value().Write(AsBytes("abc"))) return 1;
      std::filesystem::current_path("/");
      std::filesystem::rename(folder / "a", folder / ("moved" + name));
      const auto summary = writer.value().Close();
      if (!summary) return 2;
      const auto reader = OpenOne(folder / ("moved" + name) / name);
      return reader && reader.value().file(0).fingerprint == summary.value().fingerprint ? 0 : 3;
    };
    return version == 1 ? finish(V1Writer::Create(name, 1, false))
                        : finish(RecordWriter::Create(name, {}, {}));
  };
  for (const int version : {1, 2})
    EXPECT_EQ(test::RunInChild([&] { return close(version); }), 0) << version;
}

TEST(RecordWriterTest, FingerprintDoesNotDependOnTheForm) {
  std::mt19937_64 random(test::Seed());
  std::vector<std::string> records;
  for (int i = 0; i < 500; ++i) records.push_back(std::string(random() % 3000, 'f'));
  RecordWriter::Options zstd;
  zstd.compress = true;
  zstd.alignment_bytes = 512;
  const TempFolder folder;
  const auto plain = test::WriteRecords(folder / "a.ffr", records);
  const auto packed = test::WriteRecords(folder / "b.ffr", records, {.writer = zstd});
  EXPECT_EQ(plain.fingerprint, packed.fingerprint);
  EXPECT_LT(packed.file_size_bytes, plain.file_size_bytes + (1 << 20));
}

TEST(RecordWriterTest, TwoFilesOfTheSameRecordsHaveTwoIds) {
  const TempFolder folder;
  for (const char* name : {"a.ffr", "b.ffr"}) {
    auto writer = RecordWriter::Create(folder / name, {}, {}).value();
    ASSERT_TRUE(writer.Write(AsBytes("abc")));
    ASSERT_TRUE(writer.Close());
  }
  EXPECT_NE(test::ReadFile(folder / "a.ffr"), test::ReadFile(folder / "b.ffr"));
}

TEST(RecordWriterTest, FieldsBecomeRecords) {
  const TempFolder folder;
  const Schema schema =
      Schema::Make({{"x", ColumnType::kU16}, {"text", ColumnType::kUtf8}}).value();
  auto writer = RecordWriter::Create(folder / "a.ffr", schema, {}).value();
  const std::array<std::span<const std::byte>, 2> good{AsBytes("xy"), AsBytes("text")};
  const std::array<std::span<const std::byte>, 2> bad{AsBytes("x"), AsBytes("text")};
  ASSERT_TRUE(writer.WriteFields(good));
  EXPECT_EQ(writer.WriteFields(bad).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(writer.Write(AsBytes("x")).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(writer.Write(AsBytes("zw")));  // What was refused does no harm.
  ASSERT_TRUE(writer.Close());
  const auto reader = OpenOne(folder / "a.ffr").value();
  EXPECT_EQ(test::ReadAll(reader), (std::vector<std::string>{"xytext", "zw"}));
  EXPECT_EQ(reader.schema(), schema);
}

TEST(RecordWriterTest, FoolishOptionsAreRefused) {
  const TempFolder folder;
  RecordWriter::Options options;
  options.alignment_bytes = 8;
  EXPECT_EQ(RecordWriter::Create(folder / "a.ffr", {}, options).error().code,
            ErrorCode::kInvalidArgument);
  options = {.compress = true, .compression_level = 20};
  EXPECT_EQ(RecordWriter::Create(folder / "a.ffr", {}, options).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(V1Writer::Create(folder / "a.ffr", kRecordCountMax, false).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(folder.entry_count(), 0U);
}

TEST(RecordWriterTest, DiscardedWriterLeavesNothing) {
  const TempFolder folder;
  {
    auto writer = RecordWriter::Create(folder / "a.ffr", {}, {}).value();
    auto v1 = V1Writer::Create(folder / "b.ffr", 2, false).value();
    ASSERT_TRUE(writer.Write(AsBytes("abc")));
    ASSERT_TRUE(v1.Write(AsBytes("abc")));
  }
  EXPECT_EQ(folder.entry_count(), 0U);
}

TEST(RecordWriterTest, ExistingFileIsReplacedOnlyOnRequest) {
  const TempFolder folder;
  test::WriteFile(folder / "a.ffr", "old");
  EXPECT_EQ(RecordWriter::Create(folder / "a.ffr", {}, {}).error().code, ErrorCode::kConflict);
  EXPECT_EQ(V1Writer::Create(folder / "a.ffr", 0, false).error().code, ErrorCode::kConflict);
  auto writer = RecordWriter::Create(folder / "a.ffr", {}, {.replace = true}).value();
  EXPECT_EQ(test::ReadFile(folder / "a.ffr"), "old");
  ASSERT_TRUE(writer.Close());
  EXPECT_EQ(OpenOne(folder / "a.ffr").value().record_count(), 0U);
}

// It would write over the bytes of its parent, and give the file its name.
TEST(RecordWriterTest, AForkedChildDoesNotGoOnWithWhatItsParentWrites) {
  const TempFolder folder;
  const TestFile old({"a"});
  std::array writers{RecordWriter::Create(folder / "a.ffr", {}, {}).value(),
                     RecordWriter::Append(old.path(), {}).value()};
  for (RecordWriter& writer : writers) {
    ASSERT_TRUE(writer.Write(AsBytes("b")));
    const int status = test::RunInChild([&] {
      const auto written = writer.Write(AsBytes("child"));
      if (written || written.error().code != ErrorCode::kInvalidArgument) return 1;
      return writer.Close() ? 2 : 0;
    });
    EXPECT_EQ(status, 0);
    ASSERT_TRUE(writer.Write(AsBytes("c")));
    ASSERT_TRUE(writer.Close());
  }

  EXPECT_EQ(test::ReadAll(OpenOne(folder / "a.ffr").value()), (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(test::ReadAll(OpenOne(old.path()).value()), (std::vector<std::string>{"a", "b", "c"}));
}

TEST(RecordWriterTest, ClosedWriterRefusesEverything) {
  const TempFolder folder;
  auto writer = RecordWriter::Create(folder / "a.ffr", {}, {}).value();
  ASSERT_TRUE(writer.Close());
  EXPECT_EQ(writer.Write({}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(writer.Close().error().code, ErrorCode::kInvalidArgument);
}

TEST(V1WriterTest, DeclaredCountIsKept) {
  const TempFolder folder;
  auto writer = V1Writer::Create(folder / "a.ffr", 2, false).value();
  ASSERT_TRUE(writer.Write(AsBytes("a")));
  const auto early = writer.Close();
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(early.error().message.find("only 1 of 2"), std::string::npos);
  EXPECT_EQ(folder.entry_count(), 0U);
  ASSERT_TRUE(writer.Write(AsBytes("b")));
  EXPECT_EQ(writer.Write(AsBytes("c")).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(writer.Close());
  EXPECT_EQ(test::ReadAll(OpenOne(folder / "a.ffr").value()), (std::vector<std::string>{"a", "b"}));
}

TEST(V1WriterTest, TablesLargerThanWhatIsKeptInMemoryAreRight) {
  // More than two flushes of 65,536 entries.
  std::vector<std::string> records;
  for (int i = 0; i < 150'000; ++i) records.push_back(i % 3 == 0 ? "" : std::to_string(i));
  const test::TestFile file(records, {.version = 1});
  const auto reader = OpenOne(file.path()).value();
  EXPECT_EQ(test::ReadAll(reader), records);
  EXPECT_EQ(reader.file(0).fingerprint, file.summary().fingerprint);
}

// Writes 6 MB, several of the writer's pieces, with `engine`. True if Close() succeeded.
bool WriteWith(const std::filesystem::path& path, int version, std::unique_ptr<IoEngine> engine) {
  const std::string record(300'000, 'w');
  const auto all = [&](auto writer) {
    if (!writer) return false;
    bool failed = false;
    for (int i = 0; i < 20; ++i) {
      const auto written = writer.value().Write(AsBytes(record));
      EXPECT_FALSE(failed && written) << "a failed writer goes on";
      failed = failed || !written;
    }
    const auto closed = writer.value().Close();
    EXPECT_FALSE(failed && closed) << "a failed writer publishes";
    return bool(closed);
  };
  if (version == 1) return all(CreateV1Writer(path, 20, true, std::move(engine)));
  WriterInternals internals;
  internals.engine = std::move(engine);
  return all(CreateRecordWriter(path, {}, {.replace = true}, std::move(internals)));
}

TEST(FailingDiskTest, EveryFailureIsReportedAndTheOldFileSurvives) {
  for (const int version : {1, 2})
    for (const int fault : {-ENOSPC, -EIO}) {
      const TempFolder folder;
      test::WriteFile(folder / "a.ffr", "old");
      const auto failures = test::ForEachFailure(
          {}, fault, false, [&](std::unique_ptr<IoEngine> engine, const auto& was_hit) {
            const bool closed = WriteWith(folder / "a.ffr", version, std::move(engine));
            EXPECT_EQ(closed, !was_hit());
            if (closed) {
              EXPECT_EQ(OpenOne(folder / "a.ffr").value().record_count(), 20U);
            } else {
              EXPECT_EQ(test::ReadFile(folder / "a.ffr"), "old");
            }
            EXPECT_EQ(folder.entry_count(), 1U);
          });
      EXPECT_GE(failures, 4U);  // Three writes and a sync at least.
    }
}

TEST(FailingDiskTest, ShortTransfersAreContinued) {
  for (const int version : {1, 2}) {
    const TempFolder folder;
    test::Faults faults;
    faults.short_transfer_unit_bytes = 4096;
    faults.disorder = true;
    faults.seed = test::Seed();
    ASSERT_TRUE(WriteWith(
        folder / "a.ffr", version,
        std::make_unique<test::FaultyEngine>(MakeIoEngine(kThreadEngineDepth).value(), faults)));
    const auto records = test::ReadAll(OpenOne(folder / "a.ffr").value());
    EXPECT_EQ(records, std::vector<std::string>(20, std::string(300'000, 'w')));
  }
}

TEST(KilledWriterTest, LeavesAWholeFileOrNone) {
  std::mt19937_64 random(test::Seed());
  int whole = 0;
  for (int round = 0; round < 100; ++round) {
    const TempFolder folder;
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const int version = 1 + round % 2;
      auto engine = round % 4 < 2 ? MakeThreadsEngine(8) : MakeIoEngine(8);
      ::_exit(WriteWith(folder / "a.ffr", version, std::move(engine).value()) ? 0 : 1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    if (!std::filesystem::exists(folder / "a.ffr")) continue;
    ++whole;
    const auto reader = OpenOne(folder / "a.ffr");
    ASSERT_TRUE(reader) << reader.error().message;
    EXPECT_EQ(test::ReadAll(reader.value()).size(), 20U);
  }
  std::cout << whole << " of 100 were done before the kill" << std::endl;
}

TEST(KilledWriterTest, EveryWriteAndSyncLeavesTheOldFile) {
  using Moment = test::KillingEngine::Moment;
  struct Case {
    int version;
    Moment moment;
  };
  for (const Case& one : {Case{1, Moment::kInFlight}, Case{2, Moment::kBefore},
                          Case{2, Moment::kInFlight}, Case{2, Moment::kAfter}}) {
    std::uint64_t nth = 1;
    for (bool is_killed = true; is_killed; ++nth) {
      const TempFolder folder;
      test::WriteFile(folder / "a.ffr", "old");
      const int status = test::RunInChild([&] {
        auto engine =
            std::make_unique<test::KillingEngine>(MakeThreadsEngine(8).value(), nth, one.moment);
        return WriteWith(folder / "a.ffr", one.version, std::move(engine)) ? 0 : 1;
      });
      is_killed = status == -SIGKILL;
      ASSERT_TRUE(is_killed || status == 0) << status;
      if (is_killed)
        EXPECT_EQ(test::ReadFile(folder / "a.ffr"), "old");
      else
        EXPECT_EQ(test::ReadAll(OpenOne(folder / "a.ffr").value()).size(), 20U);
    }
    EXPECT_GT(nth, 4U);  // Three writes and a sync at least.
  }
}

TEST(WriterMemoryTest, DoesNotGrowWithTheNumberOfRecords) {
  const TempFolder folder;
  auto v1 = V1Writer::Create(folder / "1.ffr", 1'000'000, false).value();
  auto v2 = RecordWriter::Create(folder / "2.ffr", {}, {}).value();
  const auto write = [&](int count) {
    for (int i = 0; i < count; ++i) {
      ASSERT_TRUE(v1.Write(AsBytes("record")));
      ASSERT_TRUE(v2.Write(AsBytes("record")));
    }
  };
  write(200'000);
  rusage before{};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &before), 0);
  write(800'000);
  rusage after{};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &after), 0);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 4 << 10);  // KiB; the tables have 12 MB.
  ASSERT_TRUE(v1.Close());
  ASSERT_TRUE(v2.Close());
}

}  // namespace
}  // namespace ffrecord
