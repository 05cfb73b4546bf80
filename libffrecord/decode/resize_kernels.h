#pragma once

#include <cstddef>
#include <cstdint>

#include "libffrecord/decode/resize.h"

namespace ffrecord {

// The two sums that resizing is made of, for each kind of processor that is worth it: the bits are
// the same, for the sums are of integers. Requires the room behind rows that Resize asks for.
struct ResizeKernels {
  // One row of `size` values out of `count` rows that lie `stride` bytes apart. There are weights
  // for an even number of rows, the last perhaps 0.
  void (*down)(const std::uint8_t* in, std::size_t stride, std::size_t size,
               const std::int16_t* weights, std::uint32_t count, std::int16_t* row);
  // One row of pixels of 3 channels.
  void (*across_three)(const std::int16_t* row, const ResizeAxis& axis, std::uint8_t* out);
};

// The bits that a row between the two passes has beyond the 8 of a pixel, and what they leave.
inline constexpr int kRowBits = 7;
inline constexpr int kDownShift = ResizeAxis::kWeightBits - kRowBits;
inline constexpr int kAcrossShift = ResizeAxis::kWeightBits + kRowBits;
inline constexpr std::int32_t kDownHalf = std::int32_t{1} << (kDownShift - 1);
inline constexpr std::int32_t kAcrossHalf = std::int32_t{1} << (kAcrossShift - 1);

extern const ResizeKernels kResizePlain;
// The best kernels for this processor.
const ResizeKernels& BestResizeKernels() noexcept;

}  // namespace ffrecord
