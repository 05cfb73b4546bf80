// Goal: whatever byte of a file is damaged in one copy, a reader that has another copy opens, reads
// and finds all that was written; where the other copy is away, it says so, and shows no older
// state of the file. Method: files in memory with everything that a file can have, and a second
// copy of them; one byte after the other is changed in the first copy.

#include "libffrecord/source/file_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libffrecord/format/v2_footer.h"
#include "libffrecord/record/read/open_records.h"
#include "memory_files.h"
#include "test_file.h"

namespace ffrecord {
namespace {

class TwoCopies final : public test::MemoryFiles, public FileCopies {
 public:
  explicit TwoCopies(std::string content) : MemoryFiles({content}), other_(std::move(content)) {}

  bool is_away = false;
  mutable std::uint64_t copy_count = 0;

  Result<PooledBuffer> ReadFromCopies(std::uint32_t /*file*/, std::uint64_t offset_bytes,
                                      std::uint64_t size_bytes, const IsRight& is_right,
                                      Patience& /*patience*/) const override {
    ++copy_count;
    if (is_away) return Error{ErrorCode::kUnavailable, "the other copy is away"};
    auto memory = FFR_TRY(BufferPool::Process().Take(size_bytes));
    const auto bytes = test::AsBytes(other_).subspan(offset_bytes, size_bytes);
    std::copy(bytes.begin(), bytes.end(), memory->begin());
    if (is_right(*memory)) return memory;
    return Error{ErrorCode::kCorruption, "every copy is damaged"};
  }
  std::vector<std::string> DamagedCopies(std::uint32_t /*file*/) const override { return {}; }

 private:
  const std::string other_;
};

constexpr std::size_t kCount = 120;

std::string KeyOf(std::size_t i) { return "key-" + std::to_string(i); }

// Two commits, with compressed records, a dictionary, a schema, a copied column, keys, metadata.
std::string FullFile() {
  const test::TempFolder folder;
  const auto path = folder / "full.ffr";
  const auto schema =
      Schema::Make({{"label", ColumnType::kI64}, {"text", ColumnType::kBytes}}).value();
  RecordWriter::Options options;
  options.compress = true;
  options.train_dictionary_bytes = 1024;
  options.keys = true;
  options.copied_columns = {"label"};
  options.metadata = {{"name", {std::byte{1}, std::byte{2}}}};
  const auto write = [&](RecordWriter writer, std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) {
      const auto label = static_cast<std::int64_t>(i);
      std::string text;
      for (std::size_t word = 0; word < 20 + i % 7; ++word)
        text += "word " + std::to_string((i + word) % 10) + " ";
      std::vector<std::byte> record;
      const std::array fields{std::as_bytes(std::span(&label, 1)), test::AsBytes(text)};
      EXPECT_TRUE(schema.Join(fields, record));
      EXPECT_TRUE(writer.Write(record, test::AsBytes(KeyOf(i))));
    }
    EXPECT_TRUE(writer.Close());
  };
  write(RecordWriter::Create(path, schema, options).value(), 0, kCount / 2);
  write(RecordWriter::Append(path, {}).value(), kCount / 2, kCount);
  return test::ReadFile(path);
}

// Everything that a reader gives.
struct Seen {
  std::vector<std::string> records;
  std::vector<std::int64_t> labels;
  std::vector<std::uint64_t> found;
  std::vector<std::byte> keys;
  Metadata metadata;

  bool operator==(const Seen&) const = default;
};

Result<Seen> SeeAll(const RecordReader& reader) {
  Seen seen;
  seen.records = test::ReadAll(reader);
  seen.metadata = FFR_TRY(reader.metadata(0));
  if (reader.file(0).format_version == 1) return seen;
  seen.labels.resize(reader.record_count());
  FFR_TRY(reader.ReadColumn(0, 0, reader.record_count(),
                            std::as_writable_bytes(std::span(seen.labels))));
  for (std::size_t i = 0; i < kCount; i += 7)
    seen.found.push_back(FFR_TRY(reader.Find(test::AsBytes(KeyOf(i)))).value_or(UINT64_MAX));
  seen.keys = FFR_TRY(reader.ReadKeys(0)).bytes;
  return seen;
}

Result<Seen> OpenAndSee(const std::shared_ptr<TwoCopies>& files) {
  return SeeAll(FFR_TRY(OpenRecords(files, {})));
}

// Changes each byte at `offsets` of the first copy, one at a time. Returns how often the second one
// was needed.
std::uint64_t ExpectTheSameDespiteEach(const std::string& content,
                                       const std::vector<std::size_t>& offsets) {
  const auto files = std::make_shared<TwoCopies>(content);
  const auto whole = OpenAndSee(files);
  EXPECT_TRUE(whole) << whole.error().message;
  EXPECT_EQ(files->copy_count, 0U);
  for (const std::size_t offset : offsets) {
    files->content(0)[offset] = static_cast<char>(content[offset] ^ 0x10);
    const auto seen = OpenAndSee(files);
    files->content(0)[offset] = content[offset];
    EXPECT_TRUE(seen) << "byte " << offset << ": " << seen.error().message;
    if (seen) {
      EXPECT_EQ(seen.value(), whole.value()) << "byte " << offset;
    }
    if (testing::Test::HasFailure()) break;
  }
  return files->copy_count;
}

std::vector<std::size_t> Every(std::size_t step, std::size_t first, std::size_t end) {
  std::vector<std::size_t> offsets;
  for (std::size_t at = first; at < end; at += step) offsets.push_back(at);
  return offsets;
}

TEST(FileCopiesTest, NoByteOfAFileIsLostWithOneCopyOfIt) {
  const std::string content = FullFile();
  EXPECT_GT(ExpectTheSameDespiteEach(content, Every(13, 0, content.size())), 100U);
}

TEST(FileCopiesTest, HeaderTailAndFooterAreReadFromTheOtherCopy) {
  const std::string content = FullFile();
  const std::size_t tail = content.size() - V2Tail::kEncodedSizeBytes;
  EXPECT_GE(ExpectTheSameDespiteEach(content, Every(1, 0, V2Header::kEncodedSizeBytes)),
            V2Header::kEncodedSizeBytes);
  EXPECT_GE(ExpectTheSameDespiteEach(content, Every(1, tail, content.size())),
            V2Tail::kEncodedSizeBytes);
}

// Of the count of records too, by which the size of the tables is known.
TEST(FileCopiesTest, TheTablesOfVersion1AreReadFromTheOtherCopy) {
  std::vector<std::string> records;
  for (std::size_t i = 0; i < kCount; ++i) records.emplace_back(i % 5, static_cast<char>(i));
  const std::string content = test::FileOf(records, {.version = 1});
  EXPECT_GT(ExpectTheSameDespiteEach(content, Every(1, 0, 12)), 0U);
  EXPECT_GT(ExpectTheSameDespiteEach(content, Every(7, 12, content.size())), 0U);
}

// The commit before the damaged one is whole: it must not be shown as if it were the file.
TEST(FileCopiesTest, WhileTheOtherCopyIsAwayADamagedEndIsNoOlderFile) {
  const std::string content = FullFile();
  const auto files = std::make_shared<TwoCopies>(content);
  files->is_away = true;
  files->content(0)[content.size() - 1] ^= 1;
  const auto reader = OpenRecords(files, {});
  ASSERT_FALSE(reader);
  EXPECT_EQ(reader.error().code, ErrorCode::kUnavailable) << reader.error().message;

  files->is_away = false;
  EXPECT_EQ(OpenRecords(files, {}).value().record_count(), kCount);
}

}  // namespace
}  // namespace ffrecord
