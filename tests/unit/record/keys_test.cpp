// Goal: a record is found by its key, and only by it, in files of any number of keys, at any
// number of commits, local or not.
// Method: files with 0 to 10^6 keys; a hash that collides; writers that spill to disk after a few
// keys. key_damage_test.cpp has damaged files.

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "keyed_file.h"
#include "libffrecord/format/v2_keys.h"
#include "libffrecord/record/check/verify_source.h"
#include "libffrecord/record/index/key_index.h"
#include "libffrecord/record/read/open_records.h"
#include "libffrecord/record/write/key_writer.h"
#include "memory_files.h"
#include "memory_output.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

using test::AllKeys;
using test::AsBytes;
using test::KeyedFile;

std::string KeyOf(std::uint64_t i) { return "train/class-7/" + std::to_string(i) + ".jpg"; }

std::vector<std::string> Keys(std::uint64_t count, std::uint64_t begin = 0) {
  std::vector<std::string> keys;
  for (std::uint64_t i = 0; i < count; ++i) keys.push_back(KeyOf(begin + i));
  return keys;
}

std::optional<std::uint64_t> Find(const RecordReader& reader, const std::string& key) {
  const auto found = reader.Find(AsBytes(key));
  EXPECT_TRUE(found) << found.error().message;
  return found.value();
}

void ExpectWhole(const std::string& content) {
  const auto report = VerifySource(*test::InMemory(content)).value();
  EXPECT_TRUE(report.whole()) << report.problems[0];
}

std::size_t RunCount(const std::string& content) {
  const auto files = test::InMemory(content);
  const auto index = std::move(OpenIndexes(*files, {}).value()[0]);
  const V2Layout& layout = *index->v2_layout();
  const V2Section* section = layout.footer.Find(V2Section::kKeyDirectory);
  return section == nullptr ? 0 : section->size_bytes / 16;
}

class KeyCountTest : public testing::TestWithParam<std::uint64_t> {};

