// Goal: a repair brings over what stands beside the records: keys and column copies made anew for
// the records that survive, schema, dictionary and metadata as they were; what it cannot, it says.
// Method: a file that has all of them, with its footer cut off and pages overwritten at random,
// against what the damage leaves of each key; each part damaged by itself.

#include <ffrecord/repair.h>
#include <ffrecord/verify.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "libffrecord/base/endian.h"
#include "libffrecord/format/v2_keys.h"
#include "libffrecord/record/check/repair_source.h"
#include "libffrecord/record/read/open_records.h"
#include "memory_files.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AsBytes;

constexpr std::uint64_t kRecordCount = 3000;
const Metadata kMetadata{{"name", {std::byte{7}}}, {"source", {}}};

Schema Columns() {
  return Schema::Make({{"label", ColumnType::kI64},
                       {"weight", ColumnType::kU16},
                       {"text", ColumnType::kUtf8}})
      .value();
}

std::string TextOf(std::uint64_t i) {
  return "{\"user\": \"someone " + std::to_string(i * 7919 % 1000) +
         "\", \"text\": \"words that come again and again\", \"number\": " + std::to_string(i) +
         "}";
}
// Every seventh record has none.
std::string KeyOf(std::uint64_t i) {
  return i % 7 == 0 ? "" : "train/class-" + std::to_string(i % 10) + "/" + std::to_string(i);
}

void WriteOne(RecordWriter& writer, std::uint64_t i) {
  const auto label = static_cast<std::int64_t>(i);
  const auto weight = static_cast<std::uint16_t>(i % 100);
  const std::string text = TextOf(i);
  const std::array<std::span<const std::byte>, 3> fields{
      std::as_bytes(std::span(&label, 1)), std::as_bytes(std::span(&weight, 1)), AsBytes(text)};
  ASSERT_TRUE(writer.WriteFields(fields, AsBytes(KeyOf(i))));
}

// A file with all there is; its record i has the label i.
std::string FileWithAll(std::uint64_t record_count = kRecordCount) {
  RecordWriter::Options options;
  options.compress = true;
  options.train_dictionary_bytes = 2048;
  options.keys = true;
  options.copied_columns = {"label"};
  options.metadata = kMetadata;
  WriterInternals internals;
  internals.file_id = FileId{};
  internals.pages_per_segment = 1;
  const test::TempFolder folder;
  auto writer =
      CreateRecordWriter(folder / "a.ffr", Columns(), options, std::move(internals)).value();
  for (std::uint64_t i = 0; i < record_count; ++i) WriteOne(writer, i);
  EXPECT_TRUE(writer.Close());
  return test::ReadFile(folder / "a.ffr");
}

const std::string& Whole() {
  static const std::string content = FileWithAll();
  return content;
}

// Where all of it is.
struct Places {
  std::vector<RecordLocation> records;
  V2Footer footer;
  std::uint64_t footer_offset_bytes = 0;
  std::map<std::uint64_t, std::pair<KeyEntry, std::uint64_t>> keys;  // By record; with its page.

  V2Section SectionOf(std::uint32_t type) const { return *footer.Find(type); }
};

Places PlacesIn(const std::string& content) {
  const auto file = test::InMemory(content);
  const auto index = std::move(OpenIndexes(*file, {}).value()[0]);
  Places places;
  places.records.resize(index->record_count());
  for (std::size_t i = 0; i < places.records.size(); ++i)
    EXPECT_EQ(index->Locate(i, places.records[i]), ErrorCode::kOk);
  places.footer = index->v2_layout()->footer;
  places.footer_offset_bytes = index->v2_layout()->footer_offset_bytes;
  const V2Section directory = places.SectionOf(V2Section::kKeyDirectory);
  const auto bytes = AsBytes(content);
  const auto runs = DecodeKeyDirectory(bytes.subspan(directory.offset_bytes, directory.size_bytes),
                                       content.size())
                        .value();
  for (const KeyRun& run : runs)
    for (std::uint64_t page = 0; page < run.page_count(); ++page) {
      const std::uint64_t at = run.offset_bytes + page * kKeyPageSizeBytes;
      for (std::uint64_t slot = 0; slot < run.entries_in_page(page); ++slot) {
        const KeyEntry entry = LoadKeyEntry(bytes.subspan(at, kKeyPageSizeBytes), slot);
        places.keys[entry.record_index] = {entry, at};
      }
    }
  return places;
}

// The repaired file, which must be whole, and what was said of it.
struct Repaired {
  test::TempFolder folder;
  RepairReport report;
  std::unique_ptr<RecordReader> reader;
  std::vector<std::int64_t> labels;  // Of the records: their old indices.

