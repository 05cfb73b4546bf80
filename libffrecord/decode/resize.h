#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ffrecord {

// How one axis is resampled: each pixel that comes out is a weighted sum of `taps` that go in.
//
// The filter is a triangle, as wide as two pixels of the coarser side: bilinear when it enlarges,
// an area-weighted mean when it shrinks. Weights are fixed-point and sum to 1 but for rounding, so
// the result is the same on every machine. What lies outside of [begin, end) is not looked at.
struct ResizeAxis {
  static constexpr int kWeightBits = 22;

  // `begin` and `end` are the box, in pixels of what goes in, which has `in_size`; requires
  // 0 <= begin < end <= in_size, out_size > 0.
  void Plan(double begin, double end, std::uint32_t in_size, std::uint32_t out_size);

  std::uint32_t out_size = 0;
  std::uint32_t taps = 0;             // Weights of each pixel that comes out, the last perhaps 0.
  std::vector<std::uint32_t> first;   // The first pixel that goes into each.
  std::vector<std::uint32_t> count;   // How many do, at most `taps`.
  std::vector<std::int32_t> weights;  // taps * out_size.
};

// Pixels of 8 bits, channels interleaved, rows back to back.
struct PixelBlock {
  const std::uint8_t* pixels;
  std::uint32_t width;
  std::uint32_t height;
  std::uint32_t channels;  // 1 or 3.
};

// Resamples columns, then rows; rounds to 8 bits after each. `between` has room for
// across.out_size * in.height pixels, `out` for across.out_size * down.out_size.
void Resize(const PixelBlock& in, const ResizeAxis& across, const ResizeAxis& down,
            std::uint8_t* between, std::uint8_t* out);

}  // namespace ffrecord
