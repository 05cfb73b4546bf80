#include "libffrecord/decode/resize.h"

#include <algorithm>
#include <cmath>

namespace ffrecord {
namespace {

constexpr std::int32_t kHalf = std::int32_t{1} << (ResizeAxis::kWeightBits - 1);

std::uint8_t ToByte(std::int32_t sum) noexcept {
  return static_cast<std::uint8_t>(std::clamp(sum >> ResizeAxis::kWeightBits, 0, 255));
}

template <std::uint32_t kChannels>
void AcrossRow(const std::uint8_t* in, const ResizeAxis& axis, std::uint8_t* out) noexcept {
  for (std::uint32_t x = 0; x < axis.out_size; ++x) {
    const std::uint8_t* pixel = in + std::size_t{axis.first[x]} * kChannels;
    const std::int32_t* weight = axis.weights.data() + std::size_t{x} * axis.taps;
    std::int32_t sums[kChannels];
    for (std::int32_t& sum : sums) sum = kHalf;
    for (std::uint32_t k = 0; k < axis.count[x]; ++k, pixel += kChannels)
      for (std::uint32_t c = 0; c < kChannels; ++c) sums[c] += pixel[c] * weight[k];
    for (const std::int32_t sum : sums) *out++ = ToByte(sum);
  }
}

// In strips, whose sums stay in registers or in the nearest cache.
void DownRow(const std::uint8_t* in, std::size_t row_size, const std::int32_t* weights,
             std::uint32_t count, std::uint8_t* out) noexcept {
  constexpr std::size_t kStrip = 64;
  for (std::size_t begin = 0; begin < row_size; begin += kStrip) {
    const std::size_t size = std::min(kStrip, row_size - begin);
    std::int32_t sums[kStrip];
    std::fill_n(sums, size, kHalf);
    for (std::uint32_t k = 0; k < count; ++k) {
      const std::uint8_t* row = in + k * row_size + begin;
      for (std::size_t i = 0; i < size; ++i) sums[i] += row[i] * weights[k];
    }
    for (std::size_t i = 0; i < size; ++i) out[begin + i] = ToByte(sums[i]);
  }
}

}  // namespace

void ResizeAxis::Plan(double begin, double end, std::uint32_t in_size, std::uint32_t wanted) {
  out_size = wanted;
  const double scale = (end - begin) / wanted;
  const double support = std::max(scale, 1.0);
  taps = static_cast<std::uint32_t>(std::ceil(support)) * 2 + 1;
  first.resize(wanted);
  count.resize(wanted);
  weights.assign(std::size_t{taps} * wanted, 0);
  std::vector<double> shares(taps);
  for (std::uint32_t i = 0; i < wanted; ++i) {
    const double centre = begin + (i + 0.5) * scale;
    const double low = std::max(std::floor(centre - support + 0.5), std::floor(begin));
    const double high = std::min(std::floor(centre + support + 0.5), std::ceil(end));
    first[i] = static_cast<std::uint32_t>(std::clamp(low, 0.0, static_cast<double>(in_size) - 1));
    const auto last =
        static_cast<std::uint32_t>(std::clamp(high, first[i] + 1.0, static_cast<double>(in_size)));
    count[i] = std::min(last - first[i], taps);
    double total = 0;
    for (std::uint32_t k = 0; k < count[i]; ++k) {
      const double distance = std::abs(first[i] + k + 0.5 - centre) / support;
      shares[k] = std::max(0.0, 1 - distance);
      total += shares[k];
    }
    if (total == 0) shares[0] = total = 1;
    for (std::uint32_t k = 0; k < count[i]; ++k)
      weights[std::size_t{i} * taps + k] = static_cast<std::int32_t>(
          std::floor(shares[k] / total * (std::int32_t{1} << kWeightBits) + 0.5));
  }
}

void Resize(const PixelBlock& in, const ResizeAxis& across, const ResizeAxis& down,
            std::uint8_t* between, std::uint8_t* out) {
  const std::size_t in_row = std::size_t{in.width} * in.channels;
  const std::size_t out_row = std::size_t{across.out_size} * in.channels;
  for (std::uint32_t y = 0; y < in.height; ++y) {
    const std::uint8_t* from = in.pixels + y * in_row;
    if (in.channels == 1)
      AcrossRow<1>(from, across, between + y * out_row);
    else
      AcrossRow<3>(from, across, between + y * out_row);
  }
  for (std::uint32_t y = 0; y < down.out_size; ++y)
    DownRow(between + down.first[y] * out_row, out_row,
            down.weights.data() + std::size_t{y} * down.taps, down.count[y], out + y * out_row);
}

}  // namespace ffrecord
