// Goal: damage of keys is reported, and never gives another record or another key.
// Method: each bit of a small file; directories and pages put together by hand.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "keyed_file.h"
#include "libffrecord/format/v2_keys.h"
#include "libffrecord/record/check/verify_source.h"
#include "libffrecord/record/read/open_records.h"
#include "memory_files.h"
#include "memory_output.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AllKeys;
using test::AsBytes;
using test::KeyedFile;

TEST(KeyDamageTest, FlippedBitNeverGivesAnotherRecord) {
  KeyedFile file;
  const std::vector<std::string> keys{"one", "two", "", "three", "one"};
  file.Write({keys});
  std::uint64_t refused_count = 0;
  for (std::size_t bit = 0; bit < 8 * file.content.size(); ++bit) {
    // Pages are mostly padding: each byte there once.
    if (file.content[bit / 8] == 0 && bit % 8 != bit / 8 % 8) continue;
    std::string content = file.content;
    content[bit / 8] = static_cast<char>(content[bit / 8] ^ 1 << bit % 8);
    const auto reader = OpenRecords(test::InMemory(content), {});
    if (!reader) continue;
    for (const auto& [key, index] :
         {std::pair{"one", 0U}, {"two", 1U}, {"three", 3U}, {"four", 9U}}) {
      const auto found = reader.value().Find(AsBytes(key));
      refused_count += !found;
      const bool right = !found       ? found.error().code == ErrorCode::kCorruption
                         : index == 9 ? !found.value()
                                      : found.value() == std::uint64_t{index};
      ASSERT_TRUE(right) << "bit " << bit;
    }
    ASSERT_FALSE(VerifySource(*test::InMemory(content)).value().whole()) << "bit " << bit;
  }
  EXPECT_GT(refused_count, 100U);
}

TEST(KeyDamageTest, FlippedBitNeverGivesOtherKeys) {
  KeyedFile file;
  const std::vector<std::string> keys{"one", "two", "", "three", "one"};
  file.Write({keys});
  std::uint64_t refused_count = 0;
  for (std::size_t bit = 0; bit < 8 * file.content.size(); ++bit) {
    if (file.content[bit / 8] == 0 && bit % 8 != bit / 8 % 8) continue;
    std::string content = file.content;
    content[bit / 8] = static_cast<char>(content[bit / 8] ^ 1 << bit % 8);
    const auto reader = OpenRecords(test::InMemory(content), {});
    if (!reader) continue;
    if (const auto found = reader.value().ReadKeys(0); !found) {
      ASSERT_EQ(found.error().code, ErrorCode::kCorruption) << "bit " << bit;
      ++refused_count;
    } else {
      ASSERT_EQ(AllKeys(reader.value()), keys) << "bit " << bit;
    }
  }
  EXPECT_GT(refused_count, 100U);
}

// A file whose key directory is `runs`, behind one page that lists `entries`.
std::string WithDirectory(const std::vector<KeyRun>& runs, const std::vector<KeyEntry>& entries) {
  test::MemoryOutput output;
  V2Header header;
  header.append_features = V2Header::kKeys;
  V2Stream stream(output, header, std::span<const std::byte>());
  EXPECT_TRUE(stream.WriteFront({}));
  EXPECT_TRUE(stream.AddRecord(AsBytes("abc"), AsBytes("abc")));
  EXPECT_TRUE(stream.EndSegment());
  std::vector<std::byte> page(kKeyPageSizeBytes);
  for (std::size_t i = 0; i < entries.size(); ++i) StoreKeyEntry(entries[i], i, page);
  SealKeyPage(header.file_id, 8192, entries.size(), page);
  EXPECT_EQ(stream.AppendStructure(page, kKeyPageSizeBytes).value(), 8192U);
  EXPECT_TRUE(stream.AddSection(V2Section::kKeyDirectory, EncodeKeyDirectory(runs)));
  EXPECT_TRUE(stream.Commit());
  return output.content;
}

ErrorCode CodeOfSearch(const std::string& content, const std::string& key) {
  const auto found = OpenRecords(test::InMemory(content), {}).value().Find(AsBytes(key));
  return found ? ErrorCode::kOk : found.error().code;
}

