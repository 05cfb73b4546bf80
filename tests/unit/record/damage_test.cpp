// Goal: no damage to a file, however small, is returned as good, and none ends the process.
// Method: small files in memory, cut at every length, with parts swapped or taken from other files;
// files cut or overwritten on disk while they are open. Flipped bits: flipped_bit_test.cpp.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <utility>

#include <ffrecord/repair.h>

#include "child.h"
#include "libffrecord/base/endian.h"
#include "libffrecord/format/v2_column_copy.h"
#include "libffrecord/format/v2_index.h"
#include "libffrecord/record/check/verify_source.h"
#include "libffrecord/record/read/open_records.h"
#include "memory_files.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AsString;
using test::FileOf;
using test::InMemory;
using test::UpTo;

// What became of a damaged file: refused, or opened with so many records that are not returned.
struct Outcome {
  bool opened = false;
  std::size_t bad_count = 0;
};

// Opens and reads everything; what is returned as good must be what was written.
Outcome ReadDamaged(const std::shared_ptr<test::MemoryFiles>& file,
                    const std::vector<std::string>& records,
                    const RecordReader::Options& options = {}) {
  const auto reader = OpenRecords(file, options);
  if (!reader) {
    EXPECT_TRUE(reader.error().code == ErrorCode::kCorruption ||
                reader.error().code == ErrorCode::kInvalidArgument)
        << reader.error().message;
    return {};
  }
  EXPECT_EQ(reader.value().record_count(), records.size());
  if (reader.value().record_count() != records.size()) return {true, records.size()};
  const Batch batch = reader.value().ReadBatch(UpTo(records.size())).value();
  Outcome outcome{true, 0};
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (batch.statuses()[i] != ErrorCode::kOk) {
      ++outcome.bad_count;
      continue;
    }
    const auto got = batch.record(i);
    const bool same = got.size() == records[i].size() &&
                      std::equal(got.begin(), got.end(), test::AsBytes(records[i]).begin());
    EXPECT_TRUE(same) << "record " << i << " is wrong and has status ok";
  }
  return outcome;
}

std::vector<std::string> SmallRecords(std::size_t count) {
  std::vector<std::string> records;
  for (std::size_t i = 0; i < count; ++i) records.push_back(std::to_string(i * i * 7919));
  return records;
}

TEST(TruncatedFileTest, Version1IsRefusedOrLosesRecordsAtItsEnd) {
  const auto records = SmallRecords(50);
  const std::string content = FileOf(records, {.version = 1});
  RecordReader::Options salvage;
  salvage.salvage = true;
  for (std::size_t size = 0; size < content.size(); ++size) {
    const auto file = InMemory(content.substr(0, size));
    const Outcome outcome = ReadDamaged(file, records);
    if (outcome.opened) {
      EXPECT_EQ(outcome.bad_count, 1U) << size;
    }
    const Outcome salvaged = ReadDamaged(file, records, salvage);
    EXPECT_EQ(salvaged.opened, size >= 12 + 12 * records.size()) << size;
    if (salvaged.opened) {
      EXPECT_GT(salvaged.bad_count, 0U) << size;
    }
  }
}

TEST(TruncatedFileTest, Version1SaysHowManyRecordsAreWhole) {
  const std::string content = FileOf({"aaaa", "bbbb", "cccc"}, {.version = 1});
  const auto reader = OpenRecords(InMemory(content.substr(0, content.size() - 6)), {});
  ASSERT_FALSE(reader);
  EXPECT_NE(reader.error().message.find("1 of 3 records are whole"), std::string::npos)
      << reader.error().message;
}

TEST(TruncatedFileTest, Version2IsRefused) {
  const auto records = SmallRecords(10);
  const std::string content = FileOf(records);
  for (std::size_t size = 0; size < content.size(); ++size)
    EXPECT_FALSE(ReadDamaged(InMemory(content.substr(0, size)), records).opened) << size;
}

