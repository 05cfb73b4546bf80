// Goal: of a damaged file everything is kept that is whole, in order, and nothing that is not.
// Method: files with their footer cut off and pages overwritten at random, against the list of
// records that no such page touches; each structure damaged by itself; files within files.

#include <ffrecord/repair.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "appends.h"
#include "libffrecord/record/check/repair_source.h"
#include "libffrecord/record/check/verify_source.h"
#include "libffrecord/record/read/open_records.h"
#include "memory_files.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AsBytes;
using test::OpenOne;
using test::TempFolder;
using test::TestFileOptions;
using Records = std::vector<std::string>;

std::vector<RecordLocation> LocationsOf(const std::string& content) {
  const auto file = test::InMemory(content);
  const auto indexes = OpenIndexes(*file, {}).value();
  std::vector<RecordLocation> locations(indexes[0]->record_count());
  for (std::size_t i = 0; i < locations.size(); ++i)
    EXPECT_EQ(indexes[0]->Locate(i, locations[i]), ErrorCode::kOk);
  return locations;
}

// The repaired file, which must be whole, and what was said of it.
struct Repaired {
  TempFolder folder;
  RepairReport report;
  Records records;
  std::unique_ptr<RecordReader> reader;

  explicit Repaired(const std::shared_ptr<test::MemoryFiles>& damaged) {
    const auto result = RepairSource(*damaged, folder / "new.ffr");
    EXPECT_TRUE(result) << result.error().message;
    if (!result) return;
    report = result.value();
    reader = std::make_unique<RecordReader>(OpenOne(folder / "new.ffr").value());
    records = test::ReadAll(*reader);
    EXPECT_EQ(report.kept_count, records.size());
    EXPECT_EQ(report.fingerprint, reader->file(0).fingerprint);
    EXPECT_EQ(report.file_size_bytes, std::filesystem::file_size(folder / "new.ffr"));
    const auto verified = VerifyFile(folder / "new.ffr").value();
    EXPECT_TRUE(verified.whole()) << verified.problems[0];
  }
  explicit Repaired(const std::string& damaged) : Repaired(test::InMemory(damaged)) {}
};

std::uint64_t CountOf(const std::vector<IndexRange>& ranges) {
  std::uint64_t count = 0;
  for (const IndexRange& range : ranges) count += range.end - range.begin;
  return count;
}

TEST(RepairTest, OnlyTheRecordsOfDamagedPagesAreLost) {
  std::mt19937_64 random(test::Seed());
  RecordWriter::Options zstd;
  zstd.compress = true;
  RecordWriter::Options aligned;
  aligned.alignment_bytes = 512;
  for (const TestFileOptions& options :
       {TestFileOptions{.pages_per_segment = 2}, TestFileOptions{.writer = zstd},
        TestFileOptions{.writer = aligned, .pages_per_segment = 1}}) {
    Records records;
    for (int i = 0; i < 4000; ++i)
      records.push_back(i % 4 == 0 ? std::string(random() % 3000, 'r')
                                   : test::RandomText(random() % 1000, random));
    const std::string whole = test::FileOf(records, options);
    const auto locations = LocationsOf(whole);
    std::string damaged = whole.substr(0, whole.size() - 8192);  // Footer, tail, and more.
    std::vector<bool> is_damaged(damaged.size() / 4096 + 1);
    const std::size_t page_count = damaged.size() / 4096;
    for (std::size_t i = 0; i < page_count / 100 + 5; ++i) {  // 1 %. The first has the id.
      const std::size_t page = 1 + random() % (page_count - 1);
      is_damaged[page] = true;
      damaged.replace(page * 4096, 4096, test::RandomText(4096, random));
    }
    Records kept;
    std::vector<IndexRange> lost;
    for (std::size_t i = 0; i < records.size(); ++i) {
      const std::uint64_t begin = locations[i].offset_bytes - V2RecordHeader::kEncodedSizeBytes;
      const std::uint64_t end = locations[i].offset_bytes + locations[i].stored_size_bytes;
      bool bad = end > damaged.size();
      for (std::uint64_t page = begin / 4096; page <= (end - 1) / 4096 && !bad; ++page)
        bad = is_damaged[page];
      if (!bad) kept.push_back(records[i]);
      if (bad && !lost.empty() && lost.back().end == i)
        ++lost.back().end;
      else if (bad)
        lost.push_back({i, i + 1});
    }
    ASSERT_FALSE(lost.empty());
    const Repaired repaired(damaged);
    EXPECT_TRUE(repaired.records == kept);
    // How many there were behind the last that is kept, only the last page of the index says.
    if (lost.back().end == records.size() && repaired.report.lost.back() != lost.back())
      lost.pop_back();
    EXPECT_EQ(repaired.report.lost, lost);
    EXPECT_EQ(repaired.report.lost_count, CountOf(lost));
    EXPECT_FALSE(repaired.report.record_count_is_known);
    EXPECT_EQ(repaired.report.skipped_bytes > 0, !lost.empty());
  }
}