TEST(KeyDamageTest, ImpossibleDirectoriesAreRefused) {
  const std::uint64_t huge = std::uint64_t{1} << 62;
  for (const auto& runs : std::vector<std::vector<KeyRun>>{{},
                                                           {{8192, 0}},
                                                           {{8192, huge}},
                                                           {{8192, std::uint64_t{1} << 48}},
                                                           {{8192, 171 * 100}},
                                                           {{8191, 1}},
                                                           {{0, 1}},
                                                           {{huge, 1}},
                                                           {{0xffff'ffff'ffff'f000, 1}}})
    EXPECT_EQ(CodeOfSearch(WithDirectory(runs, {{}}), "abc"), ErrorCode::kCorruption);
  const std::vector<KeyRun> most(kKeyRunCountMax, {8192, 1});
  std::vector<std::byte> too_many = EncodeKeyDirectory(most);
  EXPECT_TRUE(DecodeKeyDirectory(too_many, 1 << 30));
  too_many.insert(too_many.end(), too_many.begin(), too_many.begin() + 16);
  EXPECT_FALSE(DecodeKeyDirectory(too_many, 1 << 30));
  EXPECT_FALSE(DecodeKeyDirectory(std::vector<std::byte>(15), 1 << 30));
}

// Small files whose entries say, again and again, what is there once.
TEST(KeyDamageTest, KeysDoNotOutgrowTheirFile) {
  const std::string payload(60'000, 'k');
  for (const std::size_t run_count : {1U, 2U}) {
    test::MemoryOutput output;
    V2Header header;
    header.append_features = V2Header::kKeys;
    V2Stream stream(output, header, std::span<const std::byte>());
    EXPECT_TRUE(stream.WriteFront({}));
    EXPECT_TRUE(stream.AddRecord(AsBytes(payload), AsBytes(payload)));
    constexpr std::size_t kCount = 100;
    for (std::size_t i = 1; i < kCount; ++i) EXPECT_TRUE(stream.AddRecord({}, {}));
    EXPECT_TRUE(stream.EndSegment());
    KeyEntry entry;
    entry.hash = KeyHash(header.file_id, AsBytes(payload));
    entry.offset_bytes = output.content.find(payload);
    entry.size_bytes = 60'000;
    std::vector<std::byte> page(kKeyPageSizeBytes);
    for (std::size_t i = 0; i < kCount; ++i) {
      entry.record_index = i & 0xffff;
      StoreKeyEntry(entry, i, page);
    }
    const std::uint64_t offset = (output.content.size() + 4095) / 4096 * 4096;
    SealKeyPage(header.file_id, offset, kCount, page);
    EXPECT_EQ(stream.AppendStructure(page, kKeyPageSizeBytes).value(), offset);
    const std::vector<KeyRun> runs(run_count, {offset, kCount});
    EXPECT_TRUE(stream.AddSection(V2Section::kKeyDirectory, EncodeKeyDirectory(runs)));
    EXPECT_TRUE(stream.Commit());

    const auto reader = OpenRecords(test::InMemory(output.content), {});
    ASSERT_TRUE(reader) << reader.error().message;
    const auto keys = reader.value().ReadKeys(0);
    ASSERT_FALSE(keys) << run_count;
    EXPECT_EQ(keys.error().code, ErrorCode::kCorruption);
    const std::string_view why = run_count > 1 ? "more keys than records" : "larger than the file";
    EXPECT_NE(keys.error().message.find(why), std::string::npos) << keys.error().message;
  }
}

TEST(KeyDamageTest, ImpossibleEntriesAreRefused) {
  const std::uint64_t hash = KeyHash(FileId{}, AsBytes("abc"));
  const auto entry = [&](std::uint64_t index, std::uint64_t offset, std::uint16_t size) {
    KeyEntry made;
    made.hash = hash;
    made.record_index = index & 0xffff'ffff'ffff;
    made.offset_bytes = offset;
    made.size_bytes = size;
    return made;
  };
  // The payload of record 0, at 160, happens to be the key.
  EXPECT_EQ(CodeOfSearch(WithDirectory({{8192, 1}}, {entry(0, 160, 3)}), "abc"), ErrorCode::kOk);
  for (const KeyEntry& bad :
       {entry(1, 160, 3), entry(0xffff'ffff'ffff, 160, 3), entry(0, 0xffff'ffff'ffff, 3),
        entry(0, 160, 0), entry(0, 161, 3), entry(0, 16384, 3), entry(0, 12288, 65'535)})
    EXPECT_EQ(CodeOfSearch(WithDirectory({{8192, 1}}, {bad}), "abc"), ErrorCode::kCorruption);
}

}  // namespace
}  // namespace ffrecord
