// Goal: boxes, weights, turns and halves are what their definitions say.
// Method: small cases by hand; many random boxes for what must always hold. Pictures as a whole are
// compared with Pillow by tests/python/test_decode_images.py.

#include <ffrecord/images.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "libffrecord/decode/crop.h"
#include "libffrecord/decode/jpeg.h"
#include "libffrecord/decode/pixels.h"
#include "libffrecord/decode/resize.h"
#include "seed.h"

namespace ffrecord {
namespace {

TEST(CropTest, RandomBoxesLieInThePictureWhateverItsShape) {
  ImageOptions options{.height = 8, .width = 8, .crop = CropKind::kRandom};
  for (const auto& [width, height] : {std::pair{1U, 1U}, {1U, 5000U}, {5000U, 1U}, {640U, 480U}}) {
    for (std::uint64_t position = 0; position < 2000; ++position) {
      Draws draws(1, 2, position);
      const Box box = ChooseBox(options, width, height, draws);
      ASSERT_GT(box.width, 0U);
      ASSERT_GT(box.height, 0U);
      ASSERT_LE(box.x + box.width, width);
      ASSERT_LE(box.y + box.height, height);
    }
  }
}

TEST(CropTest, DrawsNeverChange) {
  // A draw is part of what a resumed run relies on: these numbers are for ever.
  Draws draws(0, 0, 0);
  const double first = draws.Share();
  Draws again(0, 0, 0), other(0, 0, 1);
  EXPECT_EQ(again.Share(), first);
  EXPECT_NE(other.Share(), first);
  const std::uint64_t key =
      Mix64(Mix64(Mix64(kGoldenGamma) ^ kGoldenGamma) ^ kGoldenGamma) + kGoldenGamma;
  EXPECT_EQ(first, std::ldexp(static_cast<double>(Mix64(key) >> 11), -53));
}

TEST(ResizeTest, WeightsOfAPixelSumToOne) {
  constexpr int kOne = 1 << ResizeAxis::kWeightBits;
  for (const std::uint32_t in : {1U, 2U, 7U, 100U, 60'000U})
    for (const std::uint32_t out : {1U, 3U, 64U}) {
      ResizeAxis axis;
      axis.Plan(0, in, in, out);
      for (std::uint32_t i = 0; i < out; ++i) {
        ASSERT_LE(axis.first[i] + axis.count[i], in);
        const auto* weights = axis.weights.data() + i * axis.taps;
        EXPECT_EQ(std::accumulate(weights, weights + axis.count[i], 0), kOne);
        EXPECT_TRUE(std::all_of(weights, weights + axis.taps, [](int w) { return w >= 0; }));
      }
    }
}

TEST(ResizeTest, HalvingTakesMeansUnderATriangle) {
  // 8 pixels to 4: a triangle four pixels wide gives 1/8, 3/8, 3/8, 1/8 in the middle.
  const std::array<std::uint8_t, 8> in{0, 0, 0, 80, 0, 0, 0, 0};
  ResizeAxis across, down;
  across.Plan(0, 8, 8, 4);
  down.Plan(0, 1, 1, 1);
  std::array<std::int16_t, ResizeRowSize({nullptr, 8, 1, 1})> row{};
  std::array<std::uint8_t, 4> out{};
  Resize({in.data(), 8, 1, 1}, across, down, row.data(), out.data());
  EXPECT_EQ(out, (std::array<std::uint8_t, 4>{0, 30, 10, 0}));
}

TEST(ResizeTest, EveryPathMakesTheSameBitsAndFlatStaysFlat) {
  std::mt19937_64 random(test::Seed());
  for (int round = 0; round < 300; ++round) {
    const auto below = [&](std::uint32_t limit) {
      return 1 + static_cast<std::uint32_t>(random() % limit);
    };
    const std::uint32_t width = below(90), height = below(60), channels = random() % 2 ? 3 : 1;
    const std::uint32_t out_width = below(70), out_height = below(70);
    const bool flat = round % 5 == 0;
    // Not a byte more than the pixels: a sanitizer sees who reads beyond.
    std::vector<std::uint8_t> in(std::size_t{width} * height * channels);
    for (std::uint8_t& value : in) value = static_cast<std::uint8_t>(flat ? 255 : random());
    const PixelBlock block{in.data(), width, height, channels};
    ResizeAxis across, down;
    across.Plan(0.3 * (width - 1), width, width, out_width);
    down.Plan(0, height - 0.4, height, out_height);
    std::vector<std::int16_t> row(ResizeRowSize(block), -1);
    std::vector<std::uint8_t> best(std::size_t{out_width} * out_height * channels), plain = best;

    Resize(block, across, down, row.data(), best.data());
    Resize(block, across, down, row.data(), plain.data(), ResizePath::kPlain);

    ASSERT_EQ(best, plain) << width << " x " << height << " to " << out_width << " x " << out_height
                           << ", " << channels;
    if (flat) {
      ASSERT_EQ(best, std::vector<std::uint8_t>(best.size(), 255));
    }
  }
}

TEST(TurnTest, EveryOrientationVisitsEachPixelOnce) {
  // What is stored: 0 1 2 / 3 4 5.
  const std::array<std::array<int, 6>, 8> seen{{{0, 1, 2, 3, 4, 5},
                                                {2, 1, 0, 5, 4, 3},
                                                {5, 4, 3, 2, 1, 0},
                                                {3, 4, 5, 0, 1, 2},
                                                {0, 3, 1, 4, 2, 5},
                                                {3, 0, 4, 1, 5, 2},
                                                {5, 2, 4, 1, 3, 0},
                                                {2, 5, 1, 4, 0, 3}}};
  for (std::uint32_t orientation = 1; orientation <= 8; ++orientation) {
    const Turn turn(orientation, false);
    const Turn::Walk walk = turn.In(3, 2);
    const int width = turn.transposed() ? 2 : 3;
    for (int i = 0; i < 6; ++i)
      EXPECT_EQ(walk.origin + walk.down * (i / width) + walk.right * (i % width),
                seen[orientation - 1][static_cast<std::size_t>(i)])
          << orientation;
  }
}

TEST(PixelsTest, HalvesAreTheNearest) {
  EXPECT_EQ(ToHalf(0), 0);
  EXPECT_EQ(ToHalf(-0.0F), 0x8000);
  EXPECT_EQ(ToHalf(1), 0x3C00);
  EXPECT_EQ(ToHalf(-2.5F), 0xC100);
  EXPECT_EQ(ToHalf(65504), 0x7BFF);
  EXPECT_EQ(ToHalf(65520), 0x7C00);             // Halfway to what does not exist.
  EXPECT_EQ(ToHalf(std::ldexp(1.0F, -24)), 1);  // The smallest.
  EXPECT_EQ(ToHalf(std::ldexp(1.0F, -25)), 0);  // Halfway: to even.
  EXPECT_EQ(ToHalf(std::ldexp(3.0F, -25)), 2);  // Halfway: to even.
  EXPECT_EQ(ToHalf(1.0F + std::ldexp(1.0F, -11)), 0x3C00);
  EXPECT_EQ(ToHalf(1.0F + std::ldexp(3.0F, -11)), 0x3C02);
}

TEST(ExifTest, DamagedSegmentsTellNoOrientation) {
  const unsigned char good[] = {'E', 'x', 'i', 'f',  0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8,
                                0,   1,   1,   0x12, 0, 3, 0,   0,   0, 1,  0, 6, 0, 0};
  const auto segment = std::as_bytes(std::span(good));
  EXPECT_EQ(ExifOrientation(segment), 6U);
  for (std::size_t size = 0; size < segment.size(); ++size)
    EXPECT_EQ(ExifOrientation(segment.first(size)), 1U);
}

TEST(ImagesTest, AJpegWithoutADecoderOrWithoutSenseIsAnErrorOfItsOwn) {
  const std::array<std::byte, 4> bytes{std::byte{0xFF}, std::byte{0xD8}, std::byte{0xFF}};
  const auto decoder = ImageDecoder::Make({.height = 4, .width = 4}).value();
  std::array<std::byte, 48> out{};
  std::vector<Picture> pictures(3);
  const std::array<std::byte, 12> grey{};
  for (Picture& picture : pictures) picture.out = out.data();
  pictures[0].jpeg = bytes;
  pictures[1].pixels = grey.data();
  pictures[1].height = pictures[1].width = 2;

  decoder.Decode(pictures, 0, 0, 2);

  ASSERT_TRUE(pictures[0].error);
  EXPECT_EQ(pictures[0].error->code,
            ImageDecoder::HasJpeg() ? ErrorCode::kCorruption : ErrorCode::kInvalidArgument);
  EXPECT_FALSE(pictures[1].error);
  ASSERT_TRUE(pictures[2].error);
  EXPECT_EQ(pictures[2].error->code, ErrorCode::kCorruption);
}

}  // namespace
}  // namespace ffrecord