TEST(RepairTest, WholeFileLosesNothing) {
  const Schema schema =
      Schema::Make({{"x", ColumnType::kU16}, {"text", ColumnType::kBytes}}).value();
  RecordWriter::Options options;
  options.compress = true;
  options.alignment_bytes = 512;
  options.metadata = {{"name", {std::byte{7}}}};
  const Records records{"xy", std::string(900, 'z'), "xyz"};
  const std::string content = test::FileOf(records, {.schema = schema, .writer = options});
  const Repaired repaired(content);
  EXPECT_TRUE(repaired.report.lost_nothing());
  EXPECT_EQ(repaired.report.skipped_bytes, 0U);
  EXPECT_TRUE(repaired.report.record_count_is_known);
  EXPECT_EQ(repaired.records, records);
  EXPECT_EQ(repaired.reader->schema(), schema);
  EXPECT_EQ(repaired.reader->metadata(0).value(), options.metadata);
  EXPECT_EQ(repaired.reader->fingerprint(),
            OpenRecords(test::InMemory(content), {}).value().fingerprint());
  const auto locations = LocationsOf(test::ReadFile(repaired.folder / "new.ffr"));
  EXPECT_TRUE(locations[1].compressed());
  EXPECT_EQ(locations[2].offset_bytes % 512, 0U);
}

TEST(RepairTest, SectionsAreFoundByTheirHeadersWithoutAnyFooter) {
  const Schema schema = Schema::Make({{"text", ColumnType::kBytes}}).value();
  RecordWriter::Options options;
  options.metadata = {{"name", {std::byte{7}}}};
  const std::string content = test::FileOf({"a", "b"}, {.schema = schema, .writer = options});
  const Repaired repaired(content.substr(0, content.size() - 4096));
  EXPECT_EQ(repaired.records, (Records{"a", "b"}));
  EXPECT_EQ(repaired.reader->schema(), schema);
  EXPECT_EQ(repaired.reader->metadata(0).value(), options.metadata);
  EXPECT_EQ(repaired.report.other_losses, (std::vector<std::string>{"footer and tail"}));
}

TEST(RepairTest, DictionariesAreKept) {
  Records records;
  for (int i = 0; i < 3000; ++i)
    records.push_back("{\"user\": \"someone " + std::to_string(i * 7919 % 1000) +
                      "\", \"text\": \"words that come again\", \"number\": " + std::to_string(i) +
                      "}");
  RecordWriter::Options options;
  options.compress = true;
  options.train_dictionary_bytes = 4096;
  const std::string content = test::FileOf(records, {.writer = options});
  const Repaired repaired(content.substr(0, content.size() - 4096));
  EXPECT_EQ(repaired.records, records);
  EXPECT_LT(repaired.report.file_size_bytes, content.size() + 8192);
}