  explicit Repaired(const std::string& damaged) {
    const auto result = RepairSource(*test::InMemory(damaged), folder / "new.ffr");
    EXPECT_TRUE(result) << result.error().message;
    if (!result) return;
    report = result.value();
    reader = std::make_unique<RecordReader>(test::OpenOne(folder / "new.ffr").value());
    const auto verified = VerifyFile(folder / "new.ffr").value();
    EXPECT_TRUE(verified.whole()) << verified.problems[0];
    labels.resize(reader->record_count());
    EXPECT_TRUE(reader->ReadColumn(0, 0, labels.size(), std::as_writable_bytes(std::span(labels))));
    const auto records = test::ReadAll(*reader);
    for (std::size_t i = 0; i < records.size(); ++i)
      EXPECT_EQ(records[i].substr(10), TextOf(static_cast<std::uint64_t>(labels[i])));
  }

  std::optional<std::uint64_t> Find(const std::string& key) const {
    return reader->Find(AsBytes(key)).value();
  }
  // Old indices of the records that are there and have lost their key. All other keys find them.
  std::vector<std::uint64_t> WithoutKey() const {
    std::vector<std::uint64_t> without;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const auto old_index = static_cast<std::uint64_t>(labels[i]);
      if (KeyOf(old_index).empty()) continue;
      const auto found = Find(KeyOf(old_index));
      EXPECT_TRUE(!found || *found == i) << "key of record " << old_index;
      if (!found) without.push_back(old_index);
    }
    return without;
  }
  // The columns of which the new file has copies.
  std::vector<std::uint32_t> CopiedColumns() const {
    const std::string content = test::ReadFile(folder / "new.ffr");
    const auto file = test::InMemory(content);
    const auto index = std::move(OpenIndexes(*file, {}).value()[0]);
    std::vector<std::uint32_t> columns;
    for (const V2Section& section : index->v2_layout()->footer.sections)
      if (section.type == V2Section::kColumnCopy)
        columns.push_back(LoadLittleEndian<std::uint32_t>(AsBytes(content), section.offset_bytes));
    return columns;
  }
};

using Words = std::vector<std::string>;
using Indices = std::vector<std::uint64_t>;
using Numbers = std::vector<std::uint32_t>;

