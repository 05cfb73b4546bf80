// Goal: an append cuts off what a killed append left behind the last commit, and never a commit,
// however that is damaged.
// Method: files whose last commit lost a bit, a block or its end, against the same files cut where
// a kill can leave them, with all kinds of structures.

#include <ffrecord/repair.h>

#include <gtest/gtest.h>

#include <algorithm>

#include "appends.h"
#include "libffrecord/record/write/record_writer_impl.h"
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

TEST(CutOffTest, WhatAKillLeavesIsIgnoredAndThenRemoved) {
  const TestFile file(Numbers(0, 10));
  const std::uint64_t size = std::filesystem::file_size(file.path());
  KillAppend(file.path(), Records(30, std::string(100'000, 'x')));
  const std::uint64_t left = std::filesystem::file_size(file.path()) - size;
  ASSERT_GT(left, 1U << 20);
  const auto reader = OpenOne(file.path()).value();
  EXPECT_EQ(test::ReadAll(reader), Numbers(0, 10));
  ASSERT_EQ(reader.file(0).warnings.size(), 1U);
  EXPECT_NE(reader.file(0).warnings[0].find(std::to_string(left)), std::string::npos);
  EXPECT_EQ(VerifyFile(file.path()).value().problem_count, 1U);

  Append(file.path(), Numbers(10, 12));
  EXPECT_EQ(test::ReadAll(OpenOne(file.path()).value()), Numbers(0, 12));
  EXPECT_TRUE(OpenOne(file.path()).value().file(0).warnings.empty());
  ExpectWhole(file.path());
  EXPECT_LT(std::filesystem::file_size(file.path()), size + (64 << 10));
}

// A damaged file to which three commits were made, the last of 1,000 records; appending must leave
// it alone, and repair keeps all of them.
void ExpectRefused(const std::string& damaged, const std::string& what) {
  SCOPED_TRACE(what);
  const TempFolder folder;
  test::WriteFile(folder / "damaged.ffr", damaged);
  const auto writer = RecordWriter::Append(folder / "damaged.ffr", {});
  ASSERT_FALSE(writer);
  EXPECT_EQ(writer.error().code, ErrorCode::kCorruption);
  EXPECT_NE(writer.error().message.find("ffrecord repair"), std::string::npos);
  EXPECT_TRUE(test::ReadFile(folder / "damaged.ffr") == damaged);
  const auto verified = VerifyFile(folder / "damaged.ffr");
  ASSERT_TRUE(verified);
  EXPECT_NE(verified.value().problems.back().find("ffrecord repair"), std::string::npos);
  const auto report = RepairFile(folder / "damaged.ffr", folder / "new.ffr");
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_FALSE(report.value().lost_nothing()) << "an older commit was believed";
  EXPECT_EQ(report.value().lost_count, 0U);
  EXPECT_EQ(test::ReadAll(OpenOne(folder / "new.ffr").value()), Numbers(0, 1020));
}

TEST(CutOffTest, DamagedCommitIsNeverCutOff) {
  RecordWriter::Options keyed;
  keyed.keys = true;
  keyed.metadata = {{"name", {std::byte{1}}}};
  for (const TestFileOptions& options :
       {TestFileOptions{.pages_per_segment = 1},
        TestFileOptions{.writer = keyed, .pages_per_segment = 2}}) {
    const TempFolder folder;
    const auto path = folder / "file.ffr";
    {
      WriterInternals internals;
      internals.pages_per_segment = options.pages_per_segment;
      auto writer = CreateRecordWriter(path, {}, options.writer, std::move(internals)).value();
      for (const std::string& record : Numbers(0, 10)) ASSERT_TRUE(writer.Write(AsBytes(record)));
      ASSERT_TRUE(writer.Close());
    }
    Append(path, Numbers(10, 20));
    Append(path, Numbers(20, 1020));
    const std::string whole = test::ReadFile(path);
    const std::size_t footer = whole.size() - 4096;     // It and the tail fit into a block.
    for (std::size_t field = 0; field < 20; ++field) {  // Of 8 bytes: 12 there and 8 there.
      const std::size_t byte =
          field < 12 ? footer + 8 * field : whole.size() - 64 + 8 * (field - 12);
      std::string damaged = whole;
      damaged[byte] ^= 1;
      ExpectRefused(damaged, "bit of byte " + std::to_string(byte));
    }
    std::string blank = whole;
    std::fill(blank.begin() + static_cast<std::ptrdiff_t>(footer), blank.end(), '\0');
    ExpectRefused(blank, "blank block");
    std::string stale = whole;
    std::fill(stale.begin() + static_cast<std::ptrdiff_t>(footer), stale.end(), 'x');
    ExpectRefused(stale, "other block");
    ExpectRefused(whole.substr(0, whole.size() - 1), "cut by a byte");
    ExpectRefused(whole.substr(0, footer + 64), "cut behind the head of the footer");
  }
}

// Files whose second commit has all kinds of structures before its footer.
std::vector<TestFileOptions> FilesOfManyKinds() {
  const Schema schema =
      Schema::Make({{"x", ColumnType::kU16}, {"y", ColumnType::kF64}, {"text", ColumnType::kBytes}})
          .value();
  RecordWriter::Options copied;
  copied.copied_columns = {"x", "y"};
  RecordWriter::Options keyed = copied;
  keyed.keys = true;
  RecordWriter::Options aligned;
  aligned.alignment_bytes = 512;
  return {TestFileOptions{.pages_per_segment = 1},
          TestFileOptions{.schema = schema, .writer = copied},
          TestFileOptions{.schema = schema, .writer = copied, .pages_per_segment = 1},
          TestFileOptions{.schema = schema, .writer = keyed, .pages_per_segment = 2},
          TestFileOptions{.writer = aligned}};
}

// The content of a file with commits of 30 and of `second_count` records, which begins the second
// at `second_bytes`.
std::string TwoCommits(const TestFileOptions& options, int second_count,
                       std::size_t& second_bytes) {
  const TempFolder folder;
  const auto path = folder / "file.ffr";
  const auto write = [&](RecordWriter writer, int first, int end) {
    for (int i = first; i < end; ++i) {
      const std::string number = std::to_string(i);
      const std::string record = "0123456789" + number;
      const auto key = options.writer.keys ? AsBytes(number) : AsBytes("");
      ASSERT_TRUE(writer.Write(AsBytes(record), key));
    }
    ASSERT_TRUE(writer.Close());
  };
  WriterInternals internals;
  internals.pages_per_segment = options.pages_per_segment;
  write(CreateRecordWriter(path, options.schema, options.writer, std::move(internals)).value(), 0,
        30);
  second_bytes = std::filesystem::file_size(path);
  write(RecordWriter::Append(path, {}).value(), 30, 30 + second_count);
  return test::ReadFile(path);
}

bool AppendCutsOff(const std::string& content) {
  const TempFolder folder;
  test::WriteFile(folder / "file.ffr", content);
  const auto writer = RecordWriter::Append(folder / "file.ffr", {});
  if (writer) return true;
  EXPECT_EQ(writer.error().code, ErrorCode::kCorruption) << writer.error().message;
  EXPECT_TRUE(test::ReadFile(folder / "file.ffr") == content);
  return false;
}

TEST(CutOffTest, CommitThatLostItsEndIsNeverCutOff) {
  for (const TestFileOptions& options : FilesOfManyKinds())
    for (const int second_count : {1, 310}) {
      std::size_t begin = 0;
      const std::string whole = TwoCommits(options, second_count, begin);
      for (std::size_t at = begin; at < whole.size(); at += 4096) {
        SCOPED_TRACE(std::to_string(second_count) + " records, from " + std::to_string(at));
        // A lost block of the disk: from there on all is zero, or left of another file.
        for (const char left : {'\0', 'x'}) {
          std::string damaged = whole;
          std::fill(damaged.begin() + static_cast<std::ptrdiff_t>(at), damaged.end(), left);
          EXPECT_FALSE(AppendCutsOff(damaged));
        }
      }
      // A misplaced write: a page of the file in place of its last, and of the one before.
      for (std::size_t at = 0; at + 4096 < whole.size(); at += 4096) {
        SCOPED_TRACE(std::to_string(second_count) + " records, page at " + std::to_string(at));
        std::string damaged = whole;
        damaged.replace(whole.size() - 4096, 4096, whole, at, 4096);
        EXPECT_FALSE(AppendCutsOff(damaged));
        damaged.replace(whole.size() - 8192, 4096, whole, at, 4096);
        EXPECT_FALSE(AppendCutsOff(damaged));
      }
    }
}

TEST(CutOffTest, WhatAKillLeavesIsCutOffWhereverItEnds) {
  for (const TestFileOptions& options : FilesOfManyKinds())
    for (const int second_count : {1, 310}) {
      std::size_t begin = 0;
      const std::string whole = TwoCommits(options, second_count, begin);
      for (std::size_t size = begin; size <= whole.size() - 4096; size += 1024)
        EXPECT_TRUE(AppendCutsOff(whole.substr(0, size)))
            << second_count << " records, " << size << " of " << whole.size() << " bytes";
    }
}

TEST(CutOffTest, RecordThatHoldsACommitIsNoSignOfOne) {
  // In a commit that was never finished, a file whose footer and tail lie where ours would.
  RecordWriter::Options aligned;
  aligned.alignment_bytes = 4096;
  const TestFile inner(Numbers(0, 300));
  const TestFile file(Numbers(0, 10), {.writer = aligned});
  KillAppend(file.path(), Records(200, test::ReadFile(inner.path())));
  ASSERT_GT(std::filesystem::file_size(file.path()), 1U << 20);
  Append(file.path(), Numbers(10, 12));
  EXPECT_EQ(test::ReadAll(OpenOne(file.path()).value()), Numbers(0, 12));
}

TEST(CutOffTest, AppendOfManySegmentsThatWasKilledGoesOn) {
  RecordWriter::Options keyed;
  keyed.keys = true;
  const TestFile file(Numbers(0, 10), {.writer = keyed, .pages_per_segment = 1});
  const std::string before = test::ReadFile(file.path());
  Append(file.path(), Numbers(10, 3000));
  const std::string whole = test::ReadFile(file.path());
  // What a kill leaves: the first bytes, up to where the footer would begin.
  for (std::size_t size = before.size() + 4096; size <= whole.size() - 4096; size += 4096) {
    test::WriteFile(file.path(), whole.substr(0, size));
    ASSERT_TRUE(RecordWriter::Append(file.path(), {})) << size;
  }
}

}  // namespace
}  // namespace ffrecord
