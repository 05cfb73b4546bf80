// Goal: a column is read alone where the file has a copy of it, and is right in any case.
// Method: files of several segments and commits, with and without copies; bytes that are read are
// counted; copies that are damaged, and sections that lie.

#include <gtest/gtest.h>

#include <array>

#include "libffrecord/format/v2_column_copy.h"
#include "libffrecord/record/check/verify_source.h"
#include "libffrecord/record/read/open_records.h"
#include "memory_files.h"
#include "memory_output.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

constexpr std::size_t kLabel = 0;
constexpr std::size_t kImage = 1;
constexpr std::size_t kBox = 2;
constexpr std::size_t kImageSizeBytes = 2000;

Schema Columns() {
  return Schema::Make({{"label", ColumnType::kI64},
                       {"image", ColumnType::kBytes},
                       {"box", ColumnType::kU16, {4}}})
      .value();
}

std::int64_t LabelOf(std::uint64_t i) { return static_cast<std::int64_t>(i * i) - 7; }
std::array<std::uint16_t, 4> BoxOf(std::uint64_t i) {
  const auto low = static_cast<std::uint16_t>(i);
  return {low, static_cast<std::uint16_t>(low + 1), 0, 0xffff};
}

std::string Record(std::uint64_t i) {
  const std::int64_t label = LabelOf(i);
  const auto box = BoxOf(i);
  const std::string image(kImageSizeBytes, static_cast<char>(i));
  const std::array<std::span<const std::byte>, 3> fields{
      std::as_bytes(std::span(&label, 1)), test::AsBytes(image), std::as_bytes(std::span(box))};
  std::vector<std::byte> record;
  EXPECT_TRUE(Columns().Join(fields, record));
  return test::AsString(record);
}

std::vector<std::string> Records(std::uint64_t count) {
  std::vector<std::string> records;
  for (std::uint64_t i = 0; i < count; ++i) records.push_back(Record(i));
  return records;
}

// Segments of 170 records.
test::TestFileOptions Copied(std::vector<std::string> names) {
  test::TestFileOptions options;
  options.schema = Columns();
  options.pages_per_segment = 1;
  options.writer.copied_columns = std::move(names);
  return options;
}

std::vector<std::int64_t> Labels(const RecordReader& reader, std::uint64_t first,
                                 std::uint64_t count) {
  std::vector<std::int64_t> labels(count);
  const auto read =
      reader.ReadColumn(kLabel, first, count, std::as_writable_bytes(std::span(labels)));
  EXPECT_TRUE(read) << read.error().message;
  return labels;
}

std::vector<std::int64_t> RightLabels(std::uint64_t first, std::uint64_t count) {
  std::vector<std::int64_t> labels;
  for (std::uint64_t i = first; i < first + count; ++i) labels.push_back(LabelOf(i));
  return labels;
}

void ExpectAllRight(const RecordReader& reader) {
  const std::uint64_t count = reader.record_count();
  EXPECT_EQ(Labels(reader, 0, count), RightLabels(0, count));
  std::vector<std::array<std::uint16_t, 4>> boxes(count);
  ASSERT_TRUE(reader.ReadColumn(kBox, 0, count, std::as_writable_bytes(std::span(boxes))));
  for (std::uint64_t i = 0; i < count; ++i) ASSERT_EQ(boxes[i], BoxOf(i));
}

class ColumnCountTest : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ColumnCountTest, ValuesAreThoseOfTheRecords) {
  const std::uint64_t count = GetParam();
  for (const auto& names : {std::vector<std::string>{}, {"label"}, {"box", "label"}}) {
    const auto files = test::InMemory(test::FileOf(Records(count), Copied(names)));
    const auto reader = OpenRecords(files, {}).value();
    ExpectAllRight(reader);
    const auto report = VerifySource(*files).value();
    EXPECT_TRUE(report.whole()) << report.problems[0];
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, ColumnCountTest, testing::Values(0, 1, 169, 170, 171, 340, 500));

TEST(ColumnCopiesTest, AnyPartCanBeRead) {
  const auto files = test::InMemory(test::FileOf(Records(500), Copied({"label"})));
  const auto reader = OpenRecords(files, {}).value();
  std::mt19937_64 random(test::Seed());
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t first = random() % 501;
    const std::uint64_t count = random() % (501 - first);
    ASSERT_EQ(Labels(reader, first, count), RightLabels(first, count));
  }
}