TEST(RepairPartsTest, WholeFileIsMadeAnewWithAllThatItHas) {
  const Repaired repaired(Whole());
  EXPECT_TRUE(repaired.report.lost_nothing());
  EXPECT_EQ(repaired.report.kept_parts, (Words{"the schema", "the metadata", "the dictionary"}));
  const auto key_count = PlacesIn(Whole()).keys.size();
  EXPECT_EQ(repaired.report.kept_key_count, key_count);
  EXPECT_EQ(repaired.report.lost_key_count, 0U);
  EXPECT_EQ(repaired.report.rebuilt_parts,
            (Words{"the keys: " + std::to_string(key_count), "the copy of column label"}));
  EXPECT_EQ(repaired.reader->record_count(), kRecordCount);
  EXPECT_EQ(repaired.WithoutKey(), Indices{});
  EXPECT_EQ(repaired.Find("no such key"), std::nullopt);
  EXPECT_EQ(repaired.CopiedColumns(), Numbers{0});
  EXPECT_EQ(repaired.reader->schema(), Columns());
  EXPECT_EQ(repaired.reader->metadata(0).value(), kMetadata);
  EXPECT_EQ(repaired.reader->fingerprint(),
            OpenRecords(test::InMemory(Whole()), {}).value().fingerprint());
  EXPECT_LT(repaired.report.file_size_bytes, Whole().size() + 65'536) << "frames are kept";
}

TEST(RepairPartsTest, OnlyWhatDamagedPagesHoldIsLost) {
  std::mt19937_64 random(test::Seed());
  const Places places = PlacesIn(Whole());
  std::string damaged = Whole().substr(0, places.footer_offset_bytes);
  // Schema and dictionary stand in front of the records, the other sections behind the last run.
  const std::uint64_t first_page = places.records[0].offset_bytes / 4096 + 1;
  const std::uint64_t end_page = std::min({places.SectionOf(V2Section::kKeyDirectory).offset_bytes,
                                           places.SectionOf(V2Section::kColumnCopy).offset_bytes,
                                           places.SectionOf(V2Section::kMetadata).offset_bytes}) /
                                 4096;
  std::vector<bool> is_damaged(damaged.size() / 4096 + 1);
  const auto damage = [&](std::uint64_t page) {
    is_damaged[page] = true;
    damaged.replace(page * 4096, 4096, test::RandomText(4096, random));
  };
  // Runs and blocks of keys take far more pages than these records: one page is surely of a record.
  damage(places.records[kRecordCount / 4 + random() % (kRecordCount / 4)].offset_bytes / 4096);
  for (std::uint64_t i = 0; i < damaged.size() / 4096 / 100 + 6; ++i)
    damage(first_page + random() % (end_page - first_page));
  const auto survives = [&](std::uint64_t begin, std::uint64_t size) {
    for (std::uint64_t page = begin / 4096; page <= (begin + size - 1) / 4096; ++page)
      if (is_damaged[page]) return false;
    return true;
  };

  const Repaired repaired(damaged);

  Indices kept;
  for (std::uint64_t i = 0; i < kRecordCount; ++i)
    if (survives(places.records[i].offset_bytes - 32, places.records[i].stored_size_bytes + 32))
      kept.push_back(i);
  EXPECT_LT(kept.size(), kRecordCount);
  EXPECT_TRUE(std::ranges::equal(repaired.labels, kept, [](auto label, auto index) {
    return static_cast<std::uint64_t>(label) == index;
  }));
  for (const std::uint64_t old_index : repaired.WithoutKey()) {
    const auto& [entry, page] = places.keys.at(old_index);
    EXPECT_FALSE(survives(entry.offset_bytes, entry.size_bytes) && survives(page, 4096))
        << "key of record " << old_index;
  }
  EXPECT_EQ(repaired.reader->metadata(0).value(), kMetadata);
  EXPECT_EQ(repaired.CopiedColumns(), Numbers{0});
  EXPECT_EQ(repaired.report.kept_parts, (Words{"the schema", "the metadata", "the dictionary"}));
  EXPECT_EQ(repaired.report.rebuilt_parts.size(), 2U);
}

TEST(RepairPartsTest, WhateverIsDamagedTheNewFileIsWhole) {
  std::mt19937_64 random(test::Seed());
  const std::string whole = FileWithAll(200);
  // Header, schema and dictionary stay, without which this file says nothing.
  const std::size_t front =
      PlacesIn(whole).records[0].offset_bytes - V2RecordHeader::kEncodedSizeBytes;
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(round);
    std::string damaged = whole;
    for (std::uint64_t i = 1 + random() % 6; i > 0; --i) {
      const std::size_t at = front + random() % (damaged.size() - front);
      const std::size_t size = std::min<std::size_t>(1 + random() % 300, damaged.size() - at);
      switch (random() % 4) {
        case 0:
          damaged[at] = static_cast<char>(random());
          break;
        case 1:
          damaged.replace(at, size, test::RandomText(size, random));
          break;
        case 2:  // What belongs to another place.
          damaged.replace(at, size, whole.substr(random() % (whole.size() - size), size));
          break;
        default:
          damaged.resize(damaged.size() - size);
      }
    }
    const Repaired repaired(damaged);  // Checks all that is in the new file.
    EXPECT_LE(repaired.report.kept_count, 200U);
    EXPECT_EQ(repaired.report.kept_key_count + repaired.WithoutKey().size(),
              static_cast<std::uint64_t>(std::ranges::count_if(repaired.labels, [](auto label) {
                return !KeyOf(static_cast<std::uint64_t>(label)).empty();
              })));
  }
}

TEST(RepairPartsTest, DamagedKeyIsTheOnlyOneOfItsBlockThatIsLost) {
  const Places places = PlacesIn(Whole());
  std::string damaged = Whole();
  const auto& [entry, page] = places.keys.at(100);
  damaged[entry.offset_bytes + 3] ^= 1;
  const Repaired repaired(damaged);
  EXPECT_EQ(repaired.WithoutKey(), Indices{100});
  EXPECT_EQ(repaired.report.lost_key_count, 1U);
  EXPECT_EQ(repaired.report.kept_key_count, places.keys.size() - 1);
  EXPECT_EQ(repaired.report.other_losses,
            Words{"1 of the keys: their records are found by index only"});

  // The page that lists it too: now nothing says what else the block holds.
  damaged[page + 9] ^= 1;
  const Repaired again(damaged);
  const Indices without = again.WithoutKey();
  EXPECT_GT(without.size(), 1U);
  EXPECT_EQ(again.report.lost_key_count, without.size());
  for (const std::uint64_t index : without) EXPECT_EQ(places.keys.at(index).second, page);
}

TEST(RepairPartsTest, RunsAreNotNeededWhereTheBlocksAreWhole) {
  const Places places = PlacesIn(Whole());
  std::string damaged = Whole();
  for (const auto& [index, key] : places.keys) damaged[key.second + 20] ^= 1;
  damaged[places.SectionOf(V2Section::kKeyDirectory).offset_bytes] ^= 1;
  const Repaired repaired(damaged);
  EXPECT_TRUE(repaired.report.lost_nothing());
  EXPECT_EQ(repaired.WithoutKey(), Indices{});
}

