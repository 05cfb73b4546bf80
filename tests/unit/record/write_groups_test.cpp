// Goal: a group of writes takes effect as a whole or not at all. Method: files with groups that are
// taken back, at random places and of sizes that end segments, blocks of keys and the training of a
// dictionary, are byte for byte the files without them; appends are read, given up and killed
// within a group that is larger than what is written between commits.

#include <gtest/gtest.h>

#include <algorithm>

#include "libffrecord/record/check/verify_source.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AsBytes;
using test::OpenOne;
using test::TempFolder;
using test::TestFileOptions;

std::string RecordOf(int i) {
  return "0123456789 {\"id\": " + std::to_string(i) + ", \"url\": \"https://example.org/" +
         std::to_string(i * 7919 % 1000) + "\"}";
}

class WriteGroupsTest : public testing::TestWithParam<TestFileOptions> {
 protected:
  RecordWriter Create(const std::filesystem::path& path) const {
    WriterInternals internals;
    internals.file_id = FileId{};
    internals.pages_per_segment = GetParam().pages_per_segment;
    return CreateRecordWriter(path, GetParam().schema, GetParam().writer, std::move(internals))
        .value();
  }

  void Write(RecordWriter& writer, const std::string& record) const {
    const std::string key = GetParam().writer.keys ? "key of " + record : "";
    ASSERT_TRUE(writer.Write(AsBytes(record), AsBytes(key)));
  }

  // Records [first, end), each `undo_one_in` with a group before it that is taken back.
  void WriteAll(RecordWriter& writer, int first, int end, std::uint64_t undo_one_in) {
    for (int i = first; i < end; ++i) {
      if (undo_one_in > 0 && random_() % undo_one_in == 0) {
        ASSERT_TRUE(writer.BeginGroup());
        for (std::uint64_t left = random_() % 800; left > 0; --left)
          Write(writer, RecordOf(static_cast<int>(random_() % 5000)));
        ASSERT_TRUE(writer.UndoGroup());
        EXPECT_EQ(writer.record_count(), static_cast<std::uint64_t>(i));
      }
      Write(writer, RecordOf(i));
    }
  }

  TempFolder folder_;
  std::mt19937_64 random_{test::Seed()};
};

TEST_P(WriteGroupsTest, GroupThatIsTakenBackLeavesNothing) {
  std::string contents[2];
  for (const bool undoes : {false, true}) {
    const auto path = folder_ / (undoes ? "undone.ffr" : "plain.ffr");
    {
      RecordWriter writer = Create(path);
      WriteAll(writer, 0, 1000, undoes ? 50 : 0);
      ASSERT_TRUE(writer.Close());
    }
    RecordWriter writer = RecordWriter::Append(path, {}).value();
    WriteAll(writer, 1000, 1500, undoes ? 50 : 0);
    ASSERT_TRUE(writer.Commit());
    WriteAll(writer, 1500, 1600, undoes ? 10 : 0);
    ASSERT_TRUE(writer.Close());
    contents[undoes ? 1 : 0] = test::ReadFile(path);
  }
  EXPECT_TRUE(contents[0] == contents[1]);
}

TEST_P(WriteGroupsTest, GroupThatIsKeptIsWrittenLikeAnyRecords) {
  const auto path = folder_ / "file.ffr";
  RecordWriter writer = Create(path);
  WriteAll(writer, 0, 10, 0);
  ASSERT_TRUE(writer.BeginGroup());
  WriteAll(writer, 10, 700, 0);
  ASSERT_TRUE(writer.EndGroup());
  WriteAll(writer, 700, 800, 0);
  ASSERT_TRUE(writer.Close());
  RecordWriter plain = Create(folder_ / "plain.ffr");
  WriteAll(plain, 0, 800, 0);
  ASSERT_TRUE(plain.Close());
  EXPECT_TRUE(test::ReadFile(path) == test::ReadFile(folder_ / "plain.ffr"));
}