TEST(ColumnCopiesTest, CopyIsReadAndNothingElse) {
  const auto files = test::InMemory(test::FileOf(Records(500), Copied({"label"})));
  const auto reader = OpenRecords(files, {}).value();
  files->ResetCounts();
  Labels(reader, 0, 500);
  EXPECT_EQ(files->range_bytes(), 0U);
  // The section, of three chunks, and the values.
  EXPECT_EQ(files->map_bytes(), ColumnCopySizeBytes(3) + 500 * 8);

  const auto plain = test::InMemory(test::FileOf(Records(500), Copied({})));
  const auto plain_reader = OpenRecords(plain, {}).value();
  plain->ResetCounts();
  Labels(plain_reader, 0, 500);
  EXPECT_GT(plain->range_bytes(), 500 * kImageSizeBytes);
}

TEST(ColumnCopiesTest, ListOfFilesIsOneColumn) {
  const auto records = Records(400);
  const std::vector<std::string> first(records.begin(), records.begin() + 180);
  const std::vector<std::string> second(records.begin() + 180, records.end());
  const auto files = std::make_shared<test::MemoryFiles>(std::vector<std::string>{
      test::FileOf(first, Copied({"label"})), test::FileOf({}, Copied({"label"})),
      test::FileOf(second, Copied({}))});
  const auto reader = OpenRecords(files, {}).value();
  ExpectAllRight(reader);
  EXPECT_EQ(Labels(reader, 170, 20), RightLabels(170, 20));
}

TEST(ColumnCopiesTest, AppendGoesOnWithTheLastChunk) {
  const test::TempFolder folder;
  const auto records = Records(600);
  test::WriteRecords(folder / "a.ffr", {records.begin(), records.begin() + 100},
                     Copied({"label", "box"}));
  std::size_t begin = 100;
  for (const std::size_t end : {101U, 170U, 170U, 300U, 340U, 600U}) {
    auto writer = RecordWriter::Append(folder / "a.ffr", {}).value();
    for (; begin < end; ++begin) ASSERT_TRUE(writer.Write(test::AsBytes(records[begin])));
    ASSERT_TRUE(writer.Close());
    const auto files = test::InMemory(test::ReadFile(folder / "a.ffr"));
    const auto reader = OpenRecords(files, {}).value();
    files->ResetCounts();
    ExpectAllRight(reader);
    EXPECT_EQ(files->range_bytes(), 0U);
    const auto report = VerifySource(*files).value();
    EXPECT_TRUE(report.whole()) << report.problems[0];
  }
}

