// Goal: manifests and segments are read exactly as format.md says, and damage of any kind is
// refused.
// Method: golden bytes; every truncation; every single bit flipped; bodies broken under a valid
// checksum, which is what a hostile writer would send.

#include "libffrecord/format/checkpoint_manifest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include <ffrecord/checkpoint_dtype.h>

#include "libffrecord/base/hex.h"
#include "libffrecord/format/checkpoint_segment.h"
#include "seed.h"

namespace ffrecord {
namespace {

std::array<std::byte, 16> Counting(unsigned first) {
  std::array<std::byte, 16> id{};
  for (unsigned i = 0; i < id.size(); ++i) id[i] = static_cast<std::byte>(first + i);
  return id;
}

PartManifest Part() {
  PartManifest part;
  part.step = 1200;
  part.attempt = Counting(0x10);
  part.rank = 3;
  part.segments = {{Counting(0x20), 8192, Counting(0x30)}};
  part.boxes = {{"b", "int64", {}, {}, {}, 0, 4096, 8},
                {"w", "float32", {4, 3}, {2, 0}, {2, 3}, 0, 0, 24},
                {"z", "bfloat16", {0, 5}, {0, 0}, {0, 5}, 0, 0, 0}};
  return part;
}

RootManifest Root() {
  RootManifest root;
  root.step = 1200;
  root.attempt = Counting(0x10);
  root.parts = {{100, Counting(0x40), 32}, {200, Counting(0x50), 0}};
  root.tree = {std::byte{0x07}, std::byte{1}, std::byte{0},
               std::byte{0},    std::byte{0}, std::byte{0x02}};
  return root;
}

// Puts a changed body under a header and a checksum that are right.
std::vector<std::byte> Reframed(std::vector<std::byte> manifest) {
  const auto digest = Xxh3Digest(std::span(manifest).first(manifest.size() - 16));
  std::copy(digest.begin(), digest.end(), manifest.end() - 16);
  return manifest;
}

TEST(CheckpointManifestTest, GoldenPart) {
  EXPECT_EQ(Hex(EncodePartManifest(Part())),
            "894646434b0d0a1a0100000002000000f700000000000000b0040000000000001011121314151617"
            "18191a1b1c1d1e1f0300000001000000202122232425262728292a2b2c2d2e2f0020000000000000"
            "303132333435363738393a3b3c3d3e3f030000000100620900000000000010000000000000080000"
            "00000000000100770c02040000000000000003000000000000000200000000000000000000000000"
            "00000200000000000000030000000000000000000000000000000000000018000000000000000100"
            "7a0b0200000000000000000500000000000000000000000000000000000000000000000000000000"
            "000000050000000000000000000000000000000000000000000000000000008163cf2650fefb2f66"
            "472a7eb936fa2b");
}

TEST(CheckpointManifestTest, GoldenRoot) {
  EXPECT_EQ(Hex(EncodeRootManifest(Root())),
            "894646434b0d0a1a01000000010000006600000000000000b0040000000000001011121314151617"
            "18191a1b1c1d1e1f020000006400000000000000404142434445464748494a4b4c4d4e4f20000000"
            "00000000c800000000000000505152535455565758595a5b5c5d5e5f000000000000000006000000"
            "0701000000020f7f76398df6d205244027bf2bde4b4b");
}

TEST(CheckpointManifestTest, WhatIsWrittenIsReadBack) {
  EXPECT_EQ(DecodePartManifest(EncodePartManifest(Part())).value(), Part());
  EXPECT_EQ(DecodeRootManifest(EncodeRootManifest(Root())).value(), Root());
}

TEST(CheckpointManifestTest, EveryTruncationAndEveryTrailingByteIsRefused) {
  for (const auto& whole : {EncodePartManifest(Part()), EncodeRootManifest(Root())}) {
    for (std::size_t size = 0; size < whole.size(); ++size) {
      EXPECT_FALSE(DecodePartManifest(std::span(whole).first(size))) << size;
      EXPECT_FALSE(DecodeRootManifest(std::span(whole).first(size))) << size;
    }
    auto longer = whole;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(DecodePartManifest(longer));
    EXPECT_FALSE(DecodeRootManifest(longer));
  }
}

TEST(CheckpointManifestTest, EveryFlippedBitIsRefusedAsCorruption) {
  auto part = EncodePartManifest(Part());
  for (std::size_t bit = 0; bit < part.size() * 8; ++bit) {
    part[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    const auto decoded = DecodePartManifest(part);
    ASSERT_FALSE(decoded) << bit;
    EXPECT_EQ(decoded.error().code, ErrorCode::kCorruption) << bit;
    part[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
  }
}

TEST(CheckpointManifestTest, OneKindIsNotTakenForTheOther) {
  EXPECT_FALSE(DecodeRootManifest(EncodePartManifest(Part())));
  EXPECT_FALSE(DecodePartManifest(EncodeRootManifest(Root())));
}

TEST(CheckpointManifestTest, ANewerMajorVersionIsRefusedWithTheRemedy) {
  auto bytes = EncodeRootManifest(Root());
  bytes[8] = std::byte{2};
  const auto decoded = DecodeRootManifest(Reframed(bytes));
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(decoded.error().message.find("update"), std::string::npos);
}

TEST(CheckpointManifestTest, ANewerMinorVersionMayHaveMoreFields) {
  RootManifest root = Root();
  root.generation = 7;
  auto bytes = EncodeRootManifest(root);
  bytes[10] = std::byte{2};
  bytes.insert(bytes.end() - 16, 5, std::byte{0xAB});
  bytes[16] = static_cast<std::byte>(std::to_integer<unsigned>(bytes[16]) + 5);
  EXPECT_EQ(DecodeRootManifest(Reframed(bytes)).value(), root);
}

TEST(CheckpointManifestTest, ARootMayHaveAGeneration) {
  RootManifest root = Root();
  root.generation = 0x0123456789ABCDEF;
  const auto bytes = EncodeRootManifest(root);
  EXPECT_EQ(bytes[10], std::byte{1});  // The minor version.
  EXPECT_EQ(bytes.size(), EncodeRootManifest(Root()).size() + 8);
  EXPECT_EQ(DecodeRootManifest(bytes).value(), root);

  std::vector<std::byte> without(bytes.begin(), bytes.end() - 24);
  without[16] = static_cast<std::byte>(std::to_integer<unsigned>(bytes[16]) - 8);
  without.insert(without.end(), 16, std::byte{0});
  const auto decoded = DecodeRootManifest(Reframed(without));
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().code, ErrorCode::kCorruption);
}

TEST(CheckpointManifestTest, APartMayKnowItsContents) {
  PartManifest part = Part();
  part.has_contents = true;
  for (auto& box : part.boxes)
    box.content = Counting(0x60 + 3 * static_cast<unsigned>(&box - part.boxes.data()));
  const auto bytes = EncodePartManifest(part);

  EXPECT_EQ(bytes[10], std::byte{1});  // The minor version.
  EXPECT_EQ(bytes.size(), EncodePartManifest(Part()).size() + 3 * 16);
  EXPECT_EQ(DecodePartManifest(bytes).value(), part);

  std::vector<std::byte> short_of_one(bytes.begin(), bytes.end() - 16);
  short_of_one[16] = static_cast<std::byte>(std::to_integer<unsigned>(bytes[16]) - 16);
  EXPECT_FALSE(DecodePartManifest(Reframed(short_of_one)));
}

TEST(CheckpointManifestTest, APartMayHaveDigestsWithOrWithoutContents) {
  for (const bool has_contents : {false, true}) {
    PartManifest part = Part();
    part.has_digests = true;
    part.has_contents = has_contents;
    for (std::size_t i = 0; i < part.boxes.size(); ++i) {
      part.boxes[i].digest = 7 * i + 1;
      if (has_contents) part.boxes[i].content = Counting(0x60 + 3 * static_cast<unsigned>(i));
    }
    const auto bytes = EncodePartManifest(part);

    EXPECT_EQ(bytes[10], std::byte{2});  // The minor version.
    EXPECT_EQ(bytes.size(), EncodePartManifest(Part()).size() + 3 * (16 + 8));
    EXPECT_EQ(DecodePartManifest(bytes).value(), part);
  }
}

TEST(CheckpointManifestTest, BrokenFieldsUnderAValidChecksumAreRefused) {
  const auto refused = [](auto change, std::string_view expected) {
    PartManifest part = Part();
    change(part);
    const auto decoded = DecodePartManifest(EncodePartManifest(part));
    ASSERT_FALSE(decoded) << expected;
    EXPECT_EQ(decoded.error().code, ErrorCode::kCorruption);
    EXPECT_NE(decoded.error().message.find(expected), std::string::npos) << decoded.error().message;
  };
  const std::uint64_t huge = ~std::uint64_t{0};
  refused([](auto& p) { p.boxes[1].segment = 1; }, "no such segment");
  refused([](auto& p) { p.boxes[1].offset_bytes = 8192 - 23; }, "outside its segment");
  refused([&](auto& p) { p.boxes[1].offset_bytes = huge; }, "outside its segment");
  refused([](auto& p) { p.boxes[1].size_bytes = 28; }, "size is wrong");
  refused([](auto& p) { p.boxes[1].offset = {3, 0}; }, "exceeds the tensor");
  refused([&](auto& p) { p.boxes[1].offset = {huge, 0}; }, "exceeds the tensor");
  refused([&](auto& p) { p.boxes[1].shape = {huge, huge}; }, "2^48");
  refused([](auto& p) { std::swap(p.boxes[0], p.boxes[1]); }, "out of order");
  refused([](auto& p) { p.boxes[1] = p.boxes[0]; }, "out of order");
  refused([](auto& p) { p.boxes[0].key = "\xff"; }, "not UTF-8");
  refused([](auto& p) { p.boxes[0].key = ""; }, "empty");
  refused([](auto& p) { p.segments[0].payload_size_bytes = 8191; }, "segment's size");
  refused([&](auto& p) { p.segments[0].payload_size_bytes = huge - 4095; }, "segment's size");
  refused([&](auto& p) { p.rank = kCheckpointRanksMax; }, "rank");
}

TEST(CheckpointManifestTest, MutatedBodiesUnderAValidChecksumNeverCrash) {
  std::mt19937 random(test::Seed());
  const auto part = EncodePartManifest(Part());
  const auto root = EncodeRootManifest(Root());
  for (int round = 0; round < 100'000; ++round) {
    for (const auto& whole : {part, root}) {
      auto bytes = whole;
      for (unsigned change = 0; change <= random() % 3; ++change)
        bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      bytes = Reframed(bytes);
      const auto as_part = DecodePartManifest(bytes);
      EXPECT_TRUE(!as_part || EncodePartManifest(as_part.value()).size() <= bytes.size());
      const auto as_root = DecodeRootManifest(bytes);
      EXPECT_TRUE(!as_root || EncodeRootManifest(as_root.value()).size() <= bytes.size());
    }
  }
}

TEST(CheckpointManifestTest, ElementTypesAreKnownByNameAndByCode) {
  EXPECT_EQ(CheckpointDtypeOf("bfloat16")->code, 11);
  EXPECT_EQ(CheckpointDtypeOf(std::uint8_t{17})->name, "float8_e4m3fn");
  EXPECT_EQ(CheckpointDtypeOf("int7")->code, 36);
  EXPECT_EQ(CheckpointDtypeOf(std::uint8_t{38})->size_bytes, 2);  // bits16
  EXPECT_EQ(CheckpointDtypeOf(std::uint8_t{41})->name, "bits4x2");
  EXPECT_FALSE(CheckpointDtypeOf(std::uint8_t{42}));
  EXPECT_FALSE(CheckpointDtypeOf("object"));
  EXPECT_FALSE(CheckpointDtypeOf(std::uint8_t{0}));
}

TEST(CheckpointSegmentTest, LayoutIsThatOfTheFormatPage) {
  const SegmentLayout one = LayoutOfSegment(4096);
  EXPECT_EQ(one.block_count, 1U);
  EXPECT_EQ(one.table_offset_bytes, 4096U);
  EXPECT_EQ(one.file_size_bytes, 8192U);
  // 505 checks and the trailer would need 4,104 bytes: a second page.
  EXPECT_EQ(LayoutOfSegment(504 * 65536).file_size_bytes, 504 * 65536 + 4096U);
  EXPECT_EQ(LayoutOfSegment(505 * 65536).file_size_bytes, 505 * 65536 + 8192U);
}

TEST(CheckpointSegmentTest, GoldenEnd) {
  std::vector<std::byte> payload(4096);
  for (std::size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 7);
  const std::uint64_t check = SegmentBlockCheck(Counting(0x20), 0, payload);
  const auto end = EncodeSegmentEnd(Counting(0x20), LayoutOfSegment(4096), std::span(&check, 1));

  ASSERT_EQ(end.size(), 4096U);
  EXPECT_EQ(Hex(std::span(end).first(8)), "6ce67e10b86c289d");
  EXPECT_EQ(Hex(std::span(end).last(64)),
            "e546465345474d54202122232425262728292a2b2c2d2e2f0010000000000000e9bd65a88b44ec1e"
            "ec24984abbcd1ae30020000000000000f02d70e06e25366d");
  EXPECT_TRUE(std::all_of(end.begin() + 8, end.end() - 64,
                          [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_EQ(Hex(std::span(end).last(32).first(16)),
            Hex(SegmentTableDigest(std::span(end).first(8))));
}

TEST(CheckpointSegmentTest, ABlockElsewhereOrOfAnotherSegmentFails) {
  const std::vector<std::byte> block(65536, std::byte{1});
  const std::uint64_t check = SegmentBlockCheck(Counting(0), 0, block);
  EXPECT_NE(check, SegmentBlockCheck(Counting(0), 65536, block));
  EXPECT_NE(check, SegmentBlockCheck(Counting(1), 0, block));
}

}  // namespace
}  // namespace ffrecord
