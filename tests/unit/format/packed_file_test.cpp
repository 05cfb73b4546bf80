// Goal: a packed file gives back every byte, whatever the bytes are, and one that is damaged or
// hostile is refused.
// Method: round trips of bytes that compress by each width, at the edges of sizes; golden bytes;
// every bit of table and footer flipped; mutations.

#include "libffrecord/format/packed_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "libffrecord/base/hex.h"
#include "seed.h"

namespace ffrecord {
namespace {

using Bytes = std::vector<std::byte>;
constexpr std::string_view kExample =
    "61626303000000000000004646525041434b31030000000000000001000000000000000300000000000000bb6f4149"
    "b62a32b6e619cdeae4a4a0f4";

struct Packed {
  Bytes file;
  std::vector<PackedFrame> frames;
};

Packed Pack(std::span<const std::byte> raw) {
  Packed packed;
  FramePacker packer;
  for (std::size_t at = 0; at < raw.size(); at += kPackedFrameSize) {
    const auto [frame, stored] =
        packer.Pack(raw.subspan(at, std::min<std::size_t>(kPackedFrameSize, raw.size() - at)));
    packed.file.insert(packed.file.end(), stored.begin(), stored.end());
    packed.frames.push_back(frame);
  }
  const Bytes end = EncodePackedEnd(raw.size(), packed.frames);
  packed.file.insert(packed.file.end(), end.begin(), end.end());
  return packed;
}

Result<Bytes> Unpack(std::span<const std::byte> file) {
  if (file.size() < kPackedFooterSize) return Error{ErrorCode::kCorruption, "too short"};
  const PackedFooter footer =
      FFR_TRY(DecodePackedFooter(file.last(kPackedFooterSize), file.size()));
  const PackedTable table = FFR_TRY(DecodePackedTable(
      footer, file.subspan(footer.table_offset_bytes, footer.table_size_bytes())));
  Bytes raw(table.raw_size_bytes);
  Bytes planes;
  for (std::size_t i = 0; i < table.frames.size(); ++i) {
    const std::size_t begin = i * kPackedFrameSize;
    const std::size_t size = std::min<std::size_t>(kPackedFrameSize, raw.size() - begin);
    FFR_TRY(UnpackFrame(table.frames[i],
                        file.subspan(table.offsets[i], table.offsets[i + 1] - table.offsets[i]),
                        std::span(raw).subspan(begin, size), planes));
  }
  return raw;
}

// Elements of `width` bytes whose last byte varies little and whose first is noise.
Bytes Elements(std::size_t width, std::size_t size, std::mt19937& random) {
  Bytes raw(size);
  for (std::size_t i = 0; i < size; ++i)
    raw[i] = static_cast<std::byte>(i % width + 1 == width ? 60 + random() % 3 : random());
  return raw;
}

TEST(PackedFileTest, GivesBackEveryByte) {
  std::mt19937 random(test::Seed());
  for (const std::size_t width : {1U, 2U, 4U, 8U})
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{4096},
          std::size_t{kPackedFrameSize} - 1, std::size_t{kPackedFrameSize},
          2 * std::size_t{kPackedFrameSize} + 4099}) {
      SCOPED_TRACE(std::to_string(width) + " " + std::to_string(size));
      const Bytes raw = Elements(width, size, random);
      const auto unpacked = Unpack(Pack(raw).file);
      ASSERT_TRUE(unpacked) << unpacked.error().message;
      EXPECT_EQ(unpacked.value(), raw);
    }
}

TEST(PackedFileTest, TheWidthOfTheElementsIsFound) {
  std::mt19937 random(test::Seed());
  for (const std::size_t width : {2U, 4U, 8U}) {
    const Packed packed = Pack(Elements(width, kPackedFrameSize, random));
    EXPECT_EQ(packed.frames[0].width, width);
    const double kept = (static_cast<double>(width) - 1) / static_cast<double>(width);
    EXPECT_LT(packed.frames[0].stored_size_bytes,
              (kept + 0.3 / static_cast<double>(width)) * kPackedFrameSize);
  }
}

TEST(PackedFileTest, NoiseIsStoredAsItIs) {
  std::mt19937 random(test::Seed());
  Bytes raw(kPackedFrameSize + 5);
  for (auto& byte : raw) byte = static_cast<std::byte>(random());
  const Packed packed = Pack(raw);
  EXPECT_EQ(packed.frames[0], (PackedFrame{kPackedFrameSize, 0}));
  EXPECT_EQ(packed.frames[1], (PackedFrame{5, 0}));
  EXPECT_EQ(std::memcmp(packed.file.data(), raw.data(), raw.size()), 0);
}

// The example of format.md, "Packed file".
TEST(PackedFileTest, IsWrittenAsThePageSays) {
  const Bytes raw{std::byte{'a'}, std::byte{'b'}, std::byte{'c'}};
  EXPECT_EQ(Hex(Pack(raw).file), kExample);
}

TEST(PackedFileTest, EveryFlippedBitOfTableAndFooterIsRefused) {
  std::mt19937 random(test::Seed());
  const Packed packed = Pack(Elements(4, 2 * kPackedFrameSize + 100, random));
  const std::size_t end = EncodePackedEnd(2 * kPackedFrameSize + 100, packed.frames).size();
  for (std::size_t bit = 8 * (packed.file.size() - end); bit < 8 * packed.file.size(); ++bit) {
    Bytes damaged = packed.file;
    damaged[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(Unpack(damaged)) << bit;
  }
}

TEST(PackedFileTest, MutatedFilesNeverCrash) {
  std::mt19937 random(test::Seed());
  const Bytes whole = Pack(Elements(2, 9000, random)).file;
  for (int round = 0; round < 5000; ++round) {
    Bytes bytes = whole;
    for (unsigned change = 0; change <= random() % 4; ++change)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    if (random() % 4 == 0) bytes.resize(random() % bytes.size());
    std::ignore = Unpack(bytes);
  }
}

TEST(PackedFileTest, SizesThatCannotBeAreRefusedBeforeAnythingIsAllocated) {
  Bytes end = EncodePackedEnd(0, {});
  const auto with = [&](std::size_t at, std::uint64_t value) {
    Bytes changed = end;
    std::memcpy(changed.data() + at, &value, sizeof(value));
    return DecodePackedFooter(changed, changed.size());
  };
  EXPECT_TRUE(DecodePackedFooter(end, end.size()));
  for (const std::size_t at : {8U, 16U, 24U})
    for (const std::uint64_t value : {std::uint64_t{1}, std::uint64_t{1} << 40, ~std::uint64_t{0}})
      EXPECT_FALSE(with(at, value)) << at << " " << value;
}

}  // namespace
}  // namespace ffrecord