TEST(ColumnCopiesTest, WrongColumnsAreRefused) {
  const auto schema = Schema::Make({{"wide", ColumnType::kU8, {65}},
                                    {"fits", ColumnType::kU8, {64}},
                                    {"name", ColumnType::kUtf8},
                                    {"a", ColumnType::kU8, {64}}})
                          .value();
  const test::TempFolder folder;
  const auto code = [&](std::vector<std::string> names) {
    RecordWriter::Options options;
    options.copied_columns = std::move(names);
    const auto writer = RecordWriter::Create(folder / "a.ffr", schema, options);
    return writer ? ErrorCode::kOk : writer.error().code;
  };
  EXPECT_EQ(code({"fits", "a"}), ErrorCode::kOk);
  EXPECT_EQ(code({"wide"}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({"name"}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({"none"}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({"a", "a"}), ErrorCode::kInvalidArgument);
}

TEST(ColumnCopiesTest, WrongReadsAreRefused) {
  const auto files = test::InMemory(test::FileOf(Records(10), Copied({"label"})));
  const auto reader = OpenRecords(files, {}).value();
  std::vector<std::byte> room(80);
  const auto code = [&](std::size_t column, std::uint64_t first, std::uint64_t count,
                        std::size_t size) {
    const auto read = reader.ReadColumn(column, first, count, std::span(room).first(size));
    return read ? ErrorCode::kOk : read.error().code;
  };
  EXPECT_EQ(code(kLabel, 0, 10, 80), ErrorCode::kOk);
  EXPECT_EQ(code(kLabel, 10, 0, 0), ErrorCode::kOk);
  EXPECT_EQ(code(kLabel, 0, 10, 79), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(kLabel, 0, 9, 80), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(kImage, 0, 1, 8), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(3, 0, 1, 8), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(kLabel, 5, 6, 48), ErrorCode::kOutOfRange);
  EXPECT_EQ(code(kLabel, std::uint64_t{1} << 63, std::uint64_t{1} << 63, 8),
            ErrorCode::kOutOfRange);
}

// Where the first copy of the file has its chunks, and where its section lies.
struct CopyPlaces {
  V2Section section;
  ColumnCopy copy;
};
CopyPlaces PlacesIn(const test::MemoryFiles& files, std::string& content) {
  const auto index = std::move(OpenIndexes(files, {}).value()[0]);
  const V2Section section = *index->v2_layout()->footer.Find(V2Section::kColumnCopy);
  const auto bytes = test::AsBytes(content).subspan(section.offset_bytes, section.size_bytes);
  return {section, DecodeColumnCopy(bytes, (section.size_bytes - 8) / 16).value()};
}

TEST(ColumnDamageTest, DamagedCopyCostsTimeAndNothingElse) {
  const std::string whole = test::FileOf(Records(400), Copied({"label"}));
  std::string found_in = whole;
  const auto places = PlacesIn(*test::InMemory(whole), found_in);
  for (const std::uint64_t offset :
       {places.copy.chunks[1].offset_bytes + 9, places.section.offset_bytes + 1,
        places.section.offset_bytes + 12}) {
    std::string content = whole;
    content[offset] ^= 4;
    const auto files = test::InMemory(content);
    ExpectAllRight(OpenRecords(files, {}).value());
    EXPECT_FALSE(VerifySource(*files).value().whole());
  }
}

TEST(ColumnDamageTest, RecordThatCannotBeReadFailsTheColumn) {
  std::string content = test::FileOf(Records(50), Copied({}));
  content[content.find(std::string(kImageSizeBytes, static_cast<char>(20)))] ^= 1;
  const auto files = test::InMemory(content);
  const auto reader = OpenRecords(files, {}).value();
  std::vector<std::byte> room(400);
  const auto read = reader.ReadColumn(kLabel, 0, 50, room);
  EXPECT_EQ(read.error().code, ErrorCode::kCorruption);
  EXPECT_NE(read.error().message.find("record 20"), std::string::npos) << read.error().message;
  EXPECT_EQ(Labels(reader, 21, 29), RightLabels(21, 29));
}

// Sections that no writer makes, with the right check.
TEST(ColumnDamageTest, LyingSectionsAreNotBelieved) {
  const auto file_with = [](const std::vector<std::byte>& section) {
    test::MemoryOutput output;
    V2Header header;
    header.required_features = V2Header::kSchema;
    header.append_features = V2Header::kColumnCopies;
    const auto schema = Columns().Encode();
    V2Stream stream(output, header, schema);
    EXPECT_TRUE(stream.WriteFront(schema));
    const std::string record = Record(0);
    EXPECT_TRUE(stream.AddRecord(test::AsBytes(record), test::AsBytes(record)));
    EXPECT_TRUE(stream.EndSegment());
    EXPECT_TRUE(stream.AddSection(V2Section::kColumnCopy, section));
    EXPECT_TRUE(stream.Commit());
    return output.content;
  };
  const std::uint64_t huge = 0xffff'ffff'ffff'fff0;
  for (const ColumnCopy& copy : std::vector<ColumnCopy>{{0, {}},
                                                        {0, {{0, 0}}},
                                                        {0, {{huge, 0}}},
                                                        {0, {{4096, 0}}},
                                                        {0, {{4096, 0}, {4096, 0}}},
                                                        {1, {{4096, 0}}},
                                                        {9, {{4096, 0}}},
                                                        {0xffff'ffff, {{4096, 0}}}}) {
    const auto files = test::InMemory(file_with(EncodeColumnCopy(copy)));
    EXPECT_EQ(Labels(OpenRecords(files, {}).value(), 0, 1), RightLabels(0, 1));
    EXPECT_FALSE(VerifySource(*files).value().whole());
  }
  EXPECT_FALSE(DecodeColumnCopy({}, 0));
  EXPECT_FALSE(DecodeColumnCopy(std::vector<std::byte>(7), 0));
  EXPECT_TRUE(DecodeColumnCopy(std::vector<std::byte>(8), 0));
  EXPECT_FALSE(DecodeColumnCopy(std::vector<std::byte>(8), 1));
}

}  // namespace
}  // namespace ffrecord
