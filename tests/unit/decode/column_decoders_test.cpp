// Goal: a column becomes one block of values, or an error that tells why; memory that was used
// before does not show. Method: .npy files back to back, one of them wrong; pixels and bytes that
// are no picture. Pictures as a whole are compared with Pillow by
// tests/python/test_loader_native.py.

#include <ffrecord/array_headers.h>
#include <ffrecord/images.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace ffrecord {
namespace {

std::string NpyFile(float value, const std::string& shape = "(2, 3)", const char* order = "False") {
  const std::string header =
      std::string("{'descr': '<f4', 'fortran_order': ") + order + ", 'shape': " + shape + ", }\n";
  std::string file = "\x93NUMPY";
  file += std::string("\1\0", 2) + static_cast<char>(header.size()) + '\0' + header;
  for (int i = 0; i < 6; ++i) file.append(reinterpret_cast<const char*>(&value), sizeof value);
  return file;
}

// Values in one block, as a batch has them.
struct Column {
  explicit Column(const std::vector<std::string>& values) {
    for (const std::string& value : values) {
      starts.push_back(static_cast<std::int64_t>(block.size()));
      sizes.push_back(static_cast<std::int64_t>(value.size()));
      block += value;
    }
  }
  ColumnDecoder::Input input() const { return {std::as_bytes(std::span(block)), starts, sizes}; }

  std::string block;
  std::vector<std::int64_t> starts, sizes;
};

const auto kArrays = NpyColumnDecoder("<f4", {2, 3}, 24);

TEST(NpyColumnTest, ArraysLieBackToBack) {
  const Column column({NpyFile(1), NpyFile(2), NpyFile(3)});
  const auto values = kArrays->Decode(column.input(), {}).value();
  ASSERT_EQ(values.data.size(), 3 * 24u);
  EXPECT_TRUE(values.places.empty());
  for (std::size_t i = 0; i < 18; ++i) {
    float value = 0;
    std::memcpy(&value, values.data.data() + i * sizeof value, sizeof value);
    EXPECT_EQ(value, static_cast<float>(1 + i / 6));
  }
}

std::string OfType(const std::string& dtype) {
  std::string file = NpyFile(2);
  return file.replace(file.find("<f4"), 3, dtype);
}

TEST(NpyColumnTest, AnArrayThatDiffersIsRefusedWithTheReason) {
  for (const auto& [file, words] :
       {std::pair(NpyFile(2, "(3, 2)"), "(3,2,), wanted is <f4 of shape (2,3,)"),
        {NpyFile(2, "(2, 3)", "True"), "in Fortran's order"},
        {OfType("<i4"), "an array <i4 of shape (2,3,), wanted is <f4"},  // As large.
        {OfType(">f4"), "an array >f4 of shape"},
        {NpyFile(2).substr(0, 40), "not a .npy file"},
        {std::string(), "not a .npy file"}}) {
    const auto values = kArrays->Decode(Column({NpyFile(1), file}).input(), {});
    ASSERT_FALSE(values);
    EXPECT_EQ(values.error().code, ErrorCode::kCorruption);
    EXPECT_NE(values.error().message.find(words), std::string::npos) << values.error().message;
  }
}

TEST(NpyColumnTest, ACallerMayGiveUp) {
  const auto values = kArrays->Decode(Column({NpyFile(1)}).input(), [] { return true; });
  ASSERT_FALSE(values);
  EXPECT_EQ(values.error().code, ErrorCode::kDeadlineExceeded);
}

TEST(ImageColumnTest, WhatIsNoJpegIsLeftToOthers) {
  const auto decoder = ImageDecoder::Make({.height = 8, .width = 8}).value().ForColumn(1);
  for (const std::string& value :
       {std::string(), std::string("\x89PNG"), std::string("\xFF\xD8")}) {
    const auto values = decoder->Decode(Column({value}).input(), {});
    ASSERT_FALSE(values);
    EXPECT_EQ(values.error().code, ErrorCode::kInvalidArgument);
  }
  const auto damaged = decoder->Decode(Column({std::string("\xFF\xD8\xFF...")}).input(), {});
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code,
            ImageDecoder::HasJpeg() ? ErrorCode::kCorruption : ErrorCode::kInvalidArgument);
}

// Three pictures of pixels, whose values are all 7; the second has an error.
std::vector<Picture> Pictures(const std::vector<std::byte>& pixels) {
  std::vector<Picture> pictures(3);
  for (Picture& picture : pictures) {
    picture.pixels = pixels.data();
    picture.height = 4;
    picture.width = 5;
  }
  pictures[1].error = Error{ErrorCode::kCorruption, "damaged"};
  return pictures;
}

TEST(DecodeBatchTest, PicturesHavePlacesAndThoseWithAnErrorZeros) {
  const std::vector<std::byte> pixels(4 * 5 * 3, std::byte{7});
  for (const bool fixed : {false, true}) {
    const std::uint32_t side = fixed ? 4 : 0;
    const auto decoder = ImageDecoder::Make({.height = side, .width = side}).value();
    auto pictures = Pictures(pixels);
    const std::size_t size = fixed ? 4 * 4 * 3 : 4 * 5 * 3;
    {  // What the block may hold from before.
      const auto used = ImageDecoder::Memory(3 * size).value();
      std::ranges::fill(*used, std::byte{0xEE});
    }
    const auto output = decoder.DecodeBatch(pictures, 0, 0, 1).value();
    const auto step = static_cast<std::int64_t>(size);
    const std::vector<std::int64_t> places =
        fixed ? std::vector<std::int64_t>{0, 4, 4, step, 4, 4, 2 * step, 4, 4}
              : std::vector<std::int64_t>{0, 4, 5, step, 0, 0, step, 4, 5};
    EXPECT_EQ(output.places, places);
    ASSERT_EQ(output.memory->size(), (fixed ? 3 : 2) * size);
    for (std::size_t i = 0; i < output.memory->size(); ++i)
      EXPECT_EQ((*output.memory)[i], std::byte(fixed && i / size == 1 ? 0 : 7));
  }
}

TEST(DecodeBatchTest, ACallerMayGiveUp) {
  const std::vector<std::byte> pixels(4 * 5 * 3);
  std::vector<Picture> pictures(400'000, Pictures(pixels)[0]);  // Longer than the first question.
  const auto decoder = ImageDecoder::Make({.height = 16, .width = 16}).value();
  const auto output = decoder.DecodeBatch(pictures, 0, 0, 1, [] { return true; });
  ASSERT_FALSE(output);
  EXPECT_EQ(output.error().code, ErrorCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace ffrecord