TEST(RepairTest, LostHeaderOfAFileWithoutACopyIsMadeAnewFromATail) {
  const auto path = std::filesystem::path(FFRECORD_TEST_DATA) / "ffrecord-v2" / "zstd.ffr";
  const Records records = test::ReadAll(OpenOne(path).value());
  std::string content = test::ReadFile(path);
  std::fill_n(content.begin(), 128, '\0');
  const Repaired repaired(content);
  EXPECT_EQ(repaired.records, records);
  ASSERT_EQ(repaired.report.other_losses.size(), 1U);
  EXPECT_NE(repaired.report.other_losses[0].find("header"), std::string::npos);
}

TEST(RepairTest, DamagedFrontIsMadeAnewFromItsCopy) {
  const Schema schema =
      Schema::Make({{"x", ColumnType::kU16}, {"name", ColumnType::kBytes}}).value();
  RecordWriter::Options options;
  options.alignment_bytes = 512;
  options.keys = true;
  options.key_column = "name";
  const Records records{"xyone", "xytwo"};
  std::string content =
      test::FileOf(records, {.schema = schema, .writer = options, .pages_per_segment = 3});
  std::fill_n(content.begin(), 400, 'x');  // Header, section header and schema.
  const Repaired repaired(content);
  EXPECT_EQ(repaired.records, records);
  EXPECT_EQ(repaired.reader->schema(), schema);
  EXPECT_TRUE(repaired.report.lost_nothing());
  EXPECT_EQ(LocationsOf(test::ReadFile(repaired.folder / "new.ffr"))[1].offset_bytes % 512, 0U);
  const auto writer = RecordWriter::Append(repaired.folder / "new.ffr", {}).value();
  EXPECT_EQ(writer.key_column(), "name");
}

TEST(RepairTest, FrontOfAFileThatBeganWithoutRecordsIsKnownByItsCopy) {
  const Schema schema = Schema::Make({{"x", ColumnType::kU16}}).value();
  RecordWriter::Options options;
  options.keys = true;
  const TempFolder folder;
  test::WriteRecords(folder / "a.ffr", {}, {.schema = schema, .writer = options});
  test::Append(folder / "a.ffr", {"aa", "bb"});
  test::Append(folder / "a.ffr", {"cc"});
  std::string content = test::ReadFile(folder / "a.ffr");
  std::fill_n(content.begin(), 4096, '\0');
  const auto reader = OpenRecords(test::InMemory(content), {});
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(reader.value().schema(), schema);
  const Repaired repaired(content);
  EXPECT_EQ(repaired.reader->schema(), schema);
  EXPECT_EQ(repaired.reader->record_count(), 3U);
  EXPECT_TRUE(repaired.report.lost_nothing());
}

TEST(RepairTest, WithoutAnyIdNothingIsMade) {
  std::string content = test::FileOf({"a", "b"});
  std::fill_n(content.begin(), 128, '\0');
  content.resize(content.size() - 64);
  const TempFolder folder;
  for (const std::string& bad : {content, std::string("text"), std::string()}) {
    const auto repaired = RepairSource(*test::InMemory(bad), folder / "new.ffr");
    ASSERT_FALSE(repaired);
    EXPECT_EQ(repaired.error().code, ErrorCode::kCorruption);
    EXPECT_EQ(folder.entry_count(), 0U);
  }
}

TEST(RepairTest, RecordsThatHoldFilesFoolNobody) {
  const std::string inner = test::FileOf({"inner 0", "inner 1", "inner 2"});
  // Of the same id, too: all files of these tests have it.
  const Records records{"before", inner, inner.substr(0, 300), "after"};
  std::string content = test::FileOf(records);
  const auto locations = LocationsOf(content);
  content[locations[1].offset_bytes + 5000] ^= 1;
  content.resize(content.size() - 4096);
  const Repaired repaired(content);
  EXPECT_EQ(repaired.records, (Records{"before", inner.substr(0, 300), "after"}));
  EXPECT_EQ(repaired.report.lost, (std::vector<IndexRange>{{1, 2}}));
}

