// Goal: a trained or given dictionary compresses records, every way to read finds it, and the loss
// of one costs its own records.
// Method: lines that are alike, written with each option; files whose dictionary is damaged; files
// put together of several dictionaries.

#include <gtest/gtest.h>

#include <thread>

#include "libffrecord/format/zstd_codec.h"
#include "libffrecord/record/check/verify_source.h"
#include "libffrecord/record/read/open_records.h"
#include "memory_files.h"
#include "memory_output.h"
#include "seed.h"
#include "test_file.h"

namespace ffrecord {
namespace {

std::vector<std::string> Lines(std::size_t count, std::uint64_t seed = test::Seed()) {
  std::mt19937_64 random(seed);
  const std::vector<std::string> words{"data ", "loader ", "record ", "of ",     "the ",
                                       "next ", "batch ",  "reads ",  "device ", "shuffle "};
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < count; ++i) {
    std::string line = R"({"id": )" + std::to_string(random()) +
                       R"(, "url": "https://example.org/articles/)" + std::to_string(i) +
                       R"(", "language": "en", "text": ")";
    for (int word = 0; word < 40; ++word) line += words[random() % words.size()];
    lines.push_back(line + "\"}");
  }
  return lines;
}

std::vector<std::byte> TrainedOn(const std::vector<std::string>& lines) {
  std::string samples;
  std::vector<std::size_t> sizes;
  for (const std::string& line : lines) {
    samples += line;
    sizes.push_back(line.size());
  }
  return TrainZstdDictionary(test::AsBytes(samples), sizes, 4096);
}

test::TestFileOptions Compressed(std::uint32_t train_bytes) {
  test::TestFileOptions options;
  options.writer.compress = true;
  options.writer.train_dictionary_bytes = train_bytes;
  return options;
}

const V2Section* DictionaryOf(const FileIndex& index) {
  return index.v2_layout()->footer.Find(V2Section::kDictionary);
}

TEST(DictionaryTest, TrainedOneServesAllRecords) {
  // 4 KiB of dictionary hold back 400 KiB; the file has about 900.
  const auto lines = Lines(2500);
  const test::TestFile plain(lines, Compressed(0));
  const test::TestFile file(lines, Compressed(4096));
  EXPECT_GT(file.summary().dictionary_size_bytes, 256U);
  EXPECT_LE(file.summary().dictionary_size_bytes, 4096U);
  EXPECT_EQ(plain.summary().dictionary_size_bytes, 0U);
  EXPECT_LT(file.summary().file_size_bytes, plain.summary().file_size_bytes);
  EXPECT_EQ(file.summary().fingerprint, plain.summary().fingerprint);
  EXPECT_EQ(file.summary().record_count, lines.size());

  EXPECT_EQ(test::ReadAll(test::OpenOne(file.path()).value()), lines);
  const auto report = VerifyFile(file.path()).value();
  EXPECT_TRUE(report.whole()) << report.problems[0];
}

TEST(DictionaryTest, HeldRecordsCount) {
  const test::TempFolder folder;
  RecordWriter::Options options;
  options.compress = true;
  options.train_dictionary_bytes = 1024;
  auto writer = RecordWriter::Create(folder / "a.ffr", {}, options).value();
  std::uint64_t count = 0;
  for (const std::string& line : Lines(1000)) {
    EXPECT_EQ(writer.record_count(), count++);
    ASSERT_TRUE(writer.Write(test::AsBytes(line)));
  }
  EXPECT_EQ(writer.record_count(), 1000U);
  EXPECT_EQ(writer.Close().value().record_count, 1000U);
}

TEST(DictionaryTest, TooLittleDataLeavesNone) {
  for (const auto& lines : {std::vector<std::string>{}, {"one"}, {"", "", ""}, Lines(3)}) {
    const test::TestFile file(lines, Compressed(1024));
    EXPECT_EQ(file.summary().dictionary_size_bytes, 0U);
    EXPECT_EQ(test::ReadAll(test::OpenOne(file.path()).value()), lines);
    EXPECT_TRUE(VerifyFile(file.path()).value().whole());
  }
}

TEST(DictionaryTest, RecordLargerThanWhatIsHeldBackPasses) {
  auto lines = Lines(600);
  lines.insert(lines.begin() + 400, std::string(300'000, 'x'));  // 100 KiB are held.
  const test::TestFile file(lines, Compressed(1024));
  EXPECT_GT(file.summary().dictionary_size_bytes, 0U);
  EXPECT_EQ(test::ReadAll(test::OpenOne(file.path()).value()), lines);
  std::vector<std::string> first{std::string(300'000, 'x'), "y"};
  const test::TestFile without(first, Compressed(1024));
  EXPECT_EQ(test::ReadAll(test::OpenOne(without.path()).value()), first);
}

TEST(DictionaryTest, GivenOneIsUsedFromTheFirstRecordOn) {
  const auto lines = Lines(1000);
  auto options = Compressed(0);
  options.writer.dictionary = TrainedOn(lines);
  ASSERT_FALSE(options.writer.dictionary.empty());
  const test::TestFile file(lines, options);
  EXPECT_EQ(file.summary().dictionary_size_bytes, options.writer.dictionary.size());
  EXPECT_EQ(test::ReadAll(test::OpenOne(file.path()).value()), lines);
}

TEST(DictionaryTest, WrongOptionsAreRefused) {
  const test::TempFolder folder;
  const auto refused = [&](auto change) {
    RecordWriter::Options options;
    options.compress = true;
    change(options);
    const auto writer = RecordWriter::Create(folder / "a.ffr", {}, options);
    return !writer && writer.error().code == ErrorCode::kInvalidArgument;
  };
  const auto dictionary = TrainedOn(Lines(1000));
  EXPECT_TRUE(refused([](auto& options) { options.train_dictionary_bytes = 1023; }));
  EXPECT_TRUE(refused([](auto& options) { options.train_dictionary_bytes = (16 << 20) + 1; }));
  EXPECT_TRUE(refused([&](auto& options) {
    options.dictionary = dictionary;
    options.train_dictionary_bytes = 4096;
  }));
  EXPECT_TRUE(refused([&](auto& options) {
    options.dictionary = dictionary;
    options.compress = false;
  }));
  EXPECT_TRUE(refused([](auto& options) { options.dictionary.resize(1000); }));
  EXPECT_FALSE(refused([&](auto& options) { options.dictionary = dictionary; }));
}

TEST(DictionaryTest, DamagedOneCostsItsRecordsOnly) {
  auto lines = Lines(1000);
  std::mt19937_64 random(test::Seed());
  lines.push_back(test::RandomText(500, random));  // Kept raw.
  const auto files = test::InMemory(test::FileOf(lines, Compressed(4096)));
  const auto place = *DictionaryOf(*OpenIndexes(*files, {}).value()[0]);
  files->content(0)[place.offset_bytes + place.size_bytes / 2] ^= 1;

  const auto reader = OpenRecords(files, {}).value();
  const auto batch = reader.ReadBatch(test::UpTo(lines.size())).value();

  for (std::size_t i = 0; i + 1 < lines.size(); ++i)
    EXPECT_EQ(batch.statuses()[i], ErrorCode::kCorruption);
  EXPECT_EQ(batch.statuses().back(), ErrorCode::kOk);
  EXPECT_EQ(test::AsString(batch.record(lines.size() - 1)), lines.back());
}

TEST(DictionaryTest, FileMayHaveSeveral) {
  const auto lines = Lines(900);
  test::MemoryOutput output;
  V2Header header;
  header.required_features = V2Header::kZstd | V2Header::kDictionary;
  V2Stream stream(output, header, std::span<const std::byte>());
  ASSERT_TRUE(stream.WriteFront({}));
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const auto dictionary = TrainedOn(Lines(1000, seed));
    ASSERT_TRUE(stream.AddSection(V2Section::kDictionary, dictionary));
    auto compressor = ZstdCompressor::Make(3, dictionary).value();
    for (std::size_t i = 300 * seed; i < 300 * (seed + 1); ++i) {
      const auto frame = compressor.Compress(test::AsBytes(lines[i]));
      ASSERT_FALSE(frame.empty());
      ASSERT_TRUE(stream.AddRecord(test::AsBytes(lines[i]), frame));
    }
  }
  ASSERT_TRUE(stream.Commit());
  const auto files = test::InMemory(output.content);

  EXPECT_EQ(test::ReadAll(OpenRecords(files, {}).value()), lines);
  const auto report = VerifySource(*files, nullptr).value();
  EXPECT_TRUE(report.whole()) << report.problems[0];
}

TEST(DictionaryTest, ManyThreadsLoadItOnce) {
  const auto lines = Lines(1000);
  const test::TestFile file(lines, Compressed(4096));
  for (int round = 0; round < 20; ++round) {
    const auto reader = test::OpenOne(file.path()).value();
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] { EXPECT_EQ(test::ReadAll(reader), lines); });
    for (auto& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace ffrecord
