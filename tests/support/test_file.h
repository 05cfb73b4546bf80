#pragma once

#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ffrecord/record_reader.h>
#include <ffrecord/record_writer.h>

#include "bytes.h"
#include "libffrecord/record/index/file_index.h"
#include "libffrecord/record/write/record_writer_impl.h"
#include "libffrecord/source/local_files.h"
#include "temp_folder.h"

namespace ffrecord::test {

struct TestFileOptions {
  int version = 2;
  Schema schema = {};
  RecordWriter::Options writer = {};
  std::uint32_t pages_per_segment = V2Header::kPagesPerSegmentDefault;
};

// Writes `records` to a file at `path` that must not exist yet.
inline WriteSummary WriteRecords(const std::filesystem::path& path,
                                 const std::vector<std::string>& records,
                                 const TestFileOptions& options = {}) {
  if (options.version == 1) {
    auto writer = V1Writer::Create(path, records.size(), false);
    EXPECT_TRUE(writer) << writer.error().message;
    for (const std::string& record : records) EXPECT_TRUE(writer.value().Write(AsBytes(record)));
    auto closed = writer.value().Close();
    EXPECT_TRUE(closed) << closed.error().message;
    return closed.value();
  }
  WriterInternals internals;
  internals.file_id = FileId{};
  internals.pages_per_segment = options.pages_per_segment;
  auto writer = CreateRecordWriter(path, options.schema, options.writer, std::move(internals));
  EXPECT_TRUE(writer) << writer.error().message;
  for (const std::string& record : records) EXPECT_TRUE(writer.value().Write(AsBytes(record)));
  auto closed = writer.value().Close();
  EXPECT_TRUE(closed) << closed.error().message;
  return closed.value();
}

// The bytes of such a file.
inline std::string FileOf(const std::vector<std::string>& records,
                          const TestFileOptions& options = {}) {
  const TempFolder folder;
  WriteRecords(folder / "file.ffr", records, options);
  return ReadFile(folder / "file.ffr");
}

// A file with these records in a folder of its own; both go with it.
class TestFile {
 public:
  explicit TestFile(std::vector<std::string> records, const TestFileOptions& options = {})
      : records_(std::move(records)), path_(folder_ / "test.ffr") {
    summary_ = WriteRecords(path_, records_, options);
  }

  const std::filesystem::path& path() const { return path_; }
  const std::vector<std::string>& records() const { return records_; }
  const WriteSummary& summary() const { return summary_; }

  // Changes one bit of byte `offset` of the file.
  void FlipByte(std::uint64_t offset) {
    std::string content = ReadFile(path_);
    content[offset] = static_cast<char>(content[offset] ^ 1);
    WriteFile(path_, content);
  }

  // Changes the first stored byte of a record, which must not be empty.
  void FlipByteOfRecord(std::uint64_t index) {
    std::shared_ptr<const RangeReader> source = OpenLocalFiles({&path_, 1}).value();
    const auto indexes = OpenIndexes(*source, {}).value();
    RecordLocation location;
    ASSERT_EQ(indexes[0]->Locate(index, location), ErrorCode::kOk);
    ASSERT_GT(location.stored_size_bytes, 0U);
    FlipByte(location.offset_bytes);
  }

 private:
  TempFolder folder_;
  std::vector<std::string> records_;
  std::filesystem::path path_;
  WriteSummary summary_;
};

inline Result<RecordReader> OpenOne(const std::filesystem::path& path,
                                    const RecordReader::Options& options = {}) {
  return RecordReader::Open(std::span(&path, 1), options);
}

// 0, 1, ..., count - 1.
inline std::vector<std::uint64_t> UpTo(std::uint64_t count) {
  std::vector<std::uint64_t> indices(count);
  std::iota(indices.begin(), indices.end(), std::uint64_t{0});
  return indices;
}

// All records, each of which must be whole.
inline std::vector<std::string> ReadAll(const RecordReader& reader) {
  const auto batch = reader.ReadBatch(UpTo(reader.record_count()));
  EXPECT_TRUE(batch) << batch.error().message;
  std::vector<std::string> records;
  for (std::size_t i = 0; i < batch.value().size(); ++i) {
    EXPECT_EQ(batch.value().statuses()[i], ErrorCode::kOk)
        << reader.Describe(i, batch.value().statuses()[i]);
    records.push_back(AsString(batch.value().record(i)));
  }
  return records;
}

}  // namespace ffrecord::test