TEST(RepairTest, RecordIsFoundByTheIndexOrByItsHeader) {
  const Records all{"zero", "first", "second"};
  std::string content = test::FileOf(all);
  const auto locations = LocationsOf(content);
  content[locations[1].offset_bytes - 10] ^= 1;
  const Repaired by_index(content);
  EXPECT_EQ(by_index.records, all);
  EXPECT_TRUE(by_index.report.lost_nothing());

  const std::size_t index_page = content.size() - 3 * 4096;  // Before the directory and the end.
  content[index_page + 100] ^= 1;
  const Repaired neither(content);
  EXPECT_EQ(neither.records, (Records{"zero", "second"}));
  EXPECT_EQ(neither.report.skipped_bytes, 32U + 5U);
  EXPECT_TRUE(neither.report.record_count_is_known);

  content[locations[1].offset_bytes - 10] ^= 1;
  EXPECT_EQ(Repaired(content).records, all) << "by the headers";
}

// Flips bits, or moves whole pages as writes to a wrong place do.
void Damage(std::string& content, std::mt19937_64& random) {
  const std::uint64_t page_count = content.size() / 4096;
  for (std::uint64_t i = 0; i < 1 + random() % 3; ++i) {
    const std::uint64_t from = random() % page_count * 4096;
    const std::uint64_t to = random() % page_count * 4096;
    const std::string moved = content.substr(from, 4096);
    const auto how = random() % 4;
    if (how == 0)
      for (std::uint64_t bits = random() % 400; bits > 0; --bits)
        content[random() % content.size()] ^= static_cast<char>(1 << random() % 8);
    else if (how == 1)
      std::fill_n(content.begin() + static_cast<std::ptrdiff_t>(from), 512, '\0');
    else if (how == 2)
      content.replace(from, 4096, content, to, 4096);
    if (how >= 2) content.replace(to, 4096, moved);
  }
}

// The records of `damaged` that a reader reads, by index; none if it opens no such file.
std::map<std::uint64_t, std::string> Readable(const std::string& damaged) {
  const auto reader = OpenRecords(test::InMemory(damaged), {});
  std::map<std::uint64_t, std::string> readable;
  if (!reader) return readable;
  const Batch batch = reader.value().ReadBatch(test::UpTo(reader.value().record_count())).value();
  for (std::size_t i = 0; i < batch.size(); ++i)
    if (batch.statuses()[i] == ErrorCode::kOk) readable[i] = test::AsString(batch.record(i));
  return readable;
}

// The records of a repair by the indices that they had, which the report tells.
std::map<std::uint64_t, std::string> Kept(const Repaired& repaired) {
  std::map<std::uint64_t, std::string> kept;
  auto lost = repaired.report.lost.begin();
  std::uint64_t index = 0;
  for (const std::string& record : repaired.records) {
    if (lost != repaired.report.lost.end() && index == lost->begin) index = (lost++)->end;
    kept[index++] = record;
  }
  return kept;
}