TEST(LongerFileTest, BytesBehindTheEndAreNoticed) {
  const auto records = SmallRecords(10);
  EXPECT_EQ(ReadDamaged(InMemory(FileOf(records, {.version = 1}) + "x"), records).bad_count, 1U);
  // In version 2 they are taken for an append that was not finished: readers say so and go on, the
  // full check minds.
  const std::string content = FileOf(records);
  for (const std::string& behind : {std::string(1, '\0'), std::string(64, 'x'),
                                    std::string(4096, '\0'), std::string(8193, 'x'), content}) {
    const auto file = InMemory(content + behind);
    const Outcome outcome = ReadDamaged(file, records);
    EXPECT_TRUE(outcome.opened && outcome.bad_count == 0);
    const auto warnings = OpenRecords(file, {}).value().file(0).warnings;
    ASSERT_EQ(warnings.size(), 1U);
    EXPECT_NE(warnings[0].find("last " + std::to_string(behind.size()) + " bytes are ignored"),
              std::string::npos);
    EXPECT_EQ(VerifySource(*file).value().problem_count, 1U);
  }
}

RecordLocation LocationOf(const std::string& content, std::uint64_t index) {
  const auto file = InMemory(content);
  const auto indexes = OpenIndexes(*file, {}).value();
  RecordLocation location;
  EXPECT_EQ(indexes[0]->Locate(index, location), ErrorCode::kOk);
  return location;
}

TEST(MovedBytesTest, SwappedRecordsOfOneSizeAreBothBad) {
  const std::vector<std::string> records{"first!", "second", "thirds"};
  const std::string content = FileOf(records);
  std::string swapped = content;
  const auto a = LocationOf(content, 0).offset_bytes;
  const auto b = LocationOf(content, 2).offset_bytes;
  std::swap_ranges(&swapped[a], &swapped[a] + 6, &swapped[b]);

  EXPECT_EQ(ReadDamaged(InMemory(swapped), records).bad_count, 2U);
}

TEST(MovedBytesTest, IndexEntriesInWrongPlacesAreBad) {
  const std::vector<std::string> records{"first!", "second", "thirds"};
  std::string content = FileOf(records);
  const auto file = InMemory(content);
  const auto indexes = OpenIndexes(*file, {}).value();
  const V2Layout& layout = *indexes[0]->v2_layout();
  const auto page_offset = LoadLittleEndian<std::uint64_t>(layout.directory.bytes, 0);
  const auto page =
      std::as_writable_bytes(std::span(content)).subspan(page_offset, kIndexPageSizeBytes);
  const RecordLocation first = DecodeIndexEntry(IndexEntryIn(page.data(), 0));
  StoreIndexEntry(DecodeIndexEntry(IndexEntryIn(page.data(), 2)), 0, page);
  StoreIndexEntry(first, 2, page);
  EXPECT_EQ(ReadDamaged(InMemory(content), records).bad_count, 3U);  // The page fails.
  SealIndexPage(layout.header.file_id, 0, 3, page);
  EXPECT_EQ(ReadDamaged(InMemory(content), records).bad_count, 2U);  // Seeds tell.
}

TEST(MovedBytesTest, PartsOfAnotherFileAreNoticed) {
  const std::vector<std::string> records{"first!", "second", "thirds"};
  const std::string mine = FileOf(records);
  // The same bytes under another id: as another run of the same program writes.
  const test::TempFolder folder;
  WriterInternals internals;
  internals.file_id = FileId{std::byte{1}};
  auto writer = CreateRecordWriter(folder / "o.ffr", {}, {}, std::move(internals)).value();
  for (const std::string& record : records) ASSERT_TRUE(writer.Write(test::AsBytes(record)));
  ASSERT_TRUE(writer.Close());
  const std::string other = test::ReadFile(folder / "o.ffr");
  ASSERT_EQ(mine.size(), other.size());

  for (std::size_t begin = 0; begin < mine.size(); begin += 4096) {
    std::string spliced = mine;
    spliced.replace(begin, 4096, other, begin, 4096);
    const Outcome outcome = ReadDamaged(InMemory(spliced), records);
    const auto report = VerifySource(*InMemory(spliced));
    // Readers of a whole front need no facts, which are beside the directory.
    EXPECT_TRUE(!outcome.opened || outcome.bad_count > 0 || !report.value().whole()) << begin;
  }
  // The payloads alone are the same bytes, and are at home in both.
  std::string stored = mine;
  const auto location = LocationOf(mine, 1);
  stored.replace(location.offset_bytes, 6, other, location.offset_bytes, 6);
  EXPECT_EQ(stored, mine);
}