std::vector<TestFileOptions> Files() {
  const Schema schema =
      Schema::Make({{"x", ColumnType::kU16}, {"y", ColumnType::kF64}, {"text", ColumnType::kBytes}})
          .value();
  RecordWriter::Options all;
  all.copied_columns = {"x", "y"};
  all.keys = true;
  all.metadata = {{"name", {std::byte{1}}}};
  RecordWriter::Options trained = all;
  trained.compress = true;
  trained.train_dictionary_bytes = 1024;
  RecordWriter::Options aligned;
  aligned.alignment_bytes = 4096;
  return {TestFileOptions{.pages_per_segment = 1},
          TestFileOptions{.schema = schema, .writer = all, .pages_per_segment = 1},
          TestFileOptions{.schema = schema, .writer = all},
          TestFileOptions{.schema = schema, .writer = trained, .pages_per_segment = 2},
          TestFileOptions{.writer = aligned}};
}

INSTANTIATE_TEST_SUITE_P(Files, WriteGroupsTest, testing::ValuesIn(Files()));

constexpr std::uint64_t kBefore = 10;
constexpr int kGroup = 60;
const std::string kLarge(100'000, 'x');

class AppendedGroupTest : public testing::Test {
 protected:
  AppendedGroupTest() {
    std::vector<std::string> records;
    for (std::uint64_t i = 0; i < kBefore; ++i) records.push_back(RecordOf(static_cast<int>(i)));
    test::WriteRecords(path_, records, {.pages_per_segment = 1});
  }

  RecordWriter Append() const {
    RecordWriter::AppendOptions options;
    options.commit_interval_bytes = 1 << 20;
    return RecordWriter::Append(path_, options).value();
  }

  void WriteGroup(RecordWriter& writer) const {
    ASSERT_TRUE(writer.BeginGroup());
    for (int i = 0; i < kGroup; ++i) {
      ASSERT_TRUE(writer.Write(AsBytes(kLarge)));
      EXPECT_EQ(Count(), kBefore) << "a part of the group is visible";
    }
  }

  std::uint64_t Count() const { return OpenOne(path_).value().record_count(); }

  void ExpectWhole(std::uint64_t count) const {
    EXPECT_EQ(test::ReadAll(OpenOne(path_).value()).size(), count);
    const auto report = VerifyFile(path_).value();
    EXPECT_TRUE(report.whole()) << report.problems[0];
  }

  TempFolder folder_;
  std::filesystem::path path_ = folder_ / "file.ffr";
};

TEST_F(AppendedGroupTest, IsVisibleAsAWhole) {
  {
    RecordWriter writer = Append();
    WriteGroup(writer);
    EXPECT_EQ(writer.Commit().error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(writer.BeginGroup().error().code, ErrorCode::kInvalidArgument);
    ASSERT_TRUE(writer.EndGroup());
    EXPECT_EQ(writer.EndGroup().error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(writer.UndoGroup().error().code, ErrorCode::kInvalidArgument);
    ASSERT_TRUE(writer.Close());
  }
  ExpectWhole(kBefore + kGroup);
}

TEST_F(AppendedGroupTest, IsTakenBackAsAWholeAndTheWriterGoesOn) {
  const std::string before = test::ReadFile(path_);
  {
    RecordWriter writer = Append();
    WriteGroup(writer);
    ASSERT_TRUE(writer.UndoGroup());
    ASSERT_TRUE(writer.Close());
  }
  EXPECT_TRUE(test::ReadFile(path_) == before);
  {
    RecordWriter writer = Append();
    ASSERT_TRUE(writer.Write(AsBytes("before the group")));
    WriteGroup(writer);
    ASSERT_TRUE(writer.UndoGroup());
    ASSERT_TRUE(writer.Write(AsBytes("after the group")));
    ASSERT_TRUE(writer.Close());
  }
  ExpectWhole(kBefore + 2);
}

TEST_F(AppendedGroupTest, IsGivenUpAsAWhole) {
  const std::string before = test::ReadFile(path_);
  {
    RecordWriter writer = Append();
    WriteGroup(writer);
  }
  EXPECT_TRUE(test::ReadFile(path_) == before);
}

TEST_F(AppendedGroupTest, ThatIsKilledIsCutOffByTheNextAppend) {
  std::string left;
  {
    RecordWriter writer = Append();
    WriteGroup(writer);
    left = test::ReadFile(path_);
  }
  test::WriteFile(path_, left);
  EXPECT_EQ(Count(), kBefore);
  RecordWriter writer = Append();
  ASSERT_TRUE(writer.Write(AsBytes("next")));
  ASSERT_TRUE(writer.Close());
  ExpectWhole(kBefore + 1);
  EXPECT_LT(std::filesystem::file_size(path_), 1U << 20);
}

}  // namespace
}  // namespace ffrecord