// Each record that a reader reads of a damaged file is kept, whatever is damaged.
TEST(RepairTest, WhatAReaderReadsIsKept) {
  std::mt19937_64 random(test::Seed());
  const Schema schema =
      Schema::Make({{"x", ColumnType::kU16}, {"text", ColumnType::kBytes}}).value();
  RecordWriter::Options all_parts;
  all_parts.compress = true;
  all_parts.keys = true;
  all_parts.copied_columns = {"x"};
  RecordWriter::Options plain;
  Records records;
  for (int i = 0; i < 600; ++i)
    records.push_back(i % 3 == 0 ? "xy" + std::string(random() % 900, 'r')
                                 : "xy" + test::RandomText(random() % 200, random));
  for (const RecordWriter::Options& options : {all_parts, plain}) {
    const TempFolder folder;
    test::WriteRecords(folder / "a.ffr", {records.begin(), records.begin() + 400},
                       {.schema = schema, .writer = options, .pages_per_segment = 1});
    test::Append(folder / "a.ffr", {records.begin() + 400, records.begin() + 500});
    test::Append(folder / "a.ffr", {records.begin() + 500, records.end()});
    const std::string whole = test::ReadFile(folder / "a.ffr");
    for (int round = 0; round < 60; ++round) {
      std::string damaged = whole;
      Damage(damaged, random);
      const auto readable = Readable(damaged);
      if (readable.empty()) continue;
      const auto kept = Kept(Repaired(damaged));
      for (const auto& [index, record] : readable) {
        ASSERT_TRUE(kept.contains(index)) << index << ", round " << round;
        EXPECT_EQ(kept.at(index), record) << index;
      }
      for (const auto& [index, record] : kept) EXPECT_EQ(record, records[index]) << index;
    }
  }
}

TEST(RepairTest, LossesAtTheEndAreCountedIfAFooterSaysSo) {
  std::string content = test::FileOf({"zero", "first", "second"});
  const auto locations = LocationsOf(content);
  content[locations[1].offset_bytes] ^= 1;
  content[locations[2].offset_bytes] ^= 1;
  const Repaired repaired(content);
  EXPECT_EQ(repaired.records, Records{"zero"});
  EXPECT_EQ(repaired.report.lost, (std::vector<IndexRange>{{1, 3}}));
}

TEST(RepairTest, BlocksThatCannotBeReadCostTheirOwnRecords) {
  Records records;
  for (int i = 0; i < 300; ++i)
    records.push_back(std::string(500, static_cast<char>('a' + i % 26)));
  const std::string content = test::FileOf(records);
  const auto locations = LocationsOf(content);
  const auto file = test::InMemory(content);
  constexpr std::uint64_t kBad = 10 * 4096;
  file->fault = [](const RangeRead& range) {
    const bool hit =
        range.offset_bytes < kBad + 4096 && range.offset_bytes + range.destination.size() > kBad;
    return hit ? ErrorCode::kIo : ErrorCode::kOk;
  };
  Records kept;
  for (std::size_t i = 0; i < records.size(); ++i)
    if (locations[i].offset_bytes - 32 >= kBad + 4096 || locations[i].offset_bytes + 500 <= kBad)
      kept.push_back(records[i]);
  ASSERT_LT(kept.size(), records.size());
  EXPECT_TRUE(Repaired(file).records == kept);
}

TEST(RepairTest, OlderCommitDoesNotSpeakForTheFile) {
  Records records;
  for (int i = 0; i < 30; ++i) records.push_back("record " + std::to_string(i));
  const test::TestFile file({records.begin(), records.begin() + 10});
  const std::uint64_t older_size = std::filesystem::file_size(file.path());
  {
    auto writer = RecordWriter::Append(file.path(), {.metadata = Metadata{{"newer", {}}}}).value();
    for (int i = 10; i < 30; ++i)
      ASSERT_TRUE(writer.Write(AsBytes(records[static_cast<std::size_t>(i)])));
    ASSERT_TRUE(writer.Close());
  }
  const std::string whole = test::ReadFile(file.path());
  const auto locations = LocationsOf(whole);

  // Records of the newest commit, and the metadata, are found without its footer.
  std::string damaged = whole;
  damaged[damaged.size() - 10] ^= 1;
  const Repaired all(damaged);
  EXPECT_EQ(all.records, records);
  EXPECT_EQ(all.reader->metadata(0).value(), (Metadata{{"newer", {}}}));
  EXPECT_FALSE(all.report.lost_nothing());
  EXPECT_FALSE(all.report.record_count_is_known);

  // The index says how many there were, whatever became of their ends.
  std::fill(damaged.begin() + static_cast<std::ptrdiff_t>(locations[25].offset_bytes) - 32,
            damaged.begin() + static_cast<std::ptrdiff_t>(locations[29].offset_bytes) + 9, '\0');
  const Repaired some(damaged);
  EXPECT_EQ(some.records.size(), 25U);
  EXPECT_EQ(some.report.lost, (std::vector<IndexRange>{{25, 30}}));

  // Nothing of them is left: still nobody says that nothing was lost.
  const Repaired cut(whole.substr(0, older_size + 5));
  EXPECT_EQ(cut.records.size(), 10U);
  EXPECT_FALSE(cut.report.record_count_is_known);
  EXPECT_FALSE(cut.report.lost_nothing());
}