// A file whose footer states what it likes, with every check in order.
std::string Forged(std::uint64_t record_count, std::uint64_t directory_size) {
  std::string content = FileOf({"record"});
  const auto file = InMemory(content);
  const auto indexes = OpenIndexes(*file, {}).value();
  const V2Layout& layout = *indexes[0]->v2_layout();
  V2Footer footer = layout.footer;
  footer.record_count = record_count;
  const std::uint64_t directory_offset = footer.sections[0].offset_bytes;
  auto bytes = std::as_writable_bytes(std::span(content));
  footer.sections[0].size_bytes = directory_size;
  if (directory_size <= layout.footer_offset_bytes - directory_offset)
    footer.sections[0].check = SectionCheck(bytes.subspan(directory_offset, directory_size),
                                            layout.header.file_id, directory_offset);
  const auto encoded = EncodeV2Footer(footer);
  std::memcpy(bytes.data() + layout.footer_offset_bytes, encoded.data(), encoded.size());
  const V2Tail tail{layout.footer_offset_bytes, encoded.size(),
                    FooterCheck(encoded, layout.header.file_id, layout.footer_offset_bytes)};
  EncodeV2Tail(tail, layout.header.file_id, content.size(), bytes.last<64>());
  return content;
}

TEST(HostileFileTest, CountsThatCannotBeAllocateNothing) {
  ASSERT_TRUE(OpenRecords(InMemory(Forged(1, 8)), {}));
  rusage before{};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &before), 0);
  for (const std::uint64_t count :
       {std::uint64_t{171}, std::uint64_t{43'520}, std::uint64_t{43'521}, std::uint64_t{1} << 32,
        std::uint64_t{1} << 48, std::uint64_t{1} << 63, ~std::uint64_t{0}})
    for (const std::uint64_t size :
         {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{8}, std::uint64_t{16},
          std::uint64_t{1} << 50, ~std::uint64_t{0}}) {
      const auto reader = OpenRecords(InMemory(Forged(count, size)), {});
      if (reader) {  // One segment of one page for up to 43,520 records is possible so far.
        EXPECT_LE(count, 43'520U);
        EXPECT_EQ(reader.value().ReadBatch(UpTo(1)).value().statuses()[0], ErrorCode::kCorruption);
      }
    }
  std::string v1(12, '\0');
  for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    std::memcpy(v1.data() + 4, &count, 8);
    EXPECT_FALSE(OpenRecords(InMemory(v1), {}));
  }
  rusage after{};
  ASSERT_EQ(getrusage(RUSAGE_SELF, &after), 0);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 128 << 10);  // KiB; sanitizers keep what is freed.
}

TEST(HostileFileTest, EntriesThatCannotBeCostTheirOwnRecordOnly) {
  const std::vector<std::string> records{"first!", "second", "thirds"};
  const RecordLocation good = LocationOf(FileOf(records), 1);
  RecordLocation outside = good, header = good, bomb = good, larger = good, past = good;
  outside.offset_bytes = kPayloadOffsetBytesEnd - 1;
  header.offset_bytes = 0;
  bomb.raw_size_bytes = kRecordSizeBytesEnd - 1;
  larger.raw_size_bytes = 5;
  past.stored_size_bytes = past.raw_size_bytes = kRecordSizeBytesEnd - 1;
  for (const bool compressed : {false, true}) {
    RecordWriter::Options options;
    options.compress = compressed;
    for (const RecordLocation& bad : {outside, header, bomb, larger, past}) {
      std::string content = FileOf(records, {.writer = options});
      const auto indexes_of = InMemory(content);
      const auto indexes = OpenIndexes(*indexes_of, {}).value();
      const V2Layout& layout = *indexes[0]->v2_layout();
      const auto page =
          std::as_writable_bytes(std::span(content))
              .subspan(LoadLittleEndian<std::uint64_t>(layout.directory.bytes, 0), 4096);
      StoreIndexEntry(bad, 1, page);
      SealIndexPage(layout.header.file_id, 0, 3, page);
      const auto reader = OpenRecords(InMemory(content), {});
      const Batch batch = reader.value().ReadBatch(UpTo(3)).value();
      EXPECT_EQ(batch.statuses()[0], ErrorCode::kOk);
      EXPECT_EQ(batch.statuses()[1], ErrorCode::kCorruption);
      EXPECT_EQ(batch.statuses()[2], ErrorCode::kOk);
      EXPECT_FALSE(reader.value().Describe(1, ErrorCode::kCorruption).empty());
      EXPECT_FALSE(VerifySource(*InMemory(content)).value().whole());
    }
  }
}

