#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ffrecord {

// How one axis is resampled: each pixel that comes out is a weighted sum of some that go in.
//
// The filter is a triangle, as wide as two pixels of the coarser side: bilinear when it enlarges,
// an area-weighted mean when it shrinks. Weights are integers whose sum is 2^kWeightBits for each
// pixel, so that flat stays flat, and the result is the same on every machine. Pixels outside of
// [begin, end) are not looked at.
struct ResizeAxis {
  static constexpr int kWeightBits = 14;

  // `begin` and `end` are the box, in pixels of what goes in, which has `in_size`; requires 0 <=
  // begin < end <= in_size, out_size > 0.
  void Plan(double begin, double end, std::uint32_t in_size, std::uint32_t out_size);

  std::uint32_t out_size = 0;
  std::uint32_t taps = 0;  // Weights of each pixel that comes out, the last perhaps 0; even.
  std::vector<std::uint32_t> first;   // The first pixel that goes into each.
  std::vector<std::uint32_t> count;   // How many do, at most `taps`.
  std::vector<std::int16_t> weights;  // taps * out_size.

 private:
  void PlanPixel(std::uint32_t i, double centre, double support);
  std::vector<double> shares_;
};

// Pixels of 8 bits, channels interleaved, rows back to back.
struct PixelBlock {
  const std::uint8_t* pixels;
  std::uint32_t width;
  std::uint32_t height;
  std::uint32_t channels;  // 1 or 3.
};

// Values that Resize needs for a row, of which it keeps 7 bits more than come out.
constexpr std::size_t ResizeRowSize(const PixelBlock& in) noexcept {
  constexpr std::size_t kReadBeyond = 16;  // Behind the last pixel, by whole registers.
  return std::size_t{in.width} * in.channels + kReadBeyond;
}

enum class ResizePath : std::uint8_t { kBest, kPlain };

// Resamples rows, then columns; rounds to 8 bits once. `row` has room for ResizeRowSize(in) values,
// `out` for across.out_size * down.out_size pixels. kPlain leaves out instructions that not every
// processor of the kind has; the result is the same to the bit.
void Resize(const PixelBlock& in, const ResizeAxis& across, const ResizeAxis& down,
            std::int16_t* row, std::uint8_t* out, ResizePath path = ResizePath::kBest);

}  // namespace ffrecord