TEST(RepairTest, UnfinishedAppendIsKeptAsFarAsItIsWhole) {
  const test::TestFile file({"zero", "first"});
  auto writer = RecordWriter::Append(file.path(), {}).value();
  for (int i = 0; i < 20; ++i)
    ASSERT_TRUE(writer.Write(AsBytes(std::string(100'000, static_cast<char>('a' + i)))));
  const Repaired repaired(test::ReadFile(file.path()));  // As a kill now would leave it.
  ASSERT_GT(repaired.records.size(), 10U);
  EXPECT_EQ(repaired.records[2], std::string(100'000, 'a'));
  EXPECT_LE(repaired.report.lost_count, 1U) << "of the last there is perhaps only the beginning";
  EXPECT_FALSE(repaired.report.lost_nothing());
}

TEST(RepairTest, SchemaOfTheFirstFilesIsFoundByTheirFooter) {
  const auto path = std::filesystem::path(FFRECORD_TEST_DATA) / "ffrecord-v2" / "schema.ffr";
  const auto old = OpenOne(path).value();
  const Repaired repaired(test::ReadFile(path));
  EXPECT_EQ(repaired.reader->schema(), old.schema());
  EXPECT_EQ(repaired.records, test::ReadAll(old));
  EXPECT_TRUE(repaired.report.lost_nothing());
}

TEST(RepairTest, Version1KeepsWhatItsTablesShow) {
  Records records{"zero", "", "second", "third"};
  std::string content = test::FileOf(records, {.version = 1});
  content[content.size() - 6 - 2] ^= 1;  // In "second".
  const Repaired repaired(content);
  EXPECT_EQ(repaired.report.format_version, 1U);
  EXPECT_EQ(repaired.records, (Records{"zero", "", "third"}));
  EXPECT_EQ(repaired.report.lost, (std::vector<IndexRange>{{2, 3}}));
  EXPECT_EQ(repaired.reader->file(0).format_version, 1U);
  const Repaired cut(content.substr(0, content.size() - 1));
  EXPECT_EQ(cut.records, (Records{"zero", ""}));
  EXPECT_EQ(cut.report.lost_count, 2U);
}

TEST(RepairTest, DestinationIsWholeOrNotThere) {
  const test::TestFile file({"zero", "first"});
  const TempFolder folder;
  test::WriteFile(folder / "there.ffr", "old");
  EXPECT_EQ(RepairFile(file.path(), folder / "there.ffr").error().code, ErrorCode::kConflict);
  RepairOptions options;
  options.progress = [](auto, auto) { return false; };
  EXPECT_EQ(RepairFile(file.path(), folder / "new.ffr", options).error().code,
            ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(folder.entry_count(), 1U);
  EXPECT_EQ(test::ReadFile(folder / "there.ffr"), "old");
  EXPECT_EQ(RepairFile("no-such-file.ffr", folder / "new.ffr").error().code, ErrorCode::kNotFound);
  // In place: the old file is read to its end before its name goes to the new one.
  ASSERT_TRUE(RepairFile(file.path(), file.path(), {.replace = true}));
  EXPECT_EQ(test::ReadAll(OpenOne(file.path()).value()), file.records());
}

}  // namespace
}  // namespace ffrecord
