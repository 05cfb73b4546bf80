// Goal: a record survives compression; a frame that is not exactly the record is refused.
// Method: compress and expand; damage frames; frames with a forged header.

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

bool Expands(const std::string& frame, std::size_t raw_size, std::string* raw = nullptr) {
  std::vector<std::byte> buffer(raw_size);
  const auto expanded = ExpandZstd(AsBytes(frame), buffer);
  if (raw != nullptr) *raw = test::AsString(buffer);
  return bool(expanded);
}

TEST(ZstdCodecTest, ExpandsToWhatWasCompressed) {
  std::string raw(100'000, 'x');
  raw += "and an end";
  std::string back;
  const std::string frame = Frame(raw);
  EXPECT_LT(frame.size(), 1000U);
  ASSERT_TRUE(Expands(frame, raw.size(), &back));
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
    ASSERT_TRUE(Expands(test::AsString(compressor.Compress(AsBytes(raw))), size, &back));
    EXPECT_EQ(back, raw);
  }
}

TEST(ZstdCodecTest, AnyOtherSizeIsRefused) {
  const std::string frame = Frame(std::string(1000, 'x'));
  EXPECT_FALSE(Expands(frame, 999));
  EXPECT_FALSE(Expands(frame, 1001));
  EXPECT_FALSE(Expands(frame, 0));
}

TEST(ZstdCodecTest, CutOrJoinedFramesAreRefused) {
  const std::string frame = Frame(std::string(1000, 'x'));
  for (std::size_t size = 0; size < frame.size(); ++size)
    EXPECT_FALSE(Expands(frame.substr(0, size), 1000)) << size;
  EXPECT_FALSE(Expands(frame + '\0', 1000));
  EXPECT_FALSE(Expands(frame + frame, 1000));
  EXPECT_FALSE(Expands(frame + frame, 2000));
  const std::string skippable("\x50\x2a\x4d\x18\0\0\0\0", 8);
  EXPECT_FALSE(Expands(skippable, 0));
  EXPECT_FALSE(Expands(skippable + frame, 1000));
}

TEST(ZstdCodecTest, LargeWindowIsRefused) {
  // Magic; no single segment, content size of 2 bytes (256 are added); window; one RLE block.
  const auto frame = [](char window) {
    return std::string("\x28\xb5\x2f\xfd\x40", 5) + window + std::string("\xe8\2", 2) +
           std::string("\x43\x1f\0x", 4);
  };
  EXPECT_TRUE(Expands(frame('\x88'), 1000));   // 2^27 bytes.
  EXPECT_FALSE(Expands(frame('\x89'), 1000));  // An eighth more.
}

TEST(ZstdCodecTest, EveryThreadMayExpand) {
  const std::string raw(50'000, 'q');
  const std::string frame = Frame(raw);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round) EXPECT_TRUE(Expands(frame, raw.size()));
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace ffrecord
