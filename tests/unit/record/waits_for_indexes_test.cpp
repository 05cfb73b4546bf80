// Goal: what looks into the indexes of many files that have to be read waits a few times in all,
// not for each file, and finds what a reader of mapped files finds.
// Method: files in memory whose indexes are read, not mapped; each call of the source is a wait.

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "libffrecord/record/read/open_records.h"
#include "memory_files.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AsBytes;
using test::AsString;
using test::FileOf;

constexpr std::uint64_t kFileCount = 40;
constexpr std::uint64_t kPerFile = 200;  // In two segments.

// Files whose indexes are read, as those of a daemon.
class ReadFiles : public test::MemoryFiles {
 public:
  using MemoryFiles::MemoryFiles;
  bool reads_indexes() const noexcept override { return true; }

 protected:
  Result<IndexBytes> MapInside(std::uint32_t file, std::uint64_t offset_bytes,
                               std::uint64_t size_bytes) const override {
    return alignment_bytes(file) == 1 ? RangeReader::MapInside(file, offset_bytes, size_bytes)
                                      : MemoryFiles::MapInside(file, offset_bytes, size_bytes);
  }
};

std::string KeyOf(std::uint64_t index) { return "key " + std::to_string(index); }

// Records with keys, of which the numbers go on from `first`.
std::string KeyedFile(std::uint64_t first, std::uint64_t count) {
  const test::TempFolder folder;
  RecordWriter::Options options;
  options.keys = true;
  auto writer = RecordWriter::Create(folder / "a.ffr", {}, options).value();
  // Long records: what is looked up lies far before the part that is read when the file is opened.
  const std::string record(1000, 'r');
  for (std::uint64_t i = first; i < first + count; ++i)
    EXPECT_TRUE(writer.Write(AsBytes(record), AsBytes(KeyOf(i))));
  EXPECT_TRUE(writer.Close());
  return test::ReadFile(folder / "a.ffr");
}

std::vector<std::string> KeyedFiles() {
  std::vector<std::string> contents;
  for (std::uint64_t i = 0; i < kFileCount; ++i)
    contents.push_back(KeyedFile(i * kPerFile, kPerFile));
  contents.push_back(FileOf({"no key"}));
  contents.push_back(contents.front());  // The same keys again.
  return contents;
}

struct KeysOfManyFiles : testing::Test {
  KeysOfManyFiles() {
    static const std::vector<std::string> contents = KeyedFiles();
    files = std::make_shared<ReadFiles>(contents);
    reader.emplace(OpenRecords(files, {}).value());
    files->ResetCounts();
  }
  std::optional<std::uint64_t> Find(const std::string& key) const {
    return reader->Find(AsBytes(key)).value();
  }

  std::shared_ptr<ReadFiles> files;
  std::optional<RecordReader> reader;
};

TEST_F(KeysOfManyFiles, OneIsFoundInAFewWaits) {
  EXPECT_EQ(Find(KeyOf(kFileCount * kPerFile - 1)), kFileCount * kPerFile - 1);
  EXPECT_LE(files->read_call_count(), 3U);  // The directories, the pages, the key itself.
  files->ResetCounts();
  EXPECT_EQ(Find(KeyOf(17)), 17U) << "the first file that has it";
  EXPECT_EQ(Find("no such key"), std::nullopt);
  EXPECT_LE(files->read_call_count(), 1U);  // The pages stay.
}

TEST_F(KeysOfManyFiles, ManyAreFoundInAsFewWaitsAsOne) {
  std::vector<std::string> names;
  std::vector<std::optional<std::uint64_t>> places;
  for (std::uint64_t i = 0; i < kFileCount * kPerFile; i += 7) {
    names.push_back(KeyOf(i));
    places.emplace_back(i);
  }
  names.emplace_back("no such key");
  places.emplace_back(std::nullopt);
  std::vector<std::span<const std::byte>> keys;
  for (const std::string& name : names) keys.push_back(AsBytes(name));

  EXPECT_EQ(reader->FindAll(keys).value(), places);
  EXPECT_LE(files->read_call_count(), 3U);
  EXPECT_EQ(reader->FindAll({}).value().size(), 0U);
}

// Each would cost its own time-out otherwise, and the first file that has the key still counts.
TEST_F(KeysOfManyFiles, FilesThatAreGoneAreAwaitedTogether) {
  files->fault = [](const RangeRead& range) {
    return range.file > 3 ? ErrorCode::kDeadlineExceeded : ErrorCode::kOk;
  };
  EXPECT_EQ(Find(KeyOf(700)), 700U) << "no file before it is gone";
  EXPECT_LE(files->read_call_count(), 3U);
  files->ResetCounts();
  const auto late = reader->Find(AsBytes(KeyOf(900)));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_NE(late.error().message.find("memory-4.ffr"), std::string::npos) << late.error().message;
  EXPECT_LE(files->read_call_count(), 3U);

  files->fault = [](const RangeRead&) { return ErrorCode::kOk; };
  EXPECT_EQ(Find(KeyOf(900)), 900U) << "nothing of a failure stays";
}

