// Goal: a reader returns exactly what was written, or says which record it could not return.
// Method: files of both versions written and read back whole, in odd orders, or with one thing
// wrong.

#include <ffrecord/record_reader.h>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>

#include "libffrecord/format/v2_index.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/source/local_files.h"
#include "libffrecord/source/range_reader.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AsString;
using test::OpenOne;
using test::ReadAll;
using test::TestFile;
using test::TestFileOptions;
using test::UpTo;

constexpr std::array<std::uint64_t, 3> kAll{0, 1, 2};

// Sizes around every limit of planning: empty, tiny, a gap's worth, a piece's worth and beyond.
std::vector<std::string> RecordsOfAllSizes() {
  std::mt19937_64 random(test::Seed());
  std::vector<std::string> records;
  for (const int size : {0, 1, 100, 4096, 0, 0, 16 << 10, (16 << 10) + 1, 110'000, 1 << 20,
                         (1 << 20) + 1, 3, (3 << 20) + 17, 0, 5})
    records.push_back(test::RandomText(static_cast<std::size_t>(size), random));
  records.push_back(std::string(200'000, 'c'));  // Compresses well.
  for (int i = 0; i < 400; ++i) records.push_back("small " + std::to_string(i));
  return records;
}

struct ReaderCase {
  const char* name;
  TestFileOptions file;
  RecordReader::Options reader;
};

std::vector<ReaderCase> Cases() {
  RecordReader::Options direct;
  direct.io = IoPolicy::kDirect;
  RecordReader::Options shallow;
  shallow.queue_depth = 1;
  RecordWriter::Options zstd;
  zstd.compress = true;
  RecordWriter::Options aligned;
  aligned.alignment_bytes = 512;
  RecordWriter::Options page;
  page.compress = true;
  page.alignment_bytes = 4096;
  return {{"v1", {.version = 1}, {}},
          {"v1_direct", {.version = 1}, direct},
          {"v2", {}, {}},
          {"v2_direct", {}, direct},
          {"v2_one_at_a_time", {}, shallow},
          {"v2_zstd", {.writer = zstd}, {}},
          {"v2_zstd_direct", {.writer = zstd}, direct},
          {"v2_aligned_direct", {.writer = aligned}, direct},
          {"v2_zstd_page_aligned", {.writer = page}, {}},
          {"v2_segments_of_one_page", {.writer = {}, .pages_per_segment = 1}, {}}};
}

class RecordReaderOfTest : public testing::TestWithParam<ReaderCase> {};

TEST_P(RecordReaderOfTest, ReturnsAnyBatchInRequestOrder) {
  const auto records = RecordsOfAllSizes();
  const TestFile file(records, GetParam().file);
  const auto reader = OpenOne(file.path(), GetParam().reader);
  ASSERT_TRUE(reader) << reader.error().message;
  ASSERT_EQ(reader.value().record_count(), records.size());
  EXPECT_EQ(reader.value().file(0).fingerprint, file.summary().fingerprint);
  EXPECT_EQ(reader.value().file(0).size_bytes, file.summary().file_size_bytes);

  EXPECT_EQ(ReadAll(reader.value()), records);
  std::mt19937_64 random(test::Seed());
  for (int round = 0; round < 20; ++round) {
    std::vector<std::uint64_t> indices(random() % 100);
    for (auto& index : indices) index = random() % records.size();
    const auto batch = reader.value().ReadBatch(indices);
    ASSERT_TRUE(batch) << batch.error().message;
    ASSERT_EQ(batch.value().size(), indices.size());
    for (std::size_t i = 0; i < indices.size(); ++i)
      ASSERT_EQ(AsString(batch.value().record(i)), records[indices[i]]) << indices[i];
  }
}

TEST_P(RecordReaderOfTest, TellsSizesWithoutReading) {
  const auto records = RecordsOfAllSizes();
  const TestFile file(records, GetParam().file);
  const auto reader = OpenOne(file.path(), GetParam().reader);
  ASSERT_TRUE(reader) << reader.error().message;
  std::vector<std::uint64_t> indices = UpTo(records.size());
  std::ranges::reverse(indices);
  std::vector<std::int64_t> sizes(indices.size(), -1);

  ASSERT_TRUE(reader.value().ReadSizes(indices, sizes));

  for (std::size_t i = 0; i < indices.size(); ++i)
    ASSERT_EQ(sizes[i], static_cast<std::int64_t>(records[indices[i]].size())) << indices[i];
  indices[3] = records.size();
  EXPECT_EQ(reader.value().ReadSizes(indices, sizes).error().code, ErrorCode::kOutOfRange);
}

INSTANTIATE_TEST_SUITE_P(AllForms, RecordReaderOfTest, testing::ValuesIn(Cases()),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(RecordReaderTest, MissingFileIsNotFound) {
  const auto reader = OpenOne("no-such-file.ffr");
  ASSERT_FALSE(reader);
  EXPECT_EQ(reader.error().code, ErrorCode::kNotFound);
  EXPECT_NE(reader.error().message.find("no-such-file.ffr"), std::string::npos);
}

TEST(RecordReaderTest, EmptyListAndFoolishOptionsAreRefused) {
  EXPECT_EQ(RecordReader::Open({}, {}).error().code, ErrorCode::kInvalidArgument);
  const TestFile file({"a"});
  RecordReader::Options options;
  options.queue_depth = 0;
  EXPECT_EQ(OpenOne(file.path(), options).error().code, ErrorCode::kInvalidArgument);
  options.queue_depth = 4097;
  EXPECT_EQ(OpenOne(file.path(), options).error().code, ErrorCode::kInvalidArgument);
}

TEST(RecordReaderTest, FolderIsRefused) {
  const test::TempFolder folder;
  EXPECT_EQ(OpenOne(folder.path()).error().code, ErrorCode::kInvalidArgument);
}

TEST(RecordReaderTest, ForeignFileIsRefusedByName) {
  const test::TempFolder folder;
  for (const std::string& content :
       {std::string(), std::string("x"), std::string("\x89PNG\r\n\x1a\n and then some image data"),
        std::string(100'000, ' '), std::string("name,age,city\nanna,3,Bonn\n"),
        std::string("PAR1 and whatever columns there are")}) {
    test::WriteFile(folder / "foreign.ffr", content);
    const auto reader = OpenOne(folder / "foreign.ffr");
    ASSERT_FALSE(reader) << content.size();
    // Of a few bytes nobody can say what they were.
    EXPECT_EQ(reader.error().code,
              content.size() < 12 ? ErrorCode::kCorruption : ErrorCode::kInvalidArgument);
    EXPECT_NE(reader.error().message.find("foreign.ffr"), std::string::npos);
    EXPECT_NE(reader.error().message.find("not an FFRecord file"), std::string::npos);
  }
}

TEST(RecordReaderTest, RecordFileWhoseFrontIsOverwrittenIsDamagedAndNotForeign) {
  const test::TempFolder folder;
  const TestFile file(std::vector<std::string>(100, "record"));
  const std::string whole = test::ReadFile(file.path());
  for (const std::string& front :
       {whole.substr(whole.size() - 4096), std::string(4096, '\0'), std::string(4096, 't'),
        std::string("\x89PNG\r\n\x1a\n and then some image data")}) {
    const std::string content = front + whole.substr(front.size());
    test::WriteFile(folder / "front.ffr", content);
    const auto reader = OpenOne(folder / "front.ffr");
    if (reader) continue;  // By the copy of the header at the end.
    EXPECT_EQ(reader.error().code, ErrorCode::kCorruption);
    EXPECT_NE(reader.error().message.find("front.ffr"), std::string::npos);
    EXPECT_NE(reader.error().message.find("ffrecord repair"), std::string::npos)
        << reader.error().message;
  }
}

TEST(RecordReaderTest, IndexOutOfRangeIsRefusedBeforeAnyRead) {
  for (const int version : {1, 2}) {
    const TestFile file({"zero", "first", "second"}, {.version = version});
    const auto reader = OpenOne(file.path());
    for (const std::uint64_t index : {std::uint64_t{3}, ~std::uint64_t{0}}) {
      const std::array<std::uint64_t, 2> indices{0, index};
      const auto batch = reader.value().ReadBatch(indices);
      ASSERT_FALSE(batch);
      EXPECT_EQ(batch.error().code, ErrorCode::kOutOfRange);
      EXPECT_NE(batch.error().message.find(index == 3 ? "index 3" : "index -1"), std::string::npos);
    }
  }
}

TEST(RecordReaderTest, FlippedByteFailsItsOwnRecordAndNoOther) {
  for (const int version : {1, 2}) {
    TestFile file({"zero", "first", "second"}, {.version = version});
    file.FlipByteOfRecord(1);
    const auto reader = OpenOne(file.path()).value();

    const Batch batch = reader.ReadBatch(kAll).value();

    EXPECT_EQ(batch.statuses()[0], ErrorCode::kOk);
    EXPECT_EQ(batch.statuses()[1], ErrorCode::kCorruption);
    EXPECT_EQ(batch.statuses()[2], ErrorCode::kOk);
    EXPECT_EQ(AsString(batch.record(2)), "second");
    EXPECT_TRUE(batch.record(1).empty());
    EXPECT_EQ(batch.sizes_bytes()[1], 0);
    const std::string why = reader.Describe(1, ErrorCode::kCorruption);
    EXPECT_NE(why.find("test.ffr: record 1, 5 bytes at"), std::string::npos) << why;
  }
}

TEST(RecordReaderTest, WithoutChecksumsDamageIsReturned) {
  TestFile file({"zero", "first", "second"});
  file.FlipByteOfRecord(1);
  RecordReader::Options options;
  options.verify_checksums = false;
  EXPECT_EQ(ReadAll(OpenOne(file.path(), options).value())[1], "girst");
}

TEST(RecordReaderTest, SameIndexTwiceSharesItsBytes) {
  const std::string large(6000, 'x');
  const TestFile file({"zero", "first", large});
  for (const IoPolicy io : {IoPolicy::kBuffered, IoPolicy::kDirect}) {
    const auto reader = OpenOne(file.path(), {.io = io}).value();
    const std::array<std::uint64_t, 5> indices{2, 2, 2, 0, 2};
    const Batch batch = reader.ReadBatch(indices).value();
    EXPECT_EQ(AsString(batch.record(3)), "zero");
    for (const std::size_t position : {0U, 1U, 2U, 4U}) {
      EXPECT_EQ(AsString(batch.record(position)), large);
      EXPECT_EQ(batch.record(position).data(), batch.record(0).data());
    }
  }
}

TEST(RecordReaderTest, EmptyBatchIsABatch) {
  const TestFile file({"zero"});
  const Batch batch = OpenOne(file.path()).value().ReadBatch({}).value();
  EXPECT_EQ(batch.size(), 0U);
  EXPECT_TRUE(batch.data().empty());
}

TEST(RecordReaderTest, BatchOutlivesItsReader) {
  const TestFile file({"zero", "first"});
  auto reader = OpenOne(file.path());
  const Batch batch = reader.value().ReadBatch(std::array<std::uint64_t, 1>{1}).value();
  reader = Error{ErrorCode::kNotFound, "gone"};
  EXPECT_EQ(AsString(batch.record(0)), "first");
}

TEST(RecordReaderTest, ListIsOneSequenceInListOrder) {
  const test::TempFolder folder;
  std::vector<std::filesystem::path> paths;
  std::vector<std::string> expected;
  for (int i = 0; i < 40; ++i) {
    std::vector<std::string> records;
    for (int k = 0; k < i % 4; ++k) records.push_back(std::to_string(i) + "/" + std::to_string(k));
    paths.push_back(folder / (std::to_string(i) + ".ffr"));
    test::WriteRecords(paths.back(), records, {.version = 1 + i % 2});
    expected.insert(expected.end(), records.begin(), records.end());
  }
  paths.push_back(paths[7]);  // A file may be named twice.
  for (int k = 0; k < 3; ++k) expected.push_back("7/" + std::to_string(k));

  const auto reader = RecordReader::Open(paths, {});

  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(ReadAll(reader.value()), expected);
  EXPECT_EQ(reader.value().file_count(), 41U);
  EXPECT_EQ(reader.value().file(40).first_index, expected.size() - 3);
  EXPECT_EQ(reader.value().file(40).name, paths[7].string());
  std::swap(paths[1], paths[2]);
  EXPECT_NE(RecordReader::Open(paths, {}).value().fingerprint(), reader.value().fingerprint());
}

TEST(RecordReaderTest, FilesOfDifferentColumnsAreRefusedByName) {
  const test::TempFolder folder;
  const std::vector<std::filesystem::path> paths{folder / "a.ffr", folder / "b.ffr"};
  test::WriteRecords(paths[0], {"1"}, {.schema = Schema::Make({{"x", ColumnType::kU8}}).value()});
  test::WriteRecords(paths[1], {"1"});
  const auto reader = RecordReader::Open(paths, {});
  ASSERT_FALSE(reader);
  EXPECT_EQ(reader.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(reader.error().message.find("b.ffr"), std::string::npos);
}

TEST(RecordReaderTest, DamagedFileInAListIsNamed) {
  const test::TempFolder folder;
  const std::vector<std::filesystem::path> paths{folder / "a.ffr", folder / "b.ffr"};
  test::WriteRecords(paths[0], {"1"});
  test::WriteFile(paths[1], test::ReadFile(paths[0]).substr(0, 5000));
  const auto reader = RecordReader::Open(paths, {});
  ASSERT_FALSE(reader);
  EXPECT_NE(reader.error().message.find("b.ffr: file is truncated"), std::string::npos)
      << reader.error().message;
}

TEST(RecordReaderTest, ColumnsOfABatchAreViews) {
  const Schema schema =
      Schema::Make({{"label", ColumnType::kU16}, {"text", ColumnType::kUtf8}}).value();
  TestFile file({"\1\1one", "\2\2", "\3\3three"}, {.schema = schema});
  file.FlipByteOfRecord(1);
  const auto reader = OpenOne(file.path()).value();
  const Batch batch = reader.ReadBatch(std::array<std::uint64_t, 3>{2, 1, 0}).value();
  EXPECT_EQ(batch.schema(), schema);

  const auto text = batch.field(1).value();
  std::string labels(6, '?');
  ASSERT_TRUE(batch.GatherFixed(0, std::as_writable_bytes(std::span(labels))));

  const auto view = [&](std::size_t i) {
    return AsString(batch.data().subspan(static_cast<std::size_t>(text.starts_bytes[i]),
                                         static_cast<std::size_t>(text.sizes_bytes[i])));
  };
  EXPECT_EQ(view(0), "three");
  EXPECT_EQ(view(1), "");
  EXPECT_EQ(text.starts_bytes[1], 0);
  EXPECT_EQ(view(2), "one");
  EXPECT_EQ(labels, std::string("\3\3\0\0\1\1", 6));
  EXPECT_EQ(batch.GatherFixed(0, {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(batch.GatherFixed(1, {}).error().code, ErrorCode::kInvalidArgument);
}

// A file of so many records of which nothing exists but what opening needs: 24 GB of holes.
void MakeHuge(const std::filesystem::path& path, std::uint64_t record_count) {
  V2Header header;
  const IndexGeometry geometry{record_count, header.pages_per_segment};
  std::vector<std::uint64_t> segments(geometry.segment_count());
  for (std::size_t i = 0; i < segments.size(); ++i) segments[i] = 4096 + i * (256 * 4096 + 4096);
  const auto directory = std::as_bytes(std::span(segments));
  const std::uint64_t directory_offset = 4096 + segments.size() * (256 * 4096 + 4096);
  V2Footer footer;
  footer.record_count = record_count;
  footer.sections = {{V2Section::kSegmentDirectory, directory_offset, directory.size(),
                      SectionCheck(directory, header.file_id, directory_offset)}};
  const auto encoded_footer = EncodeV2Footer(footer);
  const std::uint64_t footer_offset = (directory_offset + directory.size() + 4095) / 4096 * 4096;
  const std::uint64_t file_size = footer_offset + 4096;
  std::array<std::byte, V2Header::kEncodedSizeBytes> encoded_header;
  EncodeV2Header(header, encoded_header);
  std::array<std::byte, V2Tail::kEncodedSizeBytes> tail;
  EncodeV2Tail({footer_offset, encoded_footer.size(),
                FooterCheck(encoded_footer, header.file_id, footer_offset)},
               header.file_id, file_size, tail);
  std::ofstream stream(path, std::ios::binary);
  const auto put = [&](std::uint64_t offset, std::span<const std::byte> bytes) {
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
  };
  put(0, encoded_header);
  put(directory_offset, directory);
  put(footer_offset, encoded_footer);
  put(file_size - tail.size(), tail);
  ASSERT_TRUE(stream.flush());
}

TEST(RecordReaderTest, OpensABillionRecordsWithoutReadingTheirIndex) {
  const test::TempFolder folder;
  MakeHuge(folder / "huge.ffr", 1'000'000'000);
  rusage before{};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &before), 0);
  const auto reader = OpenOne(folder / "huge.ffr");
  rusage after{};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &after), 0);

  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(reader.value().record_count(), 1'000'000'000U);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 8 << 10);  // KiB
  // Its index pages are holes, and a hole is no page.
  const Batch batch =
      reader.value().ReadBatch(std::array<std::uint64_t, 2>{0, 999'999'999}).value();
  EXPECT_EQ(batch.statuses()[0], ErrorCode::kCorruption);
  EXPECT_EQ(batch.statuses()[1], ErrorCode::kCorruption);
}

TEST(RecordReaderTest, FailedOpenLeaksNoDescriptor) {
  const auto descriptor_count = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const test::TempFolder folder;
  test::WriteRecords(folder / "a.ffr", {"1"});
  test::WriteFile(folder / "b.ffr", "damaged");
  const std::vector<std::filesystem::path> paths{folder / "a.ffr", folder / "b.ffr"};
  ASSERT_TRUE(OpenOne(paths[0]));  // The thread's engine is made and stays.
  const auto before = descriptor_count();
  for (int i = 0; i < 10; ++i) ASSERT_FALSE(RecordReader::Open(paths, {}));
  EXPECT_EQ(descriptor_count(), before);
}

// What an appender cuts off while the file is opened was there when its size was read.
TEST(CutWhileOpenedTest, TheFileIsOpenedAnewAndNoDamageReported) {
  const TestFile file({"zero", "first", "second"});
  const std::uint64_t size = std::filesystem::file_size(file.path());
  for (const IoPolicy io : {IoPolicy::kBuffered, IoPolicy::kDirect}) {
    const RecordReader::Options options{.io = io};
    int open_count = 0;
    const auto cut_once = [&]() -> Result<std::unique_ptr<RangeReader>> {
      ++open_count;
      std::filesystem::resize_file(file.path(), open_count == 1 ? size + 200'000 : size);
      auto source = OpenLocalFiles({&file.path(), 1});
      std::filesystem::resize_file(file.path(), size);
      return source;
    };
    const auto reader = OpenRecordsAgain(cut_once, options);
    ASSERT_TRUE(reader) << reader.error().message;
    EXPECT_EQ(reader.value().record_count(), 3U);
    EXPECT_EQ(open_count, 2);
  }
}

TEST(CutWhileOpenedTest, RealDamageIsReportedAtOnceAndEndlessChangeInTheEnd) {
  const TestFile file({"zero", "first", "second"});
  std::filesystem::resize_file(file.path(), std::filesystem::file_size(file.path()) - 1);
  int open_count = 0;
  bool keeps_changing = false;
  const auto open = [&]() -> Result<std::unique_ptr<RangeReader>> {
    ++open_count;
    auto source = OpenLocalFiles({&file.path(), 1});
    if (keeps_changing)
      std::filesystem::resize_file(file.path(), std::filesystem::file_size(file.path()) - 1);
    return source;
  };
  EXPECT_EQ(OpenRecordsAgain(open, {}).error().code, ErrorCode::kCorruption);
  EXPECT_EQ(open_count, 1);
  keeps_changing = true;
  EXPECT_EQ(OpenRecordsAgain(open, {}).error().code, ErrorCode::kCorruption);
  EXPECT_GT(open_count, 2);
  EXPECT_LT(open_count, 20);
}

}  // namespace
}  // namespace ffrecord
