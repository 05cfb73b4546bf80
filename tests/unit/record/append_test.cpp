// Goal: a file that is extended is at every moment the file of its last commit, for readers that
// have it open and for those that come, and in the end the file that one writer would have made.
// Method: records in random portions against the same records at once; every request to the disk
// failed in turn; every cut of the file; appenders that go away.

#include <ffrecord/repair.h>

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "appends.h"
#include "child.h"
#include "faulty_engine.h"
#include "killing_engine.h"
#include "libffrecord/record/check/verify_source.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/source/local_files.h"
#include "memory_files.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::Append;
using test::AsBytes;
using test::ExpectWhole;
using test::KillAppend;
using test::Numbers;
using test::OpenOne;
using test::Records;
using test::TempFolder;
using test::TestFile;
using test::TestFileOptions;

TEST(AppendTest, PortionsMakeTheFileThatOneWriterMakes) {
  std::mt19937_64 random(test::Seed());
  const Schema schema =
      Schema::Make({{"x", ColumnType::kU16}, {"text", ColumnType::kBytes}}).value();
  RecordWriter::Options aligned;
  aligned.alignment_bytes = 512;
  RecordWriter::Options zstd;
  zstd.compress = true;
  for (const TestFileOptions& options :
       {TestFileOptions{.pages_per_segment = 1}, TestFileOptions{.schema = schema},
        TestFileOptions{.writer = aligned, .pages_per_segment = 2},
        TestFileOptions{.writer = zstd, .pages_per_segment = 1}}) {
    Records all;
    for (int i = 0; i < 900; ++i) all.push_back(std::string(2 + random() % 90, 'a'));
    const std::size_t first = random() % 400;
    const TestFile file({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first)}, options);
    WriteSummary summary = file.summary();
    for (std::size_t begin = first; begin < all.size();) {
      const std::size_t end = std::min(all.size(), begin + 1 + random() % 250);
      summary = Append(file.path(), {all.begin() + static_cast<std::ptrdiff_t>(begin),
                                     all.begin() + static_cast<std::ptrdiff_t>(end)});
      EXPECT_EQ(summary.record_count, end);
      begin = end;
    }
    const TestFile at_once(all, options);
    const auto reader = OpenOne(file.path()).value();
    EXPECT_EQ(test::ReadAll(reader), all);
    EXPECT_EQ(reader.schema(), options.schema);
    EXPECT_EQ(reader.file(0).fingerprint, at_once.summary().fingerprint);
    EXPECT_EQ(summary.fingerprint, at_once.summary().fingerprint);
    EXPECT_EQ(summary.raw_size_bytes, at_once.summary().raw_size_bytes);
    EXPECT_EQ(summary.file_size_bytes, std::filesystem::file_size(file.path()));
    EXPECT_TRUE(reader.file(0).warnings.empty());
    ExpectWhole(file.path());
  }
}

TEST(AppendTest, SegmentsThatAreJustFullAreNotReplaced) {
  for (const int first : {0, 169, 170, 171, 340}) {
    const TestFile file(Numbers(0, first), {.pages_per_segment = 1});
    Append(file.path(), Numbers(first, 340));
    Append(file.path(), Numbers(340, 341));
    EXPECT_EQ(test::ReadAll(OpenOne(file.path()).value()), Numbers(0, 341));
    ExpectWhole(file.path());
  }
}

TEST(AppendTest, NothingBelowTheOldSizeIsWrittenAgain) {
  const TestFile file(Numbers(0, 500), {.pages_per_segment = 1});
  const std::string before = test::ReadFile(file.path());
  Append(file.path(), Numbers(500, 600));
  EXPECT_EQ(test::ReadFile(file.path()).substr(0, before.size()), before);
}

TEST(AppendTest, OfNothingLeavesTheFileAlone) {
  const TestFile file(Numbers(0, 5));
  const std::string before = test::ReadFile(file.path());
  const WriteSummary summary = Append(file.path(), {});
  EXPECT_EQ(summary.file_size_bytes, before.size());
  EXPECT_EQ(summary.fingerprint, file.summary().fingerprint);
  EXPECT_TRUE(test::ReadFile(file.path()) == before);
}