// Each of the calls waits for a source that never answers.
TEST_F(KeysOfManyFiles, ACallerThatGivesUpIsFreed) {
  files->fault = [](const RangeRead&) {
    std::this_thread::sleep_for(2 * Patience::kInterval);
    return ErrorCode::kOk;
  };
  const RecordReader::GiveUp at_once = [] { return true; };
  const std::string key = KeyOf(900);
  const std::span<const std::byte> bytes = AsBytes(key);
  std::vector<std::int64_t> sizes(2);
  const auto found = reader->FindAll({&bytes, 1}, at_once);
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kDeadlineExceeded);
  const auto keys = reader->ReadKeys(3, at_once);
  ASSERT_FALSE(keys);
  EXPECT_EQ(keys.error().code, ErrorCode::kDeadlineExceeded);
  const auto measured = reader->ReadSizes(std::vector<std::uint64_t>{3, 300}, sizes, at_once);
  ASSERT_FALSE(measured);
  EXPECT_EQ(measured.error().code, ErrorCode::kDeadlineExceeded);
  EXPECT_LE(files->range_count(), 6U) << "not more than one or two each";
}

// As the files of a local cache: only whole blocks are read, none of them twice.
TEST_F(KeysOfManyFiles, KeysOfOneBlockAreReadTogether) {
  std::vector<std::string> contents;
  for (std::uint32_t file = 0; file < files->file_count(); ++file)
    contents.push_back(files->content(file));
  const auto blocks = std::make_shared<ReadFiles>(contents, 4096);
  const auto in_blocks = OpenRecords(blocks, {}).value();
  blocks->ResetCounts();
  const std::string first = KeyOf(300);
  const std::string second = KeyOf(301);
  const std::string other = KeyOf(7000);
  const std::vector<std::span<const std::byte>> keys{AsBytes(first), AsBytes(second),
                                                     AsBytes(other)};
  EXPECT_EQ(in_blocks.FindAll(keys).value(),
            (std::vector<std::optional<std::uint64_t>>{300, 301, 7000}));
  EXPECT_LE(blocks->read_call_count(), 3U);
  EXPECT_LE(blocks->range_count(), 2 * (kFileCount + 1) + 2);  // The keys: two blocks.
}

// --- Opening -------------------------------------------------------------------------------------

