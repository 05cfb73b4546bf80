#include "libffrecord/decode/resize.h"

#include <algorithm>
#include <cmath>

#include "libffrecord/decode/resize_kernels.h"

namespace ffrecord {
namespace {

template <std::uint32_t kChannels>
void AcrossPlain(const std::int16_t* row, const ResizeAxis& axis, std::uint8_t* out) {
  for (std::uint32_t x = 0; x < axis.out_size; ++x) {
    const std::int16_t* pixel = row + std::size_t{axis.first[x]} * kChannels;
    const std::int16_t* weight = axis.weights.data() + std::size_t{x} * axis.taps;
    std::int32_t sums[kChannels];
    for (std::int32_t& sum : sums) sum = kAcrossHalf;
    for (std::uint32_t k = 0; k < axis.count[x]; ++k, pixel += kChannels)
      for (std::uint32_t c = 0; c < kChannels; ++c) sums[c] += pixel[c] * weight[k];
    // Weights are not negative and add up to one: a sum is a byte.
    for (const std::int32_t sum : sums) *out++ = static_cast<std::uint8_t>(sum >> kAcrossShift);
  }
}

// In strips, whose sums stay in registers or in the nearest cache.
void DownPlain(const std::uint8_t* in, std::size_t stride, std::size_t size,
               const std::int16_t* weights, std::uint32_t count, std::int16_t* row) {
  constexpr std::size_t kStrip = 64;
  for (std::size_t begin = 0; begin < size; begin += kStrip) {
    const std::size_t strip = std::min(kStrip, size - begin);
    std::int32_t sums[kStrip];
    std::fill_n(sums, strip, kDownHalf);
    for (std::uint32_t k = 0; k < count; ++k) {
      const std::uint8_t* from = in + k * stride + begin;
      for (std::size_t i = 0; i < strip; ++i) sums[i] += from[i] * weights[k];
    }
    for (std::size_t i = 0; i < strip; ++i)
      row[begin + i] = static_cast<std::int16_t>(sums[i] >> kDownShift);
  }
}

}  // namespace

constinit const ResizeKernels kResizePlain = {&DownPlain, &AcrossPlain<3>};

void ResizeAxis::Plan(double begin, double end, std::uint32_t in_size, std::uint32_t wanted) {
  out_size = wanted;
  const double scale = (end - begin) / wanted;
  const double support = std::max(scale, 1.0);
  taps = static_cast<std::uint32_t>(std::ceil(support)) * 2 + 2;
  first.resize(wanted);
  count.resize(wanted);
  shares_.resize(taps);
  weights.assign(std::size_t{taps} * wanted, 0);
  for (std::uint32_t i = 0; i < wanted; ++i) {
    const double centre = begin + (i + 0.5) * scale;
    const double low = std::max(std::floor(centre - support + 0.5), std::floor(begin));
    const double high = std::min(std::floor(centre + support + 0.5), std::ceil(end));
    first[i] = static_cast<std::uint32_t>(std::clamp(low, 0.0, static_cast<double>(in_size) - 1));
    const auto last =
        static_cast<std::uint32_t>(std::clamp(high, first[i] + 1.0, static_cast<double>(in_size)));
    count[i] = std::min(last - first[i], taps);
    PlanPixel(i, centre, support);
  }
}

// Rounds the sums of the first k weights, not the weights: so the last sum is exact.
void ResizeAxis::PlanPixel(std::uint32_t i, double centre, double support) {
  double total = 0;
  for (std::uint32_t k = 0; k < count[i]; ++k) {
    const double distance = std::abs(first[i] + k + 0.5 - centre) / support;
    shares_[k] = std::max(0.0, 1 - distance);
    total += shares_[k];
  }
  if (total == 0) shares_[0] = total = 1;
  double sum = 0;
  std::int32_t before = 0;
  for (std::uint32_t k = 0; k < count[i]; ++k) {
    sum += shares_[k];
    const bool is_last = k + 1 == count[i];
    const auto now = is_last ? std::int32_t{1} << kWeightBits
                             : static_cast<std::int32_t>(
                                   std::lround(sum / total * (std::int32_t{1} << kWeightBits)));
    weights[std::size_t{i} * taps + k] = static_cast<std::int16_t>(now - before);
    before = now;
  }
}

void Resize(const PixelBlock& in, const ResizeAxis& across, const ResizeAxis& down,
            std::int16_t* row, std::uint8_t* out, ResizePath path) {
  const ResizeKernels& kernels = path == ResizePath::kBest ? BestResizeKernels() : kResizePlain;
  const std::size_t stride = std::size_t{in.width} * in.channels;
  const std::size_t out_stride = std::size_t{across.out_size} * in.channels;
  std::fill(row + stride, row + ResizeRowSize(in), std::int16_t{0});
  for (std::uint32_t y = 0; y < down.out_size; ++y, out += out_stride) {
    kernels.down(in.pixels + down.first[y] * stride, stride, stride,
                 down.weights.data() + std::size_t{y} * down.taps, down.count[y], row);
    if (in.channels == 1)
      AcrossPlain<1>(row, across, out);
    else
      kernels.across_three(row, across, out);
  }
}

}  // namespace ffrecord