// Statuses of all records of a reader that was opened before `harm` was done to its file.
std::vector<ErrorCode> AfterHarm(int version, IoPolicy io,
                                 const std::function<void(const std::filesystem::path&)>& harm) {
  std::vector<std::string> records;
  for (int i = 0; i < 600; ++i)
    records.push_back(std::string(300, static_cast<char>('a' + i % 26)));
  const test::TestFile file(records, {.version = version, .pages_per_segment = 1});
  RecordReader::Options options;
  options.io = io;
  const auto reader = test::OpenOne(file.path(), options).value();
  EXPECT_EQ(reader.ReadBatch(std::array<std::uint64_t, 1>{0}).value().statuses()[0],
            ErrorCode::kOk);
  harm(file.path());
  const Batch batch = reader.ReadBatch(UpTo(records.size())).value();
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (batch.statuses()[i] == ErrorCode::kOk) {
      EXPECT_EQ(AsString(batch.record(i)), records[i]);
    }
  }
  return {batch.statuses().begin(), batch.statuses().end()};
}

TEST(ChangedWhileOpenTest, CutFileLosesRecordsAndNothingElse) {
  for (const int version : {1, 2})
    for (const IoPolicy io : {IoPolicy::kBuffered, IoPolicy::kDirect})
      for (const int size : {0, 100, 5000, 100'000}) {
        const auto statuses = AfterHarm(
            version, io, [&](const auto& path) { ASSERT_EQ(::truncate(path.c_str(), size), 0); });
        EXPECT_EQ(statuses.back(), ErrorCode::kCorruption);
        if (size < 100'000) {
          EXPECT_EQ(statuses[300], ErrorCode::kCorruption);
        }
      }
}

TEST(ChangedWhileOpenTest, NoReadGivesZerosForWhatACutFileLostEvenWithoutChecksums) {
  std::vector<std::string> records(600, std::string(300, 'a'));
  for (const int version : {1, 2})
    for (const int size : {100'000, 102'400}) {  // Inside a page, and between two.
      const test::TestFile file(records, {.version = version, .pages_per_segment = 1});
      const std::string whole = test::ReadFile(file.path());
      RecordReader::Options options;
      options.io = IoPolicy::kBuffered;
      options.verify_checksums = false;
      const auto reader = test::OpenOne(file.path(), options).value();
      // Entries and pages are known before they are lost.
      ASSERT_EQ(test::ReadAll(reader), records);
      ASSERT_EQ(::truncate(file.path().c_str(), size), 0);
      const auto last_status = [&] {
        const Batch batch = reader.ReadBatch(UpTo(600)).value();
        for (std::size_t i = 0; i < 600; ++i)
          EXPECT_TRUE(batch.statuses()[i] != ErrorCode::kOk ||
                      AsString(batch.record(i)) == records[i])
              << i;
        return batch.statuses()[599];
      };
      for (int again = 0; again < 3; ++again) EXPECT_EQ(last_status(), ErrorCode::kCorruption);
      // What was mapped stays blank, though the file has its bytes again.
      std::fstream(file.path(), std::ios::in | std::ios::out | std::ios::binary) << whole;
      last_status();
    }
}

// An empty file whose footer lists a section of `type` that takes `size_bytes`, all of it a hole.
void WriteForged(const std::filesystem::path& path, std::uint32_t type, std::uint64_t size_bytes) {
  V2Header header;
  header.file_id.fill(std::byte{7});
  header.required_features = V2Header::kZstd |
                             (type == V2Section::kSchema ? V2Header::kSchema : 0) |
                             (type == V2Section::kDictionary ? V2Header::kDictionary : 0);
  header.append_features = V2Header::kKeys;
  header.pages_per_segment = V2Header::kPagesPerSegmentMax;
  std::string begin(4096, '\0');
  EncodeV2Header(header, std::as_writable_bytes(std::span(begin)).first<128>());
  const std::uint64_t footer_offset = 4096 + size_bytes;
  V2Footer footer;
  footer.sections = {
      {V2Section::kSegmentDirectory, 4096, 0, SectionCheck({}, header.file_id, 4096)},
      {type, 4096, size_bytes, 1}};
  const auto encoded = EncodeV2Footer(footer);
  std::string end(4096, '\0');
  const auto bytes = std::as_writable_bytes(std::span(end));
  std::copy(encoded.begin(), encoded.end(), bytes.begin());
  EncodeV2Tail({footer_offset, encoded.size(), FooterCheck(encoded, header.file_id, footer_offset)},
               header.file_id, footer_offset + 4096, bytes.last<V2Tail::kEncodedSizeBytes>());
  test::WriteFile(path, begin);
  std::filesystem::resize_file(path, footer_offset);
  std::ofstream(path, std::ios::app | std::ios::binary) << end;
}

TEST(ForgedSizeTest, NothingIsFetchedOrAllocatedForIt) {
  const test::TempFolder folder;
  const auto path = folder / "forged.ffr";
  for (const std::uint32_t type : {V2Section::kSchema, V2Section::kDictionary,
                                   V2Section::kKeyDirectory, V2Section::kMetadata}) {
    WriteForged(path, type, std::uint64_t{128} << 20);
    const int status = test::RunInChild([&] {
      rusage before{};
      ::getrusage(RUSAGE_SELF, &before);
      const auto reader = test::OpenOne(path);
      const std::string key = "key";
      if (reader) static_cast<void>(reader.value().Find(test::AsBytes(key)));
      if (reader) static_cast<void>(reader.value().metadata(0));
      if (type == V2Section::kMetadata) static_cast<void>(VerifyFile(path));
      auto writer = RecordWriter::Append(path, {});
      if (writer) {
        EXPECT_TRUE(writer.value().Write(test::AsBytes(key), test::AsBytes(key)));
      }
      rusage after{};
      ::getrusage(RUSAGE_SELF, &after);
      EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10) << "KiB, for section " << type;
      return 0;
    });
    EXPECT_EQ(status, 0);
  }
}