TEST_P(KeyCountTest, EveryKeyIsFoundAndNoOther) {
  const std::uint64_t count = GetParam();
  KeyedFile file;
  file.Write({Keys(count)});
  const auto files = test::InMemory(file.content);
  const auto reader = OpenRecords(files, {}).value();
  EXPECT_EQ(files->map_call_count(), 0U) << "opening looks at no key";
  std::mt19937_64 random(test::Seed());
  for (std::uint64_t i = 0; i < count; i += 1 + (count > 10'000 ? random() % 1000 : 0))
    ASSERT_EQ(Find(reader, KeyOf(i)), i);
  for (std::uint64_t i = count; i < count + 1000; ++i)
    ASSERT_EQ(Find(reader, KeyOf(i)), std::nullopt);
  EXPECT_EQ(Find(reader, ""), std::nullopt);
  EXPECT_EQ(Find(reader, std::string(100'000, 'x')), std::nullopt);
  ExpectWhole(file.content);
}

INSTANTIATE_TEST_SUITE_P(Counts, KeyCountTest,
                         testing::Values(0, 1, 2, 169, 170, 171, 340, 341, 5000, 1'000'000));

TEST(KeysTest, SearchTouchesFewPages) {
  KeyedFile file;
  file.Write({Keys(1'000'000)});
  const auto files = test::InMemory(file.content);
  const auto reader = OpenRecords(files, {}).value();
  std::mt19937_64 random(test::Seed());
  constexpr std::uint64_t kSearches = 100;
  for (std::uint64_t i = 0; i < kSearches; ++i) {
    const std::uint64_t wanted = random() % 1'000'000;
    ASSERT_EQ(Find(reader, KeyOf(wanted)), wanted);
  }
  // Of 5,883 pages; and the key itself, and the directory.
  EXPECT_LE(files->map_call_count(), 1 + kSearches * 5);
}

TEST(KeysTest, OneWritersFileIsTheSameWhetherItSpillsOrNot) {
  const auto keys = Keys(2000);
  KeyedFile at_once;
  at_once.Write({keys});
  for (const std::size_t pending_max : {1U, 7U, 170U, 1999U, 2000U}) {
    KeyedFile spilled{.pending_max = pending_max};
    spilled.Write({keys});
    const auto reader = OpenRecords(test::InMemory(spilled.content), {}).value();
    for (std::uint64_t i = 0; i < 2000; ++i) ASSERT_EQ(Find(reader, KeyOf(i)), i);
    ExpectWhole(spilled.content);
  }
}

TEST(KeysTest, KeysThatAreTakenBackLeaveNothing) {
  const std::vector<std::vector<std::string>> commits{Keys(900), Keys(900, 900)};
  for (const std::size_t pending_max : {1U, 7U, 170U, 5000U}) {
    KeyedFile plain{.pending_max = pending_max};
    plain.Write(commits);
    KeyedFile undone{.pending_max = pending_max, .undone_max = 3 * pending_max};
    undone.Write(commits);
    EXPECT_TRUE(undone.content == plain.content) << pending_max;
  }
}

TEST(KeysTest, KeysOfAnyBytesAndSizes) {
  std::mt19937_64 random(test::Seed());
  std::vector<std::string> keys{std::string(1, '\0'), std::string(2, '\0'), "\xff",
                                std::string(65'535, 'k'), std::string(65'534, 'k')};
  for (int i = 0; i < 300; ++i) keys.push_back(test::RandomText(1 + random() % 3000, random));
  KeyedFile file;
  file.Write({keys});
  const auto reader = OpenRecords(test::InMemory(file.content), {}).value();
  for (std::uint64_t i = 0; i < keys.size(); ++i) {
    const auto found = Find(reader, keys[i]);
    ASSERT_TRUE(found);
    EXPECT_EQ(keys[*found], keys[i]);
  }
  ExpectWhole(file.content);
}

TEST(KeysTest, OfEqualKeysTheFirstRecordIsFound) {
  KeyedFile file;
  file.Write({{"a", "b", "", "b", "a"}, {"b", "c"}, {"c", "a", "d", ""}});
  const auto reader = OpenRecords(test::InMemory(file.content), {}).value();
  EXPECT_EQ(Find(reader, "a"), 0U);
  EXPECT_EQ(Find(reader, "b"), 1U);
  EXPECT_EQ(Find(reader, "c"), 6U);
  EXPECT_EQ(Find(reader, "d"), 9U);
  KeyedFile many;
  many.Write({std::vector<std::string>(1000, "same")});  // Over several pages.
  EXPECT_EQ(Find(OpenRecords(test::InMemory(many.content), {}).value(), "same"), 0U);
}

TEST(KeysTest, AllKeysAreReadInTheOrderOfRecords) {
  std::mt19937_64 random(test::Seed());
  for (const std::size_t pending_max : {3U, 1000U}) {
    // Several commits, keys that are equal, none at all, and so large that many windows are read.
    std::vector<std::vector<std::string>> commits{{}, {"", "a", ""}, {"", ""}, {"a", "b", "a"}};
    for (int i = 0; i < 40; ++i) {
      commits.push_back({std::string(65'535, 'k'), "", std::string(1, '\0')});
      commits.push_back(Keys(random() % 300));
      commits.back().push_back(test::RandomText(1 + random() % 60'000, random));
    }
    KeyedFile file{.pending_max = pending_max};
    file.Write(commits);
    std::vector<std::string> wanted;
    for (const auto& commit : commits) wanted.insert(wanted.end(), commit.begin(), commit.end());
    EXPECT_EQ(AllKeys(OpenRecords(test::InMemory(file.content), {}).value()), wanted);
  }
}

TEST(KeysTest, KeysAreReadByFileAndOfAFileWithoutThereAreNone) {
  KeyedFile file;
  KeyedFile none;
  file.Write({{"a", "", "b"}});
  none.Write({{"", ""}});
  const auto files = std::make_shared<test::MemoryFiles>(std::vector<std::string>{
      none.content, file.content, test::FileOf({"x"}), test::FileOf({"x"}, {.version = 1})});
  const auto reader = OpenRecords(files, {}).value();
  EXPECT_EQ(AllKeys(reader, 0), std::vector<std::string>(2));
  EXPECT_EQ(AllKeys(reader, 1), (std::vector<std::string>{"a", "", "b"}));
  EXPECT_EQ(AllKeys(reader, 2), std::vector<std::string>(1));
  EXPECT_EQ(AllKeys(reader, 3), std::vector<std::string>(1));
  const auto beyond = reader.ReadKeys(4);
  ASSERT_FALSE(beyond);
  EXPECT_EQ(beyond.error().code, ErrorCode::kOutOfRange);
}

TEST(KeysTest, EachCommitAddsItsKeysAndRunsStayFew) {
  KeyedFile file;
  std::vector<std::vector<std::string>> commits;
  std::uint64_t count = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    commits.push_back(Keys(1 + i % 5, count));
    count += commits.back().size();
  }
  commits.push_back({"", ""});  // A commit without keys.
  file.Write(commits);
  const auto reader = OpenRecords(test::InMemory(file.content), {}).value();
  for (std::uint64_t i = 0; i < count; ++i) ASSERT_EQ(Find(reader, KeyOf(i)), i);
  EXPECT_EQ(Find(reader, KeyOf(count)), std::nullopt);
  EXPECT_LE(RunCount(file.content), 10U);
  ExpectWhole(file.content);
}

// The keys of each portion in a run of their own, as a writer may do that never merges. Keys are
// KeyOf(0), KeyOf(1), ... in order, one for each record.
std::string WithRunsOf(const std::vector<std::uint64_t>& portions) {
  const test::TempFolder folder;
  test::MemoryOutput output;
  V2Header header;
  header.append_features = V2Header::kKeys;
  V2Stream stream(output, header, std::span<const std::byte>());
  EXPECT_TRUE(stream.WriteFront({}));
  std::vector<KeyRun> runs;
  for (const std::uint64_t count : portions) {
    KeyWriter keys({.path = folder / "file.ffr"});
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t index = stream.totals().record_count;
      EXPECT_TRUE(stream.AddRecord(AsBytes("record"), AsBytes("record")));
      EXPECT_TRUE(keys.Add(index, AsBytes(KeyOf(index)), stream));
      EXPECT_TRUE(!stream.segment_is_full() || stream.EndSegment());
    }
    EXPECT_TRUE(stream.pending_count() == 0 || stream.EndSegment());
    EXPECT_TRUE(keys.Finish(stream));
    const V2Section section = *stream.totals().Find(V2Section::kKeyDirectory);
    const auto written = DecodeKeyDirectory(
        AsBytes(output.content).subspan(section.offset_bytes, section.size_bytes),
        section.offset_bytes);
    runs.push_back(written.value().front());
    EXPECT_TRUE(stream.Commit());
  }
  stream.ForgetSections(V2Section::kKeyDirectory);
  EXPECT_TRUE(stream.AddSection(V2Section::kKeyDirectory, EncodeKeyDirectory(runs)));
  EXPECT_TRUE(stream.Commit());
  return output.content;
}

TEST(KeysTest, SixtyFourRunsAreTheMostAndStaySo) {
  // Such as leave nothing to be merged by size but the last, and such as are merged all at once.
  std::vector<std::uint64_t> falling(kKeyRunCountMax, 200);
  falling.back() = 10;
  for (const auto& portions : {falling, std::vector<std::uint64_t>(kKeyRunCountMax, 10)}) {
    const test::TempFolder folder;
    test::WriteFile(folder / "a.ffr", WithRunsOf(portions));
    ASSERT_EQ(RunCount(test::ReadFile(folder / "a.ffr")), kKeyRunCountMax);
    std::uint64_t count = 0;
    for (const std::uint64_t portion : portions) count += portion;
    for (int round = 0; round < 3; ++round) {
      auto writer = RecordWriter::Append(folder / "a.ffr", {}).value();
      for (int i = 0; i <= round; ++i, ++count)
        ASSERT_TRUE(writer.Write(AsBytes("record"), AsBytes(KeyOf(count))));
      ASSERT_TRUE(writer.Close());

      const std::string content = test::ReadFile(folder / "a.ffr");
      EXPECT_LE(RunCount(content), kKeyRunCountMax);
      EXPECT_EQ(RunCount(content) == kKeyRunCountMax, portions == falling);
      ExpectWhole(content);
      const auto reader = OpenRecords(test::InMemory(content), {}).value();
      for (std::uint64_t i = 0; i < count; i += i + 30 < count ? 7 : 1)  // And all new ones.
        ASSERT_EQ(Find(reader, KeyOf(i)), i);
      ASSERT_EQ(Find(reader, KeyOf(count)), std::nullopt);
    }
  }
}

// Runs that are only listed: what is not merged is not read.
TEST(KeysTest, LargeRunsAreNotWrittenAgainAndASixtyFifthIsRefused) {
  constexpr std::uint64_t kLarge = std::uint64_t{1} << 24;
  const auto runs_after = [&](std::vector<KeyRun> runs, std::uint64_t key_count) {
    test::MemoryOutput output;
    V2Stream stream(output, V2Header{}, std::span<const std::byte>());
    KeyWriter keys(
        {.path = "keys.ffr", .runs = std::move(runs), .read_at = [](auto, auto) -> Result<void> {
           return Error{ErrorCode::kCorruption, "a run is read"};
         }});
    for (std::uint64_t i = 0; i < key_count; ++i)
      EXPECT_TRUE(keys.Add(i, AsBytes(KeyOf(i)), stream));
    const auto finished = keys.Finish(stream);
    if (!finished) return Result<std::uint64_t>(finished.error());
    return Result<std::uint64_t>(stream.totals().Find(V2Section::kKeyDirectory)->size_bytes / 16);
  };
  EXPECT_EQ(runs_after({{8192, kLarge}}, 10).value(), 2U);
  EXPECT_EQ(runs_after({{8192, 19}}, 10).error().code, ErrorCode::kCorruption) << "it is merged";
  // Among 64 the last must be merged, which only a small one can be.
  std::vector<KeyRun> full(kKeyRunCountMax, {8192, kLarge});
  const auto refused = runs_after(full, 1);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("too many keys"), std::string::npos);
  full.back().entry_count = 1000;
  EXPECT_EQ(runs_after(full, 1).error().code, ErrorCode::kCorruption);
  full.back().entry_count = kLarge - 1;
  EXPECT_EQ(runs_after(full, 2).error().code, ErrorCode::kInvalidArgument);
}

TEST(KeysTest, RunsAndSpillsAreMergedTogether) {
  // Each commit spills after three keys, and merges with runs of the ones before.
  KeyedFile file{.pending_max = 3};
  std::vector<std::vector<std::string>> commits;
  std::uint64_t count = 0;
  for (std::uint64_t i = 0; i < 130; ++i) {
    commits.push_back(Keys(1 + i * 7 % 40, count));
    count += commits.back().size();
  }
  file.Write(commits);
  const auto reader = OpenRecords(test::InMemory(file.content), {}).value();
  for (std::uint64_t i = 0; i < count; ++i) ASSERT_EQ(Find(reader, KeyOf(i)), i);
  EXPECT_LE(RunCount(file.content), 12U);  // Each at least twice as large as the one behind it.
  ExpectWhole(file.content);
}

// Sixteen values, so that runs of equal hashes are long and cross pages.
std::uint64_t WeakHash(const FileId&, std::span<const std::byte> key) noexcept {
  return (std::to_integer<std::uint64_t>(key.back()) & 15) << 60;
}

TEST(KeysTest, CollidingHashesAreToldApartByTheKey) {
  KeyedFile file{.pending_max = 100, .hash = &WeakHash};
  std::vector<std::string> keys;
  for (std::uint64_t i = 0; i < 3000; ++i) keys.push_back(std::to_string(i));
  file.Write({keys});
  const auto files = test::InMemory(file.content);
  const auto index = std::move(OpenIndexes(*files, {}).value()[0]);
  const KeyIndex key_index(*files, 0, *index->v2_layout(), &WeakHash);
  for (std::uint64_t i = 0; i < keys.size(); ++i)
    ASSERT_EQ(key_index.Find(AsBytes(keys[i])).value(), i);
  EXPECT_EQ(key_index.Find(AsBytes("3000")).value(), std::nullopt);
  EXPECT_EQ(key_index.Find(AsBytes("x")).value(), std::nullopt);
}

TEST(KeysTest, FilesAreSearchedInOrder) {
  KeyedFile first;
  first.Write({{"a", "b"}});
  KeyedFile second;
  second.Write({{"b", "c"}});
  const auto files = std::make_shared<test::MemoryFiles>(
      std::vector<std::string>{first.content, test::FileOf({"no key"}), second.content,
                               test::FileOf({"1"}, {.version = 1})});
  const auto reader = OpenRecords(files, {}).value();
  EXPECT_EQ(Find(reader, "b"), 1U);
  EXPECT_EQ(Find(reader, "c"), 4U);
  EXPECT_EQ(Find(reader, "d"), std::nullopt);
  for (const int version : {1, 2}) {
    const auto without = OpenRecords(test::InMemory(test::FileOf({"a"}, {.version = version})), {});
    const auto found = without.value().Find(AsBytes("a"));
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(found.error().message.find("written without keys"), std::string::npos);
  }
  const std::vector<std::span<const std::byte>> keys{AsBytes("c"), AsBytes("d"), AsBytes("a")};
  EXPECT_EQ(reader.FindAll(keys).value(),
            (std::vector<std::optional<std::uint64_t>>{4, std::nullopt, 0}));
}

TEST(KeysTest, WriterTakesKeysAndFindsThemAgain) {
  const test::TempFolder folder;
  RecordWriter::Options options;
  options.keys = true;
  options.compress = true;
  options.train_dictionary_bytes = 1024;  // Held records keep their keys.
  auto writer = RecordWriter::Create(folder / "a.ffr", {}, options).value();
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const std::string record = "record number " + std::to_string(i) + " of the file with keys";
    ASSERT_TRUE(writer.Write(AsBytes(record), AsBytes(i % 3 == 0 ? KeyOf(i) : "")));
  }
  EXPECT_EQ(writer.Write(AsBytes("x"), AsBytes(std::string(65'536, 'k'))).error().code,
            ErrorCode::kInvalidArgument);
  ASSERT_TRUE(writer.Close());
  for (std::uint64_t round = 0; round < 4; ++round) {
    auto more = RecordWriter::Append(folder / "a.ffr", {}).value();
    for (std::uint64_t i = 0; i < 50; ++i)
      ASSERT_TRUE(more.Write(AsBytes("more"), AsBytes(KeyOf(3000 + 50 * round + i))));
    ASSERT_TRUE(more.Close());
  }

  const auto reader = test::OpenOne(folder / "a.ffr").value();
  EXPECT_EQ(reader.record_count(), 3200U);
  for (std::uint64_t i = 0; i < 3200; ++i)
    ASSERT_EQ(Find(reader, KeyOf(i)), i % 3 == 0 || i >= 3000 ? std::optional(i) : std::nullopt);
  const auto report = VerifyFile(folder / "a.ffr").value();
  EXPECT_TRUE(report.whole()) << report.problems[0];
}

TEST(KeysTest, FileBegunWithoutKeysRefusesThem) {
  const test::TempFolder folder;
  auto writer = RecordWriter::Create(folder / "a.ffr", {}, {}).value();
  EXPECT_EQ(writer.Write(AsBytes("a"), AsBytes("key")).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(writer.Write(AsBytes("a")));
  EXPECT_EQ(writer.Close().value().record_count, 1U);
}

TEST(KeysTest, ManyThreadsSearchAtOnce) {
  KeyedFile file;
  file.Write({Keys(20'000)});
  const test::TempFolder folder;
  test::WriteFile(folder / "a.ffr", file.content);
  const auto reader = test::OpenOne(folder / "a.ffr").value();
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (std::uint64_t i = thread; i < 20'000; i += 7) ASSERT_EQ(Find(reader, KeyOf(i)), i);
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace ffrecord