TEST(AppendTest, ReadersKeepTheirViewAndOthersSeeTheLastCommit) {
  const TestFile file(Numbers(0, 300), {.pages_per_segment = 1});
  const auto before = OpenOne(file.path()).value();
  auto writer = RecordWriter::Append(file.path(), {}).value();
  for (const std::string& record : Numbers(300, 400)) ASSERT_TRUE(writer.Write(AsBytes(record)));
  ASSERT_TRUE(writer.Commit());
  ASSERT_TRUE(writer.Commit());  // Nothing is new.
  const auto between = OpenOne(file.path()).value();
  for (const std::string& record : Numbers(400, 500)) ASSERT_TRUE(writer.Write(AsBytes(record)));
  EXPECT_EQ(OpenOne(file.path()).value().record_count(), 400U);
  ASSERT_TRUE(writer.Close());

  EXPECT_EQ(test::ReadAll(before), Numbers(0, 300));
  EXPECT_EQ(test::ReadAll(between), Numbers(0, 400));
  EXPECT_EQ(test::ReadAll(OpenOne(file.path()).value()), Numbers(0, 500));
  ExpectWhole(file.path());
}

TEST(AppendTest, CommitsComeByThemselves) {
  const TestFile file({"first"});
  RecordWriter::AppendOptions options;
  options.commit_interval_bytes = 1 << 20;
  auto writer = RecordWriter::Append(file.path(), options).value();
  std::uint64_t seen = 1;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(writer.Write(AsBytes(std::string(100'000, 'x'))));
    const auto reader = OpenOne(file.path()).value();
    EXPECT_GE(reader.record_count(), seen);
    EXPECT_GE(reader.record_count() + 11, writer.record_count());  // 1 MiB, and one that is full.
    seen = reader.record_count();
  }
  EXPECT_GT(seen, 80U);
  ASSERT_TRUE(writer.Write(AsBytes(std::string(3 << 20, 'y'))));  // Never within a record.
  ASSERT_TRUE(writer.Close());
  EXPECT_EQ(OpenOne(file.path()).value().record_count(), 102U);
  ExpectWhole(file.path());
}

TEST(AppendTest, AppendThatIsGivenUpLeavesTheFileAsOfItsLastCommit) {
  const TestFile file(Numbers(0, 10));
  std::string committed = test::ReadFile(file.path());
  for (const bool commits : {false, true}) {
    {
      auto writer = RecordWriter::Append(file.path(), {}).value();
      for (int i = 0; i < 30; ++i) ASSERT_TRUE(writer.Write(AsBytes(std::string(100'000, 'x'))));
      if (commits) {
        ASSERT_TRUE(writer.Commit());
        committed = test::ReadFile(file.path());
        for (int i = 0; i < 30; ++i) ASSERT_TRUE(writer.Write(AsBytes(std::string(100'000, 'y'))));
      }
      ASSERT_GT(std::filesystem::file_size(file.path()), committed.size());
    }
    EXPECT_TRUE(test::ReadFile(file.path()) == committed);
    ExpectWhole(file.path());
  }
  EXPECT_EQ(OpenOne(file.path()).value().record_count(), 40U);
}

TEST(AppendTest, ChildOfAWriterThatEndsCutsNothingOff) {
  const TestFile file(Numbers(0, 10));
  auto writer = std::make_unique<RecordWriter>(RecordWriter::Append(file.path(), {}).value());
  for (int i = 0; i < 30; ++i) ASSERT_TRUE(writer->Write(AsBytes(std::string(100'000, 'x'))));
  const int status = test::RunInChild([&] {
    writer.reset();
    return 0;
  });
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(writer->Close());
  EXPECT_EQ(OpenOne(file.path()).value().record_count(), 40U);
  ExpectWhole(file.path());
}

// What another program can do to a file that is appended to, and what the file holds then.
struct Meddling {
  std::string name;
  void (*meddle)(const std::filesystem::path& path, const std::string& other);
  bool is_there = true;
};

TEST(AppendTest, FileThatIsNoLongerItsOwnIsNoticedBeforeACommitIsReported) {
  const TestFile other(Numbers(100, 300));
  const std::string other_content = test::ReadFile(other.path());
  const Meddling kinds[] = {
      {"deleted", [](const auto& path, const auto&) { std::filesystem::remove(path); }, false},
      {"renamed",
       [](const auto& path, const auto&) {
         std::filesystem::rename(path, path.string() + ".moved");
       },
       false},
      {"replaced",
       [](const auto& path, const std::string& content) {
         test::WriteFile(path.string() + ".new", content);
         std::filesystem::rename(path.string() + ".new", path);
       }},
      {"written over",
       [](const auto& path, const std::string& content) { test::WriteFile(path, content); }}};
  for (const Meddling& kind : kinds)
    for (const bool after_a_commit : {false, true}) {
      SCOPED_TRACE(kind.name + (after_a_commit ? ", after a commit" : ""));
      const TestFile file(Numbers(0, 10));
      {
        auto writer = RecordWriter::Append(file.path(), {}).value();
        if (after_a_commit) {
          ASSERT_TRUE(writer.Write(AsBytes("first")));
          ASSERT_TRUE(writer.Commit());
        }
        ASSERT_TRUE(writer.Write(AsBytes("lost")));
        kind.meddle(file.path(), other_content);
        const auto committed = writer.Commit();
        ASSERT_FALSE(committed);
        EXPECT_EQ(committed.error().code, ErrorCode::kConflict);
        EXPECT_NE(committed.error().message.find("another program"), std::string::npos);
        EXPECT_FALSE(writer.Close());
      }
      EXPECT_EQ(std::filesystem::exists(file.path()), kind.is_there);
      if (kind.name == "replaced") {
        EXPECT_TRUE(test::ReadFile(file.path()) == other_content);
      }
    }
}

TEST(AppendTest, ProcessMayChangeItsFolderMeanwhile) {
  const TestFile file(Numbers(0, 10));
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(file.path().parent_path());
  auto writer = RecordWriter::Append(file.path().filename(), {}).value();
  std::filesystem::current_path(before);
  ASSERT_TRUE(writer.Write(AsBytes("more")));
  EXPECT_TRUE(writer.Close());
}

TEST(AppendTest, EveryCutOpensTheNewestCommitBelowIt) {
  const TestFile file(Numbers(0, 180), {.pages_per_segment = 1});
  std::vector<std::pair<std::size_t, std::uint64_t>> commits{
      {std::filesystem::file_size(file.path()), 180}};
  for (int end = 200; end < 400; end += 65) {
    Append(file.path(), Numbers(static_cast<int>(commits.back().second), end));
    commits.emplace_back(std::filesystem::file_size(file.path()), end);
  }
  const std::string content = test::ReadFile(file.path());
  for (std::size_t size = 0; size <= content.size(); ++size) {
    const auto part = test::InMemory(content.substr(0, size));
    const auto reader = OpenRecords(part, {});
    const auto after = std::find_if(commits.begin(), commits.end(),
                                    [&](const auto& commit) { return commit.first > size; });
    ASSERT_EQ(bool(reader), after != commits.begin()) << size;
    if (!reader) continue;
    const auto& newest = *std::prev(after);
    ASSERT_EQ(reader.value().record_count(), newest.second) << size;
    EXPECT_EQ(reader.value().file(0).warnings.size(), newest.first < size ? 1U : 0U);
    if (size % 4096 != 0) continue;
    EXPECT_EQ(test::ReadAll(reader.value()), Numbers(0, static_cast<int>(newest.second)));
    EXPECT_EQ(VerifySource(*part).value().whole(), newest.first == size);
  }
}

TEST(AppendTest, SecondAppenderIsRefusedAtOnce) {
  const TestFile file({"a"});
  auto first = RecordWriter::Append(file.path(), {}).value();
  const auto second = RecordWriter::Append(file.path(), {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kConflict);
  EXPECT_NE(second.error().message.find("another writer"), std::string::npos);
  ASSERT_TRUE(first.Write(AsBytes("b")));
  ASSERT_TRUE(first.Close());
  Append(file.path(), {"c"});  // `first` is still there, but closed.
  EXPECT_EQ(test::ReadAll(OpenOne(file.path()).value()), (Records{"a", "b", "c"}));
}

TEST(AppendTest, ForkedChildDoesNotKeepTheLock) {
  const TestFile file({"a"});
  auto writer = std::make_unique<RecordWriter>(RecordWriter::Append(file.path(), {}).value());
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {  // Has the descriptor, until it is told to go.
    ::close(pipe[1]);
    char byte = 0;
    ::_exit(static_cast<int>(::read(pipe[0], &byte, 1)));
  }
  ASSERT_TRUE(writer->Close());
  writer.reset();
  EXPECT_TRUE(RecordWriter::Append(file.path(), {}));
  ::close(pipe[1]);
  EXPECT_EQ(test::WaitForChild(child), 0);
  ::close(pipe[0]);
}

TEST(AppendTest, WhatCannotBeExtendedIsRefusedWithARemedy) {
  const auto refusal = [](const std::filesystem::path& path,
                          const RecordWriter::AppendOptions& options = {}) {
    const auto writer = RecordWriter::Append(path, options);
    return writer ? Error{ErrorCode::kOk, ""} : writer.error();
  };
  const TempFolder folder;
  EXPECT_EQ(refusal(folder / "missing.ffr").code, ErrorCode::kNotFound);
  EXPECT_EQ(refusal(folder.path()).code, ErrorCode::kInvalidArgument);
  test::WriteFile(folder / "text.ffr", "no records at all");
  EXPECT_EQ(refusal(folder / "text.ffr").code, ErrorCode::kInvalidArgument);

  const TestFile v1({"a"}, {.version = 1});
  EXPECT_EQ(refusal(v1.path()).code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refusal(v1.path()).message.find("version 1"), std::string::npos);

  const TestFile file({"a"});
  EXPECT_NE(refusal(file.path(), {.compress = true}).message.find("without compression"),
            std::string::npos);
  EXPECT_EQ(refusal(file.path(), {.compression_level = 20}).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(file.path(), {.commit_interval_bytes = 65 << 20}).code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(file.path(), {.metadata = Metadata{{"", {}}}}).code,
            ErrorCode::kInvalidArgument);
  ASSERT_EQ(::chmod(file.path().c_str(), 0444), 0);
  EXPECT_EQ(refusal(file.path()).code, ErrorCode::kDenied);
  EXPECT_NE(refusal(file.path()).message.find("read-only"), std::string::npos);
}

TEST(AppendTest, UnknownAppendFeatureIsRefusedAndReadAllTheSame) {
  const TestFile file({"a"});
  std::string content = test::ReadFile(file.path());
  const auto bytes = std::as_writable_bytes(std::span(content));
  V2Header header = DecodeV2Header(bytes).value();
  header.append_features = std::uint64_t{1} << 63;
  EncodeV2Header(header, bytes.first<V2Header::kEncodedSizeBytes>());
  test::WriteFile(file.path(), content);
  EXPECT_EQ(test::ReadAll(OpenOne(file.path()).value()), Records{"a"});
  const auto writer = RecordWriter::Append(file.path(), {});
  ASSERT_FALSE(writer);
  EXPECT_EQ(writer.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(writer.error().message.find("cannot extend"), std::string::npos);
}

TEST(AppendTest, CompressedFileTakesRawRecordsToo) {
  RecordWriter::Options zstd;
  zstd.compress = true;
  const std::string record(1000, 'z');
  const TestFile file({record}, {.writer = zstd});
  Append(file.path(), {record}, {.compress = false});
  Append(file.path(), {record});
  EXPECT_EQ(test::ReadAll(OpenOne(file.path()).value()), (Records{record, record, record}));
  const auto source = OpenLocalFiles({&file.path(), 1}).value();
  const auto indexes = OpenIndexes(*source, {}).value();
  std::vector<bool> compressed;
  for (std::uint64_t i = 0; i < 3; ++i) {
    RecordLocation location;
    ASSERT_EQ(indexes[0]->Locate(i, location), ErrorCode::kOk);
    compressed.push_back(location.compressed());
  }
  EXPECT_EQ(compressed, (std::vector<bool>{true, false, true}));
}

TEST(AppendTest, MetadataIsKeptUntilItIsReplaced) {
  RecordWriter::Options options;
  options.metadata = {{"name", {std::byte{1}}}};
  const TestFile file({"a"}, {.writer = options});
  Append(file.path(), {"b"});
  EXPECT_EQ(OpenOne(file.path()).value().metadata(0).value(), options.metadata);
  const Metadata other{{"other", {}}};
  Append(file.path(), {}, {.metadata = other});
  EXPECT_EQ(OpenOne(file.path()).value().metadata(0).value(), other);
  Append(file.path(), {"c"}, {.metadata = Metadata{}});
  EXPECT_TRUE(OpenOne(file.path()).value().metadata(0).value().empty());
  EXPECT_EQ(test::ReadAll(OpenOne(file.path()).value()), (Records{"a", "b", "c"}));
  ExpectWhole(file.path());
}

TEST(AppendTest, MetadataThatAreSetGoWithTheNextCommit) {
  TempFolder folder;
  const auto path = folder.path() / "a.ffr";
  const Metadata first{{"name", {std::byte{1}}}}, second{{"name", {std::byte{2}}}};
  auto writer = RecordWriter::Create(path, Schema(), {.metadata = first});
  ASSERT_TRUE(writer) << writer.error().message;
  ASSERT_TRUE(writer.value().Write(AsBytes("a")));
  EXPECT_EQ(writer.value().SetMetadata({}).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(writer.value().SetMetadata(second));
  ASSERT_TRUE(writer.value().Close());
  EXPECT_EQ(OpenOne(path).value().metadata(0).value(), second);

  auto more = RecordWriter::Append(path, {});
  ASSERT_TRUE(more) << more.error().message;
  ASSERT_TRUE(more.value().SetMetadata(first));
  EXPECT_EQ(OpenOne(path).value().metadata(0).value(), second);  // Not before the commit.
  ASSERT_TRUE(more.value().Commit());

  EXPECT_EQ(OpenOne(path).value().metadata(0).value(), first);
  ASSERT_TRUE(more.value().Close());
  ExpectWhole(path);
}

TEST(AppendTest, RecordsThatDoNotFitTheSchemaAreRefused) {
  const Schema schema = Schema::Make({{"x", ColumnType::kU16}}).value();
  const TestFile file({"xy"}, {.schema = schema});
  auto writer = RecordWriter::Append(file.path(), {}).value();
  EXPECT_EQ(writer.Write(AsBytes("x")).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(writer.Write(AsBytes("zw")));
  ASSERT_TRUE(writer.Close());
  EXPECT_EQ(test::ReadAll(OpenOne(file.path()).value()), (Records{"xy", "zw"}));
}

TEST(AppendTest, NewFileIsCommittedWhenItIsClosed) {
  const TempFolder folder;
  auto writer = RecordWriter::Create(folder / "a.ffr", {}, {}).value();
  EXPECT_EQ(writer.Commit().error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(writer.Close());
}

// Appends 3 MB in two commits. How many commits were reported done; all that follows a failure must
// fail.
int AppendWith(const std::filesystem::path& path, std::unique_ptr<IoEngine> engine) {
  auto writer = AppendToRecords(path, {}, std::move(engine));
  if (!writer) return 0;
  int done = 0;
  bool failed = false;
  const auto note = [&](const Result<void>& result) {
    EXPECT_FALSE(failed && result) << "a failed writer goes on";
    failed = failed || !result;
  };
  for (int i = 0; i < 10; ++i) {
    note(writer.value().Write(AsBytes(std::string(300'000, 'w'))));
    if (i != 4) continue;
    const auto committed = writer.value().Commit();
    note(committed);
    done += bool(committed);
  }
  const auto closed = writer.value().Close();
  EXPECT_FALSE(failed && closed);
  return done + bool(closed);
}

TEST(FailingDiskTest, EveryFailureLeavesTheLastCommitAndTheNextAppendGoesOn) {
  for (const bool sticky : {false, true})
    for (const int fault : {-ENOSPC, -EIO, 512}) {
      const auto failures = test::ForEachFailure(
          {}, fault, sticky, [&](std::unique_ptr<IoEngine> engine, const auto& was_hit) {
            const TestFile file(Numbers(0, 10));
            const int done = AppendWith(file.path(), std::move(engine));
            if (!was_hit()) {
              EXPECT_EQ(done, 2);
            }
            if (fault == 512) return;  // A disk that lies: that nothing crashes is all.
            const auto reader = OpenOne(file.path());
            ASSERT_TRUE(reader) << reader.error().message;
            const std::uint64_t count = reader.value().record_count();
            const std::uint64_t promised = 10 + 5 * static_cast<std::uint64_t>(done);
            // A commit whose last sync failed is there, but was not promised.
            EXPECT_TRUE(count == promised || (count == promised + 5 && was_hit())) << count;
            test::ReadAll(reader.value());
            Append(file.path(), {"next"});
            const auto next = test::ReadAll(OpenOne(file.path()).value());
            EXPECT_EQ(next.size(), count + 1);
            EXPECT_EQ(next.back(), "next");
            ExpectWhole(file.path());
          });
      EXPECT_GE(failures, 8U);
    }
}

TEST(FailingDiskTest, ShortTransfersOfAnAppendAreContinued) {
  const TestFile file(Numbers(0, 10));
  test::Faults faults;
  faults.short_transfer_unit_bytes = 512;
  faults.disorder = true;
  faults.seed = test::Seed();
  EXPECT_EQ(AppendWith(file.path(), std::make_unique<test::FaultyEngine>(
                                        MakeIoEngine(kThreadEngineDepth).value(), faults)),
            2);
  EXPECT_EQ(OpenOne(file.path()).value().record_count(), 20U);
  ExpectWhole(file.path());
}

// The kernel takes a killed process's requests apart, and lets go of its lock, in its own time.
void WaitUntilUnlocked(const std::filesystem::path& path) {
  while (true) {
    const auto writer = RecordWriter::Append(path, {});
    if (writer || writer.error().code != ErrorCode::kConflict) return;
    std::this_thread::yield();
  }
}

// A file whose append was killed: it is at a commit, and can be gone on with. How many records.
std::uint64_t ExpectACommit(const std::filesystem::path& path) {
  const auto reader = OpenOne(path);
  EXPECT_TRUE(reader) << reader.error().message;
  if (!reader) return 0;
  const std::uint64_t count = reader.value().record_count();
  EXPECT_TRUE(count == 10 || count == 15 || count == 20) << count;
  auto expected = Numbers(0, 10);
  expected.resize(count, std::string(300'000, 'w'));
  EXPECT_TRUE(test::ReadAll(reader.value()) == expected);
  WaitUntilUnlocked(path);
  Append(path, {"next"});
  EXPECT_EQ(OpenOne(path).value().record_count(), count + 1);
  ExpectWhole(path);
  return count;
}

TEST(KilledAppendTest, EverySystemCallLeavesTheLastCommitAndTheNextAppendGoesOn) {
  std::array<int, 21> seen{};
  for (std::size_t kill_at = 1;; ++kill_at) {
    SCOPED_TRACE(kill_at);
    const TestFile file(Numbers(0, 10));
    if (kill_at % 2 == 0)  // On top of an append that was killed before.
      KillAppend(file.path(), Records(8, std::string(300'000, 'x')));
    const auto calls =
        test::TraceInChild([] {}, [&] { AppendWith(file.path(), nullptr); }, test::AtCall(kill_at));
    if (!calls) GTEST_SKIP() << "no tracing here";
    ++seen[ExpectACommit(file.path())];
    if (calls->size() < kill_at) break;
  }
  EXPECT_GT(seen[10], 5);
  EXPECT_GT(seen[15], 1);
  EXPECT_GT(seen[20], 0);
}

TEST(KilledAppendTest, EveryWriteAndSyncOfThreadsLeavesTheLastCommitToo) {
  using Moment = test::KillingEngine::Moment;
  for (const Moment moment : {Moment::kBefore, Moment::kInFlight, Moment::kAfter}) {
    std::array<int, 21> seen{};
    std::uint64_t nth = 1;
    for (bool is_killed = true; is_killed; ++nth) {
      SCOPED_TRACE(nth);
      const TestFile file(Numbers(0, 10));
      const int status = test::RunInChild([&] {
        auto engine =
            std::make_unique<test::KillingEngine>(MakeThreadsEngine(8).value(), nth, moment);
        return AppendWith(file.path(), std::move(engine)) == 2 ? 0 : 1;
      });
      is_killed = status == -SIGKILL;
      ASSERT_TRUE(is_killed || status == 0) << status;
      ++seen[ExpectACommit(file.path())];
    }
    EXPECT_GT(nth, 8U);  // Two commits of at least a write, a sync, a write and a sync.
    // What is in flight, and what has ended without being waited for, may be there or not.
    EXPECT_GT(seen[10], 0);
    EXPECT_GT(seen[15], 0);
    EXPECT_GT(seen[20], 0);
  }
}

TEST(KilledAppendTest, RandomMomentsLeaveTheLastCommit) {
  std::mt19937_64 random(test::Seed());
  for (int round = 0; round < 16; ++round) {
    const TestFile file(Numbers(0, 10));
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto engine = round % 2 == 0 ? MakeThreadsEngine(8) : MakeIoEngine(8);
      ::_exit(AppendWith(file.path(), std::move(engine).value()) == 2 ? 0 : 1);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 10'000));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    const int status = test::WaitForChild(child);
    ASSERT_TRUE(status == -SIGKILL || status == 0) << status;
    const std::uint64_t count = ExpectACommit(file.path());
    EXPECT_TRUE(status != 0 || count == 20) << "what was promised is there";
  }
}

}  // namespace
}  // namespace ffrecord