TEST(OpeningManyFiles, TablesOfVersion1AreReadTogether) {
  std::vector<std::string> contents;
  for (std::uint64_t i = 0; i < kFileCount; ++i)
    contents.push_back(
        FileOf({"record " + std::to_string(i), std::string(100'000, 'x')}, {.version = 1}));
  const auto files = std::make_shared<ReadFiles>(contents);
  const auto reader = OpenRecords(files, {}).value();
  EXPECT_LE(files->read_call_count(), 2U);  // The ends, the tables.
  const auto batch = reader.ReadBatch(std::vector<std::uint64_t>{2 * 7, 2 * 39}).value();
  EXPECT_EQ(AsString(batch.record(0)), "record 7");
  EXPECT_EQ(AsString(batch.record(1)), "record 39");

  files->fault = [](const RangeRead& range) {
    return range.file == 3 && range.destination.size() < 100 ? ErrorCode::kUnavailable
                                                             : ErrorCode::kOk;
  };
  const auto gone = OpenRecords(files, {});
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(gone.error().message.find("memory-3.ffr"), std::string::npos) << gone.error().message;
}

// What an append that was cut off has left is searched once, however many looks follow.
TEST(OpeningManyFiles, EndsThatWereCutOffAreSearchedOnce) {
  constexpr std::uint64_t kLeftBytes = std::uint64_t{3} << 20;  // Two steps of the search.
  std::vector<std::string> contents;
  for (std::uint64_t i = 0; i < 3; ++i)
    contents.push_back(KeyedFile(i * kPerFile, kPerFile) + std::string(kLeftBytes, 'l'));
  const auto files = std::make_shared<ReadFiles>(contents);
  const auto reader = OpenRecords(files, {}).value();
  EXPECT_EQ(reader.record_count(), 3 * kPerFile);
  EXPECT_LT(files->range_bytes(), 3 * 3 * kLeftBytes / 2);
}

// --- Columns -------------------------------------------------------------------------------------

Schema Columns() {
  return Schema::Make({{"label", ColumnType::kI64}, {"image", ColumnType::kBytes}}).value();
}

std::vector<std::string> Records(std::uint64_t first, std::uint64_t count) {
  std::vector<std::string> records;
  const std::string image(700, 'i');
  for (std::uint64_t i = first; i < first + count; ++i) {
    const auto label = static_cast<std::int64_t>(3 * i);
    std::vector<std::byte> record;
    EXPECT_TRUE(
        Columns().Join(std::vector{std::as_bytes(std::span(&label, 1)), AsBytes(image)}, record));
    records.push_back(AsString(record));
  }
  return records;
}

std::vector<std::string> ColumnContents(const std::vector<std::string>& copied) {
  test::TestFileOptions options;
  options.schema = Columns();
  options.pages_per_segment = 1;
  options.writer.copied_columns = copied;
  std::vector<std::string> contents;
  for (std::uint64_t i = 0; i < kFileCount; ++i)
    contents.push_back(FileOf(Records(i * kPerFile, kPerFile), options));
  return contents;
}

std::shared_ptr<ReadFiles> FilesWithCopies() {
  static const auto contents = ColumnContents({"label"});
  return std::make_shared<ReadFiles>(contents);
}

std::shared_ptr<ReadFiles> FilesWithoutCopies() {
  static const auto contents = ColumnContents({});
  return std::make_shared<ReadFiles>(contents);
}

void ExpectLabels(const RecordReader& reader, std::uint64_t first, std::uint64_t count) {
  std::vector<std::int64_t> labels(count);
  const auto read = reader.ReadColumn(0, first, count, std::as_writable_bytes(std::span(labels)));
  ASSERT_TRUE(read) << read.error().message;
  for (std::uint64_t i = 0; i < count; ++i)
    ASSERT_EQ(labels[i], static_cast<std::int64_t>(3 * (first + i)));
}

TEST(ColumnsOfManyFiles, CopiesAreReadInTwoWaits) {
  const auto files = FilesWithCopies();
  const auto reader = OpenRecords(files, {}).value();
  files->ResetCounts();
  ExpectLabels(reader, 0, kFileCount * kPerFile);
  EXPECT_LE(files->read_call_count(), 2U);  // Where the copies are, and they themselves.
  files->ResetCounts();
  ExpectLabels(reader, 150, 5 * kPerFile);  // From the middle of a segment on.
  EXPECT_LE(files->read_call_count(), 2U);
}

TEST(ColumnsOfManyFiles, RecordsAreReadInAsFewBatchesAsTheyFit) {
  const auto files = FilesWithoutCopies();
  const auto reader = OpenRecords(files, {}).value();
  files->ResetCounts();
  ExpectLabels(reader, 0, kFileCount * kPerFile);
  // Two batches of at most 4096 records each, with what they need of the indexes.
  EXPECT_LE(files->read_call_count(), 4U);
}

// A copy that is damaged in one file, and one whose file is gone.
TEST(ColumnsOfManyFiles, ADamagedCopyCostsItsOwnRecordsOnly) {
  const auto files = FilesWithCopies();
  const auto reader = OpenRecords(files, {}).value();
  std::string& content = files->content(5);
  const std::int64_t label = 3 * (5 * kPerFile + 7);
  const std::string value = AsString(std::as_bytes(std::span(&label, 1)));
  const std::size_t in_copy = content.rfind(value);
  ASSERT_NE(in_copy, content.find(value));
  content[in_copy] ^= 1;
  files->ResetCounts();
  ExpectLabels(reader, 0, kFileCount * kPerFile);
  EXPECT_LE(files->read_call_count(), 5U);

  files->fault = [](const RangeRead& range) {
    return range.file == 9 ? ErrorCode::kUnavailable : ErrorCode::kOk;
  };
  std::vector<std::byte> labels(8 * kFileCount * kPerFile);
  const auto read = reader.ReadColumn(0, 0, kFileCount * kPerFile, labels);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(read.error().message.find("memory-9.ffr"), std::string::npos) << read.error().message;
}

// --- Sizes ---------------------------------------------------------------------------------------

TEST(SizesOfManyFiles, AreKnownAfterOneWait) {
  const auto files = FilesWithoutCopies();
  const auto reader = OpenRecords(files, {}).value();
  std::vector<std::uint64_t> indices;
  for (std::uint64_t i = 0; i < kFileCount; ++i) indices.push_back(i * kPerFile + 190 * (i % 2));
  std::vector<std::int64_t> sizes(indices.size());
  files->ResetCounts();
  ASSERT_TRUE(reader.ReadSizes(indices, sizes));
  EXPECT_LE(files->read_call_count(), 1U);
  for (const std::int64_t size : sizes) EXPECT_EQ(size, std::ssize(Records(0, 1)[0]));
}

// A size that is not known is no size: 0 would send the record into a batch of small ones.
TEST(SizesOfManyFiles, OfAFileThatIsGoneAreAnError) {
  const auto files = FilesWithoutCopies();
  const auto reader = OpenRecords(files, {}).value();
  std::vector<std::int64_t> sizes(2);
  for (const ErrorCode code : {ErrorCode::kUnavailable, ErrorCode::kDenied, ErrorCode::kIo}) {
    files->fault = [code](const RangeRead&) { return code; };
    const auto read = reader.ReadSizes(std::vector<std::uint64_t>{3, 300}, sizes);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, code);
  }
}

}  // namespace
}  // namespace ffrecord