TEST(RepairPartsTest, KeysFollowTheirRecords) {
  const Places places = PlacesIn(Whole());
  std::string damaged = Whole();
  for (const std::size_t i : {0U, 1U, 50U, 51U, 170U, 2999U})
    damaged[places.records[i].offset_bytes] ^= 1;
  const Repaired repaired(damaged);
  EXPECT_EQ(repaired.report.lost_count, 6U);
  EXPECT_EQ(repaired.WithoutKey(), Indices{});
  EXPECT_EQ(repaired.Find(KeyOf(2)), 0U);
  EXPECT_EQ(repaired.Find(KeyOf(52)), 48U);
  for (const std::size_t i : {1U, 50U, 51U, 170U, 2999U})
    EXPECT_EQ(repaired.Find(KeyOf(i)), std::nullopt);
  EXPECT_EQ(repaired.report.lost_key_count, 0U) << "a lost record is lost once";
}

TEST(RepairPartsTest, DamagedMetadataIsSaidToBeLost) {
  std::string damaged = Whole();
  damaged[PlacesIn(damaged).SectionOf(V2Section::kMetadata).offset_bytes] ^= 1;
  const Repaired repaired(damaged);
  EXPECT_EQ(repaired.reader->metadata(0).value(), Metadata{});
  EXPECT_EQ(repaired.report.kept_parts, (Words{"the schema", "the dictionary"}));
  EXPECT_EQ(repaired.report.other_losses, Words{"the metadata"});
}

TEST(RepairPartsTest, DamagedDictionaryCostsTheRecordsThatNeedIt) {
  std::string damaged = Whole();
  damaged[PlacesIn(damaged).SectionOf(V2Section::kDictionary).offset_bytes + 100] ^= 1;
  const Repaired repaired(damaged);
  EXPECT_LT(repaired.report.kept_count, kRecordCount);
  EXPECT_EQ(repaired.report.kept_count + repaired.report.lost_count, kRecordCount);
  EXPECT_EQ(repaired.report.kept_parts, (Words{"the schema", "the metadata"}));
  EXPECT_EQ(repaired.report.other_losses, Words{"a dictionary, and the records that need it"});
  EXPECT_EQ(repaired.WithoutKey(), Indices{});
}

TEST(RepairPartsTest, WhereNothingSaysWhichColumnsWereCopiedAllSmallOnesAre) {
  std::string damaged = Whole();
  damaged[PlacesIn(damaged).SectionOf(V2Section::kColumnCopy).offset_bytes] ^= 1;
  const Repaired repaired(damaged);
  EXPECT_EQ(repaired.CopiedColumns(), (Numbers{0, 1}));
  EXPECT_EQ(repaired.report.other_losses.size(), 1U);
}

TEST(RepairPartsTest, LostHeaderCostsNeitherKeysNorCopies) {
  std::string damaged = Whole();
  std::fill_n(damaged.begin(), 128, '\0');
  const Repaired repaired(damaged);
  EXPECT_EQ(repaired.report.kept_count, kRecordCount);
  EXPECT_EQ(repaired.WithoutKey(), Indices{});
  EXPECT_EQ(repaired.CopiedColumns(), Numbers{0});
  EXPECT_EQ(repaired.reader->metadata(0).value(), kMetadata);
}

TEST(RepairPartsTest, KeysAndMetadataOfAnAppendAreKept) {
  const test::TempFolder folder;
  test::WriteFile(folder / "a.ffr", Whole());
  const Metadata newer{{"name", {std::byte{8}}}};
  {
    RecordWriter::AppendOptions options;
    options.metadata = newer;
    auto writer = RecordWriter::Append(folder / "a.ffr", options).value();
    for (std::uint64_t i = kRecordCount; i < kRecordCount + 300; ++i) WriteOne(writer, i);
    ASSERT_TRUE(writer.Close());
  }
  std::string damaged = test::ReadFile(folder / "a.ffr");
  const Places places = PlacesIn(damaged);
  damaged[places.keys.at(kRecordCount + 8).first.offset_bytes] ^= 1;
  const Repaired repaired(damaged);
  EXPECT_EQ(repaired.report.kept_count, kRecordCount + 300);
  EXPECT_EQ(repaired.WithoutKey(), Indices{kRecordCount + 8});
  EXPECT_EQ(repaired.reader->metadata(0).value(), newer);

  damaged[places.SectionOf(V2Section::kMetadata).offset_bytes] ^= 1;
  const Repaired older(damaged);
  EXPECT_EQ(older.reader->metadata(0).value(), kMetadata);
  EXPECT_EQ(older.report.other_losses[0], "the newest metadata: older ones are kept");
}

}  // namespace
}  // namespace ffrecord