// A file of 2 MiB: blank records, and a thousand copies of its columns that are one chunk.
void WriteSharedChunk(const std::filesystem::path& path) {
  constexpr std::uint64_t kRecordCount = 64 * kIndexEntriesPerPage;
  constexpr std::uint64_t kWidth = kCopiedColumnBytesMax;
  std::vector<Column> columns;
  for (int i = 0; i < 1000; ++i)
    columns.push_back({"column " + std::to_string(i), ColumnType::kU8, {kWidth}});
  V2Header header;
  header.file_id.fill(std::byte{7});
  header.required_features = V2Header::kSchema;
  header.append_features = V2Header::kColumnCopies;
  header.pages_per_segment = V2Header::kPagesPerSegmentMax;
  const IndexGeometry geometry{kRecordCount, header.pages_per_segment};
  V2Footer footer;
  footer.record_count = kRecordCount;

  std::vector<std::byte> content(4096);
  EncodeV2Header(header, std::span(content).first<128>());
  const auto add = [&](std::span<const std::byte> bytes) {
    const std::uint64_t offset = content.size();
    content.insert(content.end(), bytes.begin(), bytes.end());
    return offset;
  };
  const auto add_section = [&](std::uint32_t type, std::span<const std::byte> bytes) {
    const std::uint64_t offset = add(bytes);
    footer.sections.push_back(
        {type, offset, bytes.size(), SectionCheck(bytes, header.file_id, offset)});
  };
  for (std::uint64_t page = 0; page < geometry.page_count(); ++page) {
    std::vector<std::byte> blank(kIndexPageSizeBytes);
    SealIndexPage(header.file_id, page, geometry.entries_in_page(page), blank);
    add(blank);
  }
  std::array<std::byte, 8> directory{};
  StoreLittleEndian(std::span<std::byte>(directory), 0, std::uint64_t{4096});
  add_section(V2Section::kSegmentDirectory, directory);
  add_section(V2Section::kSchema, Schema::Make(columns).value().Encode());
  const std::vector<std::byte> chunk(kRecordCount * kWidth);
  const std::uint64_t chunk_offset = add(chunk);
  const std::uint64_t check = ColumnChunkCheck(chunk, header.file_id, chunk_offset);
  for (std::uint32_t i = 0; i < columns.size(); ++i)
    add_section(V2Section::kColumnCopy, EncodeColumnCopy({i, {{chunk_offset, check}}}));

  content.resize((content.size() + 4095) / 4096 * 4096);
  const std::uint64_t footer_offset = content.size();
  const auto encoded = EncodeV2Footer(footer);
  add(encoded);
  content.resize((content.size() + 64 + 4095) / 4096 * 4096);
  EncodeV2Tail({footer_offset, encoded.size(), FooterCheck(encoded, header.file_id, footer_offset)},
               header.file_id, content.size(),
               std::span(content).last<V2Tail::kEncodedSizeBytes>());
  test::WriteFile(path, test::AsString(content));
}

