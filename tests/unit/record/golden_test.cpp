// Goal: version 2 files written once stay readable for ever, and today's writer still makes the
// same bytes.
// Method: tests/data/ffrecord-v2, which is never regenerated, against records stated here. Their
// fingerprints were confirmed by a reader made from format.md alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "libffrecord/base/hex.h"
#include "libffrecord/record/check/verify_source.h"
#include "test_file.h"

namespace ffrecord {
namespace {

const std::filesystem::path kGolden = std::filesystem::path(FFRECORD_TEST_DATA) / "ffrecord-v2";

struct GoldenFile {
  std::string name;
  std::vector<std::string> records;
  std::string fingerprint;
  Schema schema = {};
  RecordWriter::Options options = {};
  std::uint32_t pages_per_segment = V2Header::kPagesPerSegmentDefault;
  bool is_of_first_writer = false;     // Without section headers, the schema behind the records.
  std::size_t appended_count = 0;      // Of the records; those before them were there already.
  std::vector<std::string> keys = {};  // Of each record; "" is none.
  bool states_facts = false;
};

void PrintTo(const GoldenFile& file, std::ostream* stream) { *stream << file.name; }

std::string Labelled(std::int64_t label, std::string_view name, std::string_view image,
                     const Schema& schema) {
  const std::array<float, 4> box{0, 0.5F, 1, static_cast<float>(label)};
  const std::array<std::span<const std::byte>, 4> fields{
      std::as_bytes(std::span(&label, 1)), test::AsBytes(name), std::as_bytes(std::span(box)),
      test::AsBytes(image)};
  std::vector<std::byte> record;
  EXPECT_TRUE(schema.Join(fields, record));
  return test::AsString(record);
}

std::vector<std::byte> Bytes(std::string_view text) {
  return {test::AsBytes(text).begin(), test::AsBytes(text).end()};
}

std::vector<GoldenFile> Files() {
  const Schema schema = Schema::Make({{"label", ColumnType::kI64},
                                      {"name", ColumnType::kUtf8},
                                      {"box", ColumnType::kF32, {2, 2}},
                                      {"image", ColumnType::kBytes}})
                            .value();
  std::vector<std::string> numbers;
  for (int i = 0; i < 400; ++i) numbers.push_back(std::to_string(i));
  RecordWriter::Options zstd;
  zstd.compress = true;
  RecordWriter::Options aligned;
  aligned.alignment_bytes = 512;
  RecordWriter::Options with_metadata;
  with_metadata.metadata = {{"license", Bytes("CC0")}, {"caf\xc3\xa9", {}}};
  RecordWriter::Options trained;
  trained.compress = true;
  trained.train_dictionary_bytes = 1024;
  RecordWriter::Options with_keys;
  with_keys.keys = true;
  RecordWriter::Options copied;
  copied.copied_columns = {"label"};
  const Schema label_and_image =
      Schema::Make({{"label", ColumnType::kU16}, {"image", ColumnType::kBytes}}).value();
  RecordWriter::Options keyed_by_name;
  keyed_by_name.keys = true;
  keyed_by_name.key_column = "name";
  std::vector<std::string> lines;
  std::vector<std::string> keys;
  std::vector<std::string> rows;
  for (int i = 0; i < 400; ++i) {
    lines.push_back("{\"id\": " + std::to_string(i) + ", \"url\": \"https://example.org/" +
                    std::to_string(i * 7919 % 1000) + "\", \"language\": \"en\"}");
    keys.push_back(i % 5 == 0 ? "" : "key " + std::to_string(i % 200));
    rows.push_back({static_cast<char>(i), static_cast<char>(i >> 8)});
    rows.back() += "image";
  }
  return {
      {"raw", {"", "abc"}, "3d5dad675205c4407092f2dc22bf6cd8"},
      {"empty", {}, "99aa06d3014798d86001c324468d497f"},
      {"segments", numbers, "2b27e633304844cbae4b176487a80e74", {}, {}, 1},
      {"zstd",
       {"short", std::string(1000, 'z'), "", std::string(3000, 'y') + "!"},
       "ada4356d1e198adedd71e8c040d39c7d",
       {},
       zstd},
      {"aligned512",
       {"one", "", std::string(600, 't'), "four"},
       "a277dfcabc9105b7d2d5a2a721589c36",
       {},
       aligned},
      {"schema",
       {Labelled(7, "caf\xc3\xa9", "pixels", schema), Labelled(-1, "", "", schema)},
       "135f1fb9eafbf59777bfe9e91261787f",
       schema,
       {},
       V2Header::kPagesPerSegmentDefault,
       true},
      {"schema_front",
       {Labelled(7, "caf\xc3\xa9", "pixels", schema), Labelled(-1, "", "", schema)},
       "135f1fb9eafbf59777bfe9e91261787f",
       schema},
      {"metadata", {"", "abc"}, "3d5dad675205c4407092f2dc22bf6cd8", {}, with_metadata},
      {"appended",
       {"", "abc", "d"},
       "66c3b4d8501abdffa24269463270cf24",
       {},
       {},
       V2Header::kPagesPerSegmentDefault,
       false,
       1},
      {"dictionary", lines, "45d9cd0971c7ec615cf12bcdc88041ba", {}, trained},
      {"keys",
       numbers,
       "2b27e633304844cbae4b176487a80e74",
       {},
       with_keys,
       V2Header::kPagesPerSegmentDefault,
       false,
       0,
       keys},
      {"columns", rows, "beec77d9daa771994cfe47f3b82c520f", label_and_image, copied, 1},
      {"facts",
       {Labelled(7, "caf\xc3\xa9", "pixels", schema), Labelled(-1, "b", "", schema)},
       "8e50e8ebda4e89d2bb45e5885f04eeda",
       schema,
       keyed_by_name,
       V2Header::kPagesPerSegmentDefault,
       false,
       1,
       {"caf\xc3\xa9", "b"},
       true},
  };
}

class GoldenTest : public testing::TestWithParam<GoldenFile> {
 protected:
  std::filesystem::path path() const { return kGolden / (GetParam().name + ".ffr"); }
  static std::span<const std::byte> KeyOf(std::size_t i) {
    const auto& keys = GetParam().keys;
    return test::AsBytes(i < keys.size() ? std::string_view(keys[i]) : std::string_view());
  }
};

TEST_P(GoldenTest, IsReadAsItWasWritten) {
  const auto reader = test::OpenOne(path());
  ASSERT_TRUE(reader) << reader.error().message;
  EXPECT_EQ(test::ReadAll(reader.value()), GetParam().records);
  EXPECT_EQ(reader.value().schema(), GetParam().schema);
  EXPECT_EQ(reader.value().metadata(0).value(), GetParam().options.metadata);
  EXPECT_EQ(Hex(reader.value().file(0).fingerprint), GetParam().fingerprint);
}

TEST_P(GoldenTest, IsFoundByItsKeys) {
  const auto& keys = GetParam().keys;
  const auto reader = test::OpenOne(path()).value();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto first = std::find(keys.begin(), keys.end(), keys[i]) - keys.begin();
    const auto right = keys[i].empty() ? std::nullopt : std::optional<std::uint64_t>(first);
    EXPECT_EQ(reader.Find(KeyOf(i)).value(), right) << keys[i];
  }
  const auto absent = reader.Find(test::AsBytes("no key"));
  if (keys.empty())
    EXPECT_EQ(absent.error().code, ErrorCode::kInvalidArgument);
  else
    EXPECT_EQ(absent.value(), std::nullopt);
}

TEST_P(GoldenTest, PassesTheFullCheck) {
  const auto report = VerifyFile(path()).value();
  EXPECT_TRUE(report.whole()) << report.problems[0];
}

TEST_P(GoldenTest, IsWrittenAgainTheSame) {
  if (GetParam().options.compress) return;  // Frames differ from one release of zstd to another.
  if (GetParam().is_of_first_writer) return;
  WriterInternals internals;
  internals.pages_per_segment = GetParam().pages_per_segment;
  internals.states_facts = GetParam().states_facts;
  internals.file_id.emplace();
  for (std::size_t i = 0; i < 16; ++i) (*internals.file_id)[i] = std::byte(i + 1);
  const test::TempFolder folder;
  auto writer = CreateRecordWriter(folder / "again.ffr", GetParam().schema, GetParam().options,
                                   std::move(internals))
                    .value();
  const auto& records = GetParam().records;
  const std::size_t first_count = records.size() - GetParam().appended_count;
  for (std::size_t i = 0; i < first_count; ++i)
    ASSERT_TRUE(writer.Write(test::AsBytes(records[i]), KeyOf(i)));
  ASSERT_TRUE(writer.Close());
  if (first_count < records.size()) {
    auto appender = RecordWriter::Append(folder / "again.ffr", {}).value();
    for (std::size_t i = first_count; i < records.size(); ++i)
      ASSERT_TRUE(appender.Write(test::AsBytes(records[i]), KeyOf(i)));
    ASSERT_TRUE(appender.Close());
  }
  EXPECT_TRUE(test::ReadFile(folder / "again.ffr") == test::ReadFile(path()));
}

// A line of the page's example, `offset  hex [x count]  words`, as the bytes it stands for.
std::string BytesOfLine(const std::string& line) {
  std::istringstream hex(line.substr(6, line.find("  ", 6) - 6));
  std::string bytes;
  for (std::string token; hex >> token;) {
    if (token == "x") {
      int count = 0;
      hex >> count;
      const std::string once = bytes;
      for (int i = 1; i < count; ++i) bytes += once;
      break;
    }
    for (std::size_t i = 0; i < token.size(); i += 2)
      bytes += static_cast<char>(std::stoi(token.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

// `shown` with what the example under that heading of the page says put into it.
void PutExample(const std::string& heading, std::string& shown) {
  std::ifstream page(std::filesystem::path(FFRECORD_TEST_DATA) / "../../docs/reference/format.md");
  std::string line;
  while (std::getline(page, line) && line != "### " + heading) {
  }
  while (std::getline(page, line) && line != "```") {
  }
  int line_count = 0;
  for (; std::getline(page, line) && line != "```"; ++line_count) {
    const auto offset = static_cast<std::size_t>(std::stoul(line.substr(0, 4), nullptr, 16));
    const std::string bytes = BytesOfLine(line);
    ASSERT_LE(offset + bytes.size(), shown.size()) << line;
    shown.replace(offset, bytes.size(), bytes);
  }
  EXPECT_GT(line_count, 25);
}

TEST(GoldenPageTest, ExamplesOfThePageAreTheFiles) {
  std::string shown(16'384, '\0');
  PutExample("Example", shown);
  EXPECT_TRUE(shown == test::ReadFile(kGolden / "raw.ffr"));
  shown.resize(32'768, '\0');
  PutExample("Example of an append", shown);
  EXPECT_TRUE(shown == test::ReadFile(kGolden / "appended.ffr"));
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenTest, testing::ValuesIn(Files()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace ffrecord
