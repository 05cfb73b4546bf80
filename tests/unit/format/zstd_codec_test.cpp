// Goal: a record survives compression; a frame that is not exactly the record is refused.
// Method: compress and decompress; damage frames; frames with a forged header.

#include "libffrecord/format/zstd_codec.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "bytes.h"
#include "seed.h"

namespace ffrecord {
namespace {

using test::AsBytes;

std::string Frame(const std::string& raw) {
  ZstdCompressor compressor(3);
  return test::AsString(compressor.Compress(AsBytes(raw)));
}

bool Decompresses(const std::string& frame, std::size_t raw_size, std::string* raw = nullptr) {
  std::vector<std::byte> buffer(raw_size);
  const auto decompressed = DecompressZstd(AsBytes(frame), buffer);
  if (raw != nullptr) *raw = test::AsString(buffer);
  return bool(decompressed);
}

TEST(ZstdCodecTest, DecompressesToWhatWasCompressed) {
  std::string raw(100'000, 'x');
  raw += "and an end";
  std::string back;
  const std::string frame = Frame(raw);
  EXPECT_LT(frame.size(), 1000U);
  ASSERT_TRUE(Decompresses(frame, raw.size(), &back));
  EXPECT_EQ(back, raw);
}

TEST(ZstdCodecTest, WhatGainsTooLittleIsKept) {
  std::mt19937_64 random(test::Seed());
  EXPECT_TRUE(Frame(test::RandomText(10'000, random)).empty());
  EXPECT_TRUE(Frame("").empty());
  EXPECT_TRUE(Frame("a").empty());
  // About 6 % compresses away, then about 3 %.
  EXPECT_FALSE(Frame(test::RandomText(9'400, random) + std::string(600, 'x')).empty());
  EXPECT_TRUE(Frame(test::RandomText(9'700, random) + std::string(300, 'x')).empty());
}

TEST(ZstdCodecTest, CompressorIsReusedForRecordsOfAnySize) {
  ZstdCompressor compressor(1);
  for (const std::size_t size : {100'000U, 100U, 1'000'000U, 50U}) {
    const std::string raw(size, 'r');
    std::string back;
    ASSERT_TRUE(Decompresses(test::AsString(compressor.Compress(AsBytes(raw))), size, &back));
    EXPECT_EQ(back, raw);
  }
}

TEST(ZstdCodecTest, AnyOtherSizeIsRefused) {
  const std::string frame = Frame(std::string(1000, 'x'));
  EXPECT_FALSE(Decompresses(frame, 999));
  EXPECT_FALSE(Decompresses(frame, 1001));
  EXPECT_FALSE(Decompresses(frame, 0));
}

TEST(ZstdCodecTest, CutOrJoinedFramesAreRefused) {
  const std::string frame = Frame(std::string(1000, 'x'));
  for (std::size_t size = 0; size < frame.size(); ++size)
    EXPECT_FALSE(Decompresses(frame.substr(0, size), 1000)) << size;
  EXPECT_FALSE(Decompresses(frame + '\0', 1000));
  EXPECT_FALSE(Decompresses(frame + frame, 1000));
  EXPECT_FALSE(Decompresses(frame + frame, 2000));
  const std::string skippable("\x50\x2a\x4d\x18\0\0\0\0", 8);
  EXPECT_FALSE(Decompresses(skippable, 0));
  EXPECT_FALSE(Decompresses(skippable + frame, 1000));
}

TEST(ZstdCodecTest, LargeWindowIsRefused) {
  // Magic; no single segment, content size of 2 bytes (256 are added); window; one RLE block.
  const auto frame = [](char window) {
    return std::string("\x28\xb5\x2f\xfd\x40", 5) + window + std::string("\xe8\2", 2) +
           std::string("\x43\x1f\0x", 4);
  };
  EXPECT_TRUE(Decompresses(frame('\x88'), 1000));   // 2^27 bytes.
  EXPECT_FALSE(Decompresses(frame('\x89'), 1000));  // An eighth more.
}

// Lines that are alike, as records of one data set are.
std::string Line(std::mt19937_64& random) {
  std::string line = R"({"url": "https://example.org/articles/)" +
                     std::to_string(random() % 10000) + R"(", "language": "en", "score": 0.)" +
                     std::to_string(random() % 1000) + R"(, "text": ")";
  const std::vector<std::string> words{"data ", "loader ", "record ", "of ",     "the ",
                                       "next ", "batch ",  "reads ",  "device ", "shuffle "};
  for (int i = 0; i < 30; ++i) line += words[random() % words.size()];
  return line + "\"}";
}

std::vector<std::byte> Trained(std::mt19937_64& random, std::size_t line_count = 2000) {
  std::string samples;
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < line_count; ++i) {
    const std::string line = Line(random);
    samples += line;
    sizes.push_back(line.size());
  }
  return TrainZstdDictionary(AsBytes(samples), sizes, 4096);
}

TEST(ZstdCodecTest, DictionaryMakesSmallRecordsSmaller) {
  std::mt19937_64 random(test::Seed());
  const auto dictionary = Trained(random);
  ASSERT_FALSE(dictionary.empty());
  EXPECT_LE(dictionary.size(), 4096U);
  auto compressor = ZstdCompressor::Make(3, dictionary).value();
  std::vector<ZstdDictionary> dictionaries;
  dictionaries.push_back(ZstdDictionary::Make(dictionary).value());
  std::size_t with = 0;
  std::size_t without = 0;
  for (int i = 0; i < 100; ++i) {
    const std::string line = Line(random);
    const std::string frame = test::AsString(compressor.Compress(AsBytes(line)));
    with += frame.size();
    without += Frame(line).size();
    std::vector<std::byte> raw(line.size());
    ASSERT_TRUE(DecompressZstd(AsBytes(frame), raw, dictionaries));
    EXPECT_EQ(test::AsString(raw), line);
    EXPECT_FALSE(DecompressZstd(AsBytes(frame), raw)) << "the dictionary is needed";
  }
  EXPECT_LT(with * 3, without * 2);
}

TEST(ZstdCodecTest, FramePicksItsDictionaryAmongSeveral) {
  std::mt19937_64 random(test::Seed());
  const auto first = Trained(random);
  const auto second = Trained(random);
  std::vector<ZstdDictionary> dictionaries;
  dictionaries.push_back(ZstdDictionary::Make(first).value());
  dictionaries.push_back(ZstdDictionary::Make(second).value());
  ASSERT_NE(dictionaries[0].id(), dictionaries[1].id());
  const std::string line = Line(random);
  std::vector<std::byte> raw(line.size());
  for (const auto& dictionary : {first, second, {}}) {
    auto compressor =
        dictionary.empty() ? ZstdCompressor(3) : ZstdCompressor::Make(3, dictionary).value();
    ASSERT_TRUE(DecompressZstd(compressor.Compress(AsBytes(line)), raw, dictionaries));
    EXPECT_EQ(test::AsString(raw), line);
  }
  auto compressor = ZstdCompressor::Make(3, second).value();
  EXPECT_FALSE(
      DecompressZstd(compressor.Compress(AsBytes(line)), raw, std::span(dictionaries).first(1)));
}

TEST(ZstdCodecTest, NoDictionaryOfTooFewSamples) {
  std::mt19937_64 random(test::Seed());
  EXPECT_TRUE(TrainZstdDictionary({}, {}, 4096).empty());
  EXPECT_TRUE(Trained(random, 1).empty());
  EXPECT_TRUE(Trained(random, 3).empty());
}

TEST(ZstdCodecTest, WhatIsNoDictionaryIsRefused) {
  std::mt19937_64 random(test::Seed());
  const auto dictionary = Trained(random);
  auto without_id = dictionary;
  std::fill_n(without_id.begin() + 4, 4, std::byte{});
  auto without_magic = dictionary;
  without_magic[0] ^= std::byte{1};
  const auto cut = std::vector(dictionary.begin(), dictionary.begin() + 20);
  for (const auto& bad : {without_id, without_magic, cut, std::vector<std::byte>()}) {
    EXPECT_EQ(ZstdDictionary::Make(bad).error().code, ErrorCode::kCorruption);
    EXPECT_EQ(ZstdCompressor::Make(3, bad).error().code, ErrorCode::kCorruption);
  }
}

TEST(ZstdCodecTest, EveryThreadMayDecompress) {
  const std::string raw(50'000, 'q');
  const std::string frame = Frame(raw);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round) EXPECT_TRUE(Decompresses(frame, raw.size()));
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace ffrecord
