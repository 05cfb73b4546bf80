// Goal: no single flipped bit of a file is taken for good: reads return what was written or say
// that they do not, and the full check finds every flip. Method: the files of
// tests/data/ffrecord-v2 but for those that others contain, and whole ones of version 1, in memory,
// each bit in turn. Where all bits of a byte share one check, one of them is flipped: in long
// padding, and in records of version 1. In files of many records it is one bit of every four bytes
// of these, of their index and keys, and of zeros. A file of a new feature is covered by its
// presence. A file is cut into parts, so that meson's shards share the work.

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libffrecord/base/endian.h"
#include "libffrecord/format/v2_index.h"
#include "libffrecord/format/v2_keys.h"
#include "libffrecord/record/check/verify_source.h"
#include "libffrecord/record/index/file_index.h"
#include "libffrecord/record/read/open_records.h"
#include "memory_files.h"
#include "test_file.h"

namespace ffrecord {
namespace {

namespace fs = std::filesystem;

const fs::path kData(FFRECORD_TEST_DATA);
constexpr std::size_t kPartBytes = 4096;
// Larger files take minutes: a feature needs no large one.
constexpr std::size_t kFileSizeMax = 96 << 10;
// Of a file of which each bit is flipped; what there is once for each record is then the same
// again.
constexpr std::uint64_t kRecordsMax = 50;
// All that raw.ffr has is in appended.ffr, byte for byte, and a schema in front is in columns.ffr.
constexpr std::string_view kContained[] = {"raw", "schema_front"};
// Two that records of keys.ffr have, and one that none has.
constexpr std::string_view kKeys[] = {"key 1", "key 199", "no key"};

struct Part {
  fs::path path;
  std::size_t begin_bytes = 0;
};

void PrintTo(const Part& part, std::ostream* stream) {
  *stream << part.path << " from byte " << part.begin_bytes;
}

std::vector<Part> Parts() {
  // Version 1 has no check of more than this: old.ffr and others lack checksums.
  std::vector<fs::path> paths{kData / "ffrecord-v1/random.ffr", kData / "ffrecord-v1/n1_empty.ffr"};
  for (const fs::directory_entry& entry : fs::directory_iterator(kData / "ffrecord-v2"))
    if (entry.path().extension() == ".ffr" &&
        std::ranges::find(kContained, entry.path().stem().string()) == std::end(kContained))
      paths.push_back(entry.path());
  std::ranges::sort(paths);
  std::vector<Part> parts;
  for (const fs::path& path : paths)
    for (std::size_t begin = 0; begin < fs::file_size(path); begin += kPartBytes)
      parts.push_back({path, begin});
  return parts;
}

// Calls `mark` with the place of each page of keys and of each key in its block.
template <class Mark>
void MarkKeys(const V2Layout& layout, const std::string& content, const Mark& mark) {
  const V2Section* section = layout.footer.Find(V2Section::kKeyDirectory);
  if (section == nullptr) return;
  const auto bytes = test::AsBytes(content);
  const auto runs = DecodeKeyDirectory(bytes.subspan(section->offset_bytes, section->size_bytes),
                                       layout.footer_offset_bytes)
                        .value();
  for (const KeyRun& run : runs) {
    mark(run.offset_bytes, run.size_bytes());
    for (std::uint64_t i = 0; i < run.entry_count; ++i) {
      const auto page = bytes.subspan(run.offset_bytes + i / kKeyEntriesPerPage * kKeyPageSizeBytes,
                                      kKeyPageSizeBytes);
      const KeyEntry entry = LoadKeyEntry(page, i % kKeyEntriesPerPage);
      mark(entry.offset_bytes - V2KeyBlockHeader::kKeyHeadBytes,
           V2KeyBlockHeader::kKeyHeadBytes + entry.size_bytes);
    }
  }
}

// Zeros of which this many lie on both sides are padding, and no field of a structure.
constexpr std::size_t kFieldBytesMax = 32;

// Sets `step` for the zeros inside long runs.
void MarkPadding(const std::string& content, std::uint8_t step, std::vector<std::uint8_t>& steps) {
  std::size_t begin = 0;
  for (std::size_t end = 0; end <= content.size(); ++end) {
    if (end < content.size() && content[end] == 0) continue;
    for (std::size_t at = begin + kFieldBytesMax; at + kFieldBytesMax < end; ++at) steps[at] = step;
    begin = end + 1;
  }
}

// For each byte of the file, among how many bits one is flipped.
std::vector<std::uint8_t> BitSteps(const test::MemoryFiles& file, const std::string& content) {
  constexpr std::uint8_t kOneOfEachByte = 8;
  constexpr std::uint8_t kOneOfFourBytes = 32;
  std::vector<std::uint8_t> steps(content.size(), 1);
  MarkPadding(content, kOneOfEachByte, steps);
  const auto index = std::move(OpenIndexes(file, {}).value()[0]);
  const V2Layout* layout = index->v2_layout();
  const bool has_many = layout != nullptr && index->record_count() > kRecordsMax;
  if (layout != nullptr && !has_many) return steps;
  const auto mark = [&](std::uint64_t begin, std::uint64_t size) {
    std::fill_n(steps.begin() + static_cast<std::ptrdiff_t>(begin), size,
                has_many ? kOneOfFourBytes : kOneOfEachByte);
  };
  for (std::uint64_t i = 0; i < index->record_count(); ++i) {
    RecordLocation location;
    EXPECT_EQ(index->Locate(i, location), ErrorCode::kOk);
    const std::uint64_t head = has_many ? V2RecordHeader::kEncodedSizeBytes : 0;
    mark(location.offset_bytes - head, head + location.stored_size_bytes);
  }
  if (!has_many) return steps;
  for (std::size_t at = 0; at < content.size(); ++at)
    if (content[at] == 0) steps[at] = kOneOfFourBytes;
  const IndexGeometry geometry{index->record_count(), layout->header.pages_per_segment};
  for (std::uint64_t segment = 0; segment < geometry.segment_count(); ++segment)
    mark(LoadLittleEndian<std::uint64_t>(layout->directory.bytes, 8 * segment),
         geometry.segment_size_bytes(segment));
  MarkKeys(*layout, content, mark);
  return steps;
}

// The values of each column of fixed width, where all of them can be read.
using Columns = std::vector<std::optional<std::vector<std::byte>>>;

Columns ReadColumns(const RecordReader& reader) {
  Columns columns;
  for (std::size_t column = 0; column < reader.schema().columns().size(); ++column) {
    const std::uint64_t width = reader.schema().width_bytes(column);
    if (width == 0) continue;
    std::vector<std::byte> values(width * reader.record_count());
    const auto read = reader.ReadColumn(column, 0, reader.record_count(), values);
    columns.push_back(read ? std::optional(std::move(values)) : std::nullopt);
  }
  return columns;
}

// All that a reader can be asked about a file.
struct Seen {
  std::vector<std::string> records;
  Schema schema;
  std::array<std::byte, 16> fingerprint{};
  Metadata metadata;
  std::vector<std::optional<std::uint64_t>> found;  // For each of kKeys; empty without keys.
  Columns columns;
};

Seen See(const RecordReader& reader) {
  std::vector<std::optional<std::uint64_t>> found;
  for (const std::string_view key : kKeys)
    if (const auto one = reader.Find(test::AsBytes(key))) found.push_back(one.value());
  return {test::ReadAll(reader),      reader.schema(),  reader.fingerprint(),
          reader.metadata(0).value(), std::move(found), ReadColumns(reader)};
}

// True if a search reported anything. A file without keys cannot be searched.
bool SearchIsReported(const RecordReader& reader, const Seen& written) {
  bool is_reported = false;
  for (std::size_t i = 0; i < written.found.size(); ++i) {
    const auto found = reader.Find(test::AsBytes(kKeys[i]));
    is_reported |= !found;
    EXPECT_TRUE(found ? found.value() == written.found[i]
                      : found.error().code == ErrorCode::kCorruption)
        << kKeys[i];
  }
  return is_reported;
}

// True if a column that could be read before cannot be.
bool ColumnsAreReported(const RecordReader& reader, const Seen& written) {
  const Columns columns = ReadColumns(reader);
  EXPECT_EQ(columns.size(), written.columns.size());
  bool is_reported = false;
  for (std::size_t i = 0; i < std::min(columns.size(), written.columns.size()); ++i) {
    is_reported |= !columns[i];
    EXPECT_TRUE(!columns[i] || columns[i] == written.columns[i]) << "column " << i;
  }
  return is_reported;
}

// True if a reader of the damaged file reported anything; what it did not report must be as it was.
bool IsReported(const std::shared_ptr<test::MemoryFiles>& file, const Seen& written) {
  const auto reader = OpenRecords(file, {});
  if (!reader) {
    EXPECT_TRUE(reader.error().code == ErrorCode::kCorruption ||
                reader.error().code == ErrorCode::kInvalidArgument)
        << reader.error().message;
    return true;
  }
  // The newest commit is damaged: it is said that the one before is shown.
  if (!reader.value().file(0).warnings.empty()) return true;
  EXPECT_EQ(reader.value().record_count(), written.records.size());
  if (reader.value().record_count() != written.records.size()) return false;
  EXPECT_TRUE(reader.value().schema() == written.schema);
  EXPECT_EQ(reader.value().fingerprint(), written.fingerprint);
  const auto metadata = reader.value().metadata(0);
  EXPECT_TRUE(!metadata || metadata.value() == written.metadata);
  const Batch batch = reader.value().ReadBatch(test::UpTo(written.records.size())).value();
  bool is_reported = !metadata;
  is_reported |= SearchIsReported(reader.value(), written);
  is_reported |= ColumnsAreReported(reader.value(), written);
  for (std::size_t i = 0; i < written.records.size(); ++i) {
    if (batch.statuses()[i] != ErrorCode::kOk) {
      is_reported = true;
      continue;
    }
    EXPECT_TRUE(std::ranges::equal(batch.record(i), test::AsBytes(written.records[i])))
        << "record " << i << " is wrong and has status ok";
  }
  return is_reported;
}

class FlippedBitTest : public testing::TestWithParam<Part> {
 protected:
  // The full check takes a buffer of huge pages. To have one cleared for each bit would take longer
  // than all else.
  static void SetUpTestSuite() { ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); }
};

TEST_P(FlippedBitTest, IsFoundByTheFullCheckAndHarmsNoRead) {
  const std::string content = test::ReadFile(GetParam().path);
  ASSERT_LE(content.size(), kFileSizeMax) << "a smaller file shows the feature as well";
  const auto file = test::InMemory(content);
  ASSERT_TRUE(VerifySource(*file).value().whole());
  const Seen written = See(OpenRecords(file, {}).value());
  const bool is_version1 = GetParam().path.parent_path().filename() == "ffrecord-v1";

  const std::vector<std::uint8_t> steps = BitSteps(*file, content);
  const std::size_t end = std::min(GetParam().begin_bytes + kPartBytes, content.size());
  for (std::size_t bit = GetParam().begin_bytes * 8; bit < end * 8 && !HasFailure(); ++bit) {
    const std::size_t step = steps[bit / 8];
    if (bit % step != bit / step % step) continue;  // The one that is flipped goes through all.
    SCOPED_TRACE(testing::Message() << "bit " << bit % 8 << " of byte " << bit / 8);
    char& byte = file->content(0)[bit / 8];
    byte = static_cast<char>(byte ^ (1 << bit % 8));

    const bool is_reported = IsReported(file, written);
    const auto report = VerifySource(*file);

    EXPECT_FALSE(report && report.value().whole()) << "found by nothing";
    // A version 1 file has no byte that readers do not look at.
    EXPECT_TRUE(is_reported || !is_version1);
    byte = static_cast<char>(byte ^ (1 << bit % 8));
  }
}

INSTANTIATE_TEST_SUITE_P(Files, FlippedBitTest, testing::ValuesIn(Parts()),
                         [](const auto& instance) {
                           const Part& part = instance.param;
                           return part.path.parent_path().filename().string().substr(9) + "_" +
                                  part.path.stem().string() + "_" +
                                  std::to_string(part.begin_bytes / kPartBytes);
                         });

}  // namespace
}  // namespace ffrecord
