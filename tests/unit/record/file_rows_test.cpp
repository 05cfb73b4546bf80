// Goal: rows whose values are in files make the file that WriteFields makes of the same values.
// Method: rows of empty, small and large values from several files, in order and out of it; files
// that are missing, too short, and changed since they were listed.

#include <ffrecord/file_rows.h>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AsBytes;
using test::TempFolder;

constexpr std::array<std::byte, 16> kFileId{};

std::string Read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Write(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

RowFile Listed(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return {path, RowFile::Version{static_cast<std::uint64_t>(status.st_size),
                                 status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec}};
}

// Numbers, a first value and a last one in files, a text between them in memory.
Schema FourColumns() {
  return Schema::Make({{"first", ColumnType::kBytes},
                       {"number", ColumnType::kI64},
                       {"name", ColumnType::kUtf8},
                       {"last", ColumnType::kBytes}})
      .value();
}

struct Rows {
  std::vector<std::uint64_t> numbers;
  std::vector<std::string> names;
  std::vector<FieldSource> firsts;
  std::vector<FieldSource> lasts;

  void Fill(std::size_t row, std::span<FieldSource> fields) const {
    fields[0] = firsts[row];
    fields[1] = {.bytes = std::as_bytes(std::span(&numbers[row], 1))};
    fields[2] = {.bytes = AsBytes(names[row])};
    fields[3] = lasts[row];
  }
};

RecordWriter NewWriter(const std::filesystem::path& path, Schema schema) {
  return RecordWriter::Create(path, std::move(schema),
                              {.keys = true, .key_column = "name", .file_id = kFileId})
      .value();
}

TEST(FileRowsTest, RowsAreThoseOfTheSameValuesInMemory) {
  const TempFolder folder;
  std::mt19937_64 draws(test::Seed());
  std::string one(3 << 20, '\0');
  for (char& byte : one) byte = static_cast<char>(draws());
  Write(folder / "one", one);
  Write(folder / "two", one.substr(0, 1000));
  const std::vector<RowFile> files = {{.path = folder / "one"}, Listed(folder / "two")};
  Rows rows;
  for (std::uint64_t row = 0; row < 500; ++row) {
    const auto range = [&](std::size_t file) {
      const std::size_t size = file == 0 ? one.size() : 1000;
      const std::size_t wanted = std::min<std::size_t>(draws() % 4 * 50'000, size);
      return FieldSource{.file = &files[file],
                         .offset_bytes = draws() % (size - wanted + 1),
                         .size_bytes = wanted};
    };
    rows.numbers.push_back(row);
    rows.names.push_back("row " + std::to_string(row));
    rows.firsts.push_back(range(row % 2));
    rows.lasts.push_back(range(row / 7 % 2));
  }
  auto writer = NewWriter(folder / "found.ffr", FourColumns());
  const auto fields_of = [&](std::size_t row, std::span<FieldSource> fields) {
    rows.Fill(row, fields);
  };
  const auto changed = WriteFileRows(writer, rows.numbers.size(), fields_of, 2);
  ASSERT_TRUE(changed) << changed.error().message;
  EXPECT_FALSE(changed.value());
  ASSERT_TRUE(writer.Close());

  auto wanted = NewWriter(folder / "wanted.ffr", FourColumns());
  for (std::size_t row = 0; row < rows.numbers.size(); ++row) {
    std::vector<FieldSource> fields(4);
    std::vector<std::span<const std::byte>> values(4);
    rows.Fill(row, fields);
    for (std::size_t i = 0; i < 4; ++i)
      values[i] = fields[i].file == nullptr
                      ? fields[i].bytes
                      : AsBytes(one).subspan(fields[i].offset_bytes, fields[i].size_bytes);
    ASSERT_TRUE(wanted.WriteFields(values, values[2]));
  }
  ASSERT_TRUE(wanted.Close());
  EXPECT_EQ(Read(folder / "found.ffr"), Read(folder / "wanted.ffr"));
}

TEST(FileRowsTest, KeyMayBeInAFile) {
  const TempFolder folder;
  Write(folder / "keys", "abcdef");
  const RowFile file{.path = folder / "keys"};
  for (const std::size_t key : {0U, 1U}) {
    auto schema =
        Schema::Make({{"first", ColumnType::kBytes}, {"last", ColumnType::kBytes}}).value();
    auto writer =
        RecordWriter::Create(folder / "a.ffr", std::move(schema), {.replace = true, .keys = true})
            .value();
    const auto fields_of = [&](std::size_t row, std::span<FieldSource> fields) {
      fields[0] = {.file = &file, .offset_bytes = row, .size_bytes = 1};
      fields[1] = {.file = &file, .offset_bytes = row + 3, .size_bytes = 2};
    };
    ASSERT_TRUE(WriteFileRows(writer, 2, fields_of, key));
    ASSERT_TRUE(writer.Close());
    const auto reader = test::OpenOne(folder / "a.ffr").value();
    EXPECT_EQ(reader.Find(AsBytes(key == 0 ? "b" : "ef")).value(), 1U);
  }
}

TEST(FileRowsTest, FileThatIsNotAsListedStopsAtItsRow) {
  const TempFolder folder;
  std::vector<RowFile> files;
  for (int i = 0; i < 200; ++i) {
    const auto path = folder / std::to_string(i);
    Write(path, std::string(100, 'a'));
    files.push_back(Listed(path));
  }
  ASSERT_EQ(::truncate((folder / "150").c_str(), 50), 0);
  auto schema = Schema::Make({{"only", ColumnType::kBytes}}).value();
  auto own = RecordWriter::Create(folder / "b.ffr", std::move(schema), {}).value();
  const auto fields_of = [&](std::size_t row, std::span<FieldSource> fields) {
    fields[0] = {.file = &files[row], .size_bytes = 100};
  };
  EXPECT_EQ(WriteFileRows(own, files.size(), fields_of).value(), 150U);
  EXPECT_EQ(own.record_count(), 150U);

  files[150].listed.reset();
  const auto cut = WriteFileRows(own, files.size(), fields_of);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().code, ErrorCode::kCorruption);
  EXPECT_NE(cut.error().message.find((folder / "150").string()), std::string::npos);

  std::filesystem::remove(folder / "3");
  const auto gone = WriteFileRows(own, files.size(), fields_of);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace ffrecord