TEST(ForgedSizeTest, AppendKeepsNoMoreOfColumnCopiesThanTheFileHolds) {
  const test::TempFolder folder;
  const auto path = folder / "forged.ffr";
  WriteSharedChunk(path);
  ASSERT_TRUE(test::OpenOne(path));
  const int status = test::RunInChild([&] {
    rusage before{};
    ::getrusage(RUSAGE_SELF, &before);
    const auto writer = RecordWriter::Append(path, {});
    rusage after{};
    ::getrusage(RUSAGE_SELF, &after);
    EXPECT_FALSE(writer);
    EXPECT_EQ(writer ? ErrorCode::kOk : writer.error().code, ErrorCode::kCorruption);
    EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10) << "KiB";
    return testing::Test::HasFailure() ? 1 : 0;
  });
  EXPECT_EQ(status, 0);
}

// A file without an end: `count` headers of sections of `size_bytes` each, one behind the other, so
// that each lies in all before it.
void WriteNestedSections(const std::filesystem::path& path, std::size_t count,
                         std::uint64_t size_bytes) {
  constexpr std::size_t kHeaderBytes = V2SectionHeader::kEncodedSizeBytes;
  V2Header header;
  header.file_id.fill(std::byte{7});
  header.pages_per_segment = V2Header::kPagesPerSegmentMax;
  std::vector<std::byte> content(4096 + count * kHeaderBytes + size_bytes);
  EncodeV2Header(header, std::span(content).first<128>());
  for (std::size_t i = count; i-- > 0;) {
    const std::uint64_t offset = 4096 + i * kHeaderBytes;
    const auto section = std::span(content).subspan(offset + kHeaderBytes, size_bytes);
    EncodeV2SectionHeader({SectionCheck(section, header.file_id, offset + kHeaderBytes),
                           V2Section::kMetadata, size_bytes},
                          header.file_id, offset,
                          std::span(content).subspan(offset).first<kHeaderBytes>());
  }
  test::WriteFile(path, test::AsString(content));
}

TEST(ForgedSizeTest, RepairKeepsNoMoreOfSectionsThanTheFileHolds) {
  const test::TempFolder folder;
  const std::pair<std::size_t, std::uint64_t> forged[] = {{64, 8 << 20}, {1, 128 << 20}};
  for (const auto& [count, size_bytes] : forged) {
    SCOPED_TRACE(count);
    WriteNestedSections(folder / "forged.ffr", count, size_bytes);
    const int status = test::RunInChild([&] {
      rusage before{};
      ::getrusage(RUSAGE_SELF, &before);
      static_cast<void>(RepairFile(folder / "forged.ffr", folder / "new.ffr", {.replace = true}));
      rusage after{};
      ::getrusage(RUSAGE_SELF, &after);
      EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 64 << 10) << "KiB";
      return 0;
    });
    EXPECT_EQ(status, 0);
  }
}

TEST(UnfinishedEndTest, IsSearchedWithReadsAndNotPageByPage) {
  const auto file = InMemory(test::FileOf({"a", "b"}) + std::string(40 << 20, 'x'));
  const auto reader = OpenRecords(file, {});
  ASSERT_TRUE(reader);
  EXPECT_EQ(reader.value().record_count(), 2U);
  EXPECT_LT(file->map_bytes(), 1U << 20);
  EXPECT_LT(file->read_call_count(), 10U);
}

TEST(ChangedWhileOpenTest, OverwrittenFileIsNoticed) {
  for (const int version : {1, 2}) {
    const auto statuses = AfterHarm(version, IoPolicy::kBuffered, [](const auto& path) {
      std::fstream stream(path, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekp(20'000);
      stream << std::string(50'000, '!');
    });
    EXPECT_EQ(statuses[120], ErrorCode::kCorruption);
    EXPECT_EQ(statuses[590], ErrorCode::kOk);
  }
}

TEST(ChangedWhileOpenTest, ReplacedFileIsStillTheOneThatWasOpened) {
  const auto statuses = AfterHarm(2, IoPolicy::kBuffered, [](const auto& path) {
    test::WriteFile(path.string() + ".new", "something else");
    std::filesystem::rename(path.string() + ".new", path);
  });
  EXPECT_EQ(std::count(statuses.begin(), statuses.end(), ErrorCode::kOk), 600);
}

}  // namespace
}  // namespace ffrecord
