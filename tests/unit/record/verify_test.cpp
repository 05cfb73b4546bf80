// Goal: the full check passes what writers write, and names what is wrong with anything else.
// Method: files of all options; one byte changed in each kind of structure.

#include <ffrecord/verify.h>

#include <gtest/gtest.h>

#include "libffrecord/record/check/verify_source.h"
#include "memory_files.h"
#include "memory_output.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::TestFile;
using test::TestFileOptions;

std::vector<std::string> Records() {
  std::mt19937_64 random(test::Seed());
  std::vector<std::string> records{"", "a", std::string(6 << 20, 'r'), ""};
  for (int i = 0; i < 700; ++i) records.push_back(test::RandomText(random() % 200, random));
  records.push_back(test::RandomText(5 << 20, random));
  return records;
}

TEST(VerifyTest, WhatWritersWriteIsWhole) {
  RecordWriter::Options zstd;
  zstd.compress = true;
  RecordWriter::Options aligned;
  aligned.alignment_bytes = 4096;
  for (const TestFileOptions& options :
       {TestFileOptions{.version = 1}, TestFileOptions{},
        TestFileOptions{.writer = zstd, .pages_per_segment = 1},
        TestFileOptions{.writer = aligned, .pages_per_segment = 2}}) {
    const TestFile file(Records(), options);
    std::uint64_t last = 0;
    const auto report = VerifyFile(file.path(), [&](std::uint64_t done, std::uint64_t total) {
      EXPECT_GE(done, last);
      EXPECT_EQ(total, file.summary().file_size_bytes);
      last = done;
      return true;
    });
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report.value().whole()) << report.value().problems[0];
    EXPECT_EQ(report.value().record_count, file.records().size());
    EXPECT_EQ(last, file.summary().file_size_bytes);
  }
}

// The commit that was opened is not there any more when it is read again.
class VanishingCommit final : public test::MemoryFiles {
 public:
  using MemoryFiles::MemoryFiles;
  Result<IndexBytes> MapInside(std::uint32_t file, std::uint64_t offset_bytes,
                               std::uint64_t size_bytes) const override {
    if (offset_bytes + size_bytes == file_size_bytes(file))
      return Error{ErrorCode::kCorruption, "the tail is gone"};
    return MemoryFiles::MapInside(file, offset_bytes, size_bytes);
  }
};

TEST(VerifyTest, CommitThatVanishesMeanwhileIsAProblem) {
  for (const std::vector<std::string>& records : {std::vector<std::string>{"a", "b"}, {}}) {
    const VanishingCommit file({test::FileOf(records)});
    const auto report = VerifySource(file);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_FALSE(report.value().whole());
    EXPECT_NE(report.value().problems[0].find("the tail is gone"), std::string::npos);
  }
}

TEST(VerifyTest, EmptyFilesAreWhole) {
  for (const int version : {1, 2})
    EXPECT_TRUE(VerifyFile(TestFile({}, {.version = version}).path()).value().whole());
}

TEST(VerifyTest, BadRecordsAreCountedAndNamed) {
  for (const int version : {1, 2}) {
    TestFile file({"zero", "first", "second"}, {.version = version});
    file.FlipByteOfRecord(1);
    const auto report = VerifyFile(file.path()).value();
    EXPECT_EQ(report.bad_record_count, 1U);
    EXPECT_EQ(report.problem_count, 1U);
    EXPECT_NE(report.problems[0].find("record 1: 5 bytes at"), std::string::npos);
  }
}

TEST(VerifyTest, ChangesThatReadersDoNotMindAreFound) {
  const auto first_problem = [](std::uint64_t offset) {
    const std::string content = test::FileOf({"zero", "first", "second"});
    const auto file = test::InMemory(content);
    file->content(0)[offset] = static_cast<char>(file->content(0)[offset] ^ 1);
    const auto report = VerifySource(*file).value();
    EXPECT_EQ(report.problem_count, 1U);
    EXPECT_EQ(report.bad_record_count, 0U);
    return report.whole() ? "whole" : report.problems[0];
  };
  EXPECT_EQ(first_problem(128), "record 0: record header at 128: magic does not match");
  EXPECT_EQ(first_problem(150), "record 0: record header at 128: checksum does not match");
  EXPECT_EQ(first_problem(1000), "padding before index segment 0: byte 1000 is not zero");
  EXPECT_EQ(first_problem(8192 + 400), "padding before the footer: byte 8592 is not zero");
  EXPECT_EQ(first_problem(12288 + 64 + 2 * 32), "padding before the tail: byte 12416 is not zero");
}

TEST(VerifyTest, DamagedFrontIsFoundThoughReadersDoWithoutIt) {
  const Schema schema = Schema::Make({{"text", ColumnType::kBytes}}).value();
  const std::string content = test::FileOf({"zero", "first"}, {.schema = schema});
  for (const std::size_t offset : {0U, 12U, 20U, 57U, 125U, 165U}) {
    std::string damaged = content;
    damaged[offset] ^= 1;
    const auto report = VerifySource(*test::InMemory(damaged));
    ASSERT_TRUE(report) << offset << ": " << report.error().message;
    EXPECT_FALSE(report.value().whole()) << offset;
    EXPECT_EQ(report.value().bad_record_count, 0U) << offset;
  }
}

// Its checksum is right: only who reads it finds out.
TEST(VerifyTest, MetadataThatCannotBeReadIsFound) {
  const auto report_of = [](const std::string& section) {
    test::MemoryOutput output;
    V2Stream stream(output, V2Header{}, std::span<const std::byte>());
    EXPECT_TRUE(stream.WriteFront({}));
    EXPECT_TRUE(stream.AddSection(V2Section::kMetadata, test::AsBytes(section)));
    EXPECT_TRUE(stream.Commit());
    return VerifySource(*test::InMemory(output.content)).value();
  };
  const std::string one_value("\1\0\0\0\1a\1\0\0\0x", 11);
  EXPECT_TRUE(report_of(one_value).whole());

  for (const std::string& garbage :
       {one_value + "x", one_value.substr(0, 10), std::string("garbage"), std::string()}) {
    const auto report = report_of(garbage);
    EXPECT_FALSE(report.whole());
    EXPECT_EQ(report.problem_count, 1U);
    EXPECT_EQ(report.bad_record_count, 0U);
  }
}

TEST(VerifyTest, ManyProblemsAreCounted) {
  const std::string content = test::FileOf(std::vector<std::string>(500, "record"));
  const auto file = test::InMemory(content);
  for (std::size_t i = 128; i < 128 + 500 * 38; ++i) file->content(0)[i] = 'x';
  const auto report = VerifySource(*file).value();
  EXPECT_EQ(report.bad_record_count, 500U);
  EXPECT_EQ(report.problem_count, 1000U);
  EXPECT_EQ(report.problems.size(), VerifyReport::kProblemsMax);
}

TEST(VerifyTest, CallerMayBreakItOff) {
  const TestFile file({"a", "b"});
  const auto report = VerifyFile(file.path(), [](auto, auto) { return false; });
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kDeadlineExceeded);
}

TEST(VerifyTest, FileThatCannotBeOpenedIsAnError) {
  EXPECT_EQ(VerifyFile("no-such-file.ffr").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace ffrecord
