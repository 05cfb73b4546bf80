#include <immintrin.h>

#include <cstring>

#include "libffrecord/decode/resize_kernels.h"

namespace ffrecord {
namespace {

// 32 bits for the multiplication of pairs: two weights side by side.
std::int32_t TwoWeights(const std::int16_t* weights) noexcept {
  std::int32_t two = 0;
  std::memcpy(&two, weights, sizeof two);
  return two;
}

// 16 values of a row: of each two rows that go in, the bytes side by side, times their weights.
[[gnu::target("avx2")]] void DownSixteen(const std::uint8_t* in, std::size_t stride,
                                         const std::int16_t* weights, std::uint32_t count,
                                         std::int16_t* row) {
  __m256i low = _mm256_set1_epi32(kDownHalf), high = low;
  for (std::uint32_t k = 0; k < count; k += 2, in += 2 * stride) {
    const __m256i weight = _mm256_set1_epi32(TwoWeights(weights + k));
    const auto one = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
    // Behind the last row there may be nothing; its weight is 0.
    const std::uint8_t* next = k + 1 < count ? in + stride : in;
    const auto two = _mm_loadu_si128(reinterpret_cast<const __m128i*>(next));
    const __m256i first = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(one, two));
    const __m256i second = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(one, two));
    low = _mm256_add_epi32(low, _mm256_madd_epi16(first, weight));
    high = _mm256_add_epi32(high, _mm256_madd_epi16(second, weight));
  }
  low = _mm256_srai_epi32(low, kDownShift);
  high = _mm256_srai_epi32(high, kDownShift);
  // Packing goes by halves of registers.
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row), packed);
}

[[gnu::target("avx2")]] void DownAvx2(const std::uint8_t* in, std::size_t stride, std::size_t size,
                                      const std::int16_t* weights, std::uint32_t count,
                                      std::int16_t* row) {
  if (size < 16) return kResizePlain.down(in, stride, size, weights, count, row);
  for (std::size_t i = 0; i + 16 <= size; i += 16)
    DownSixteen(in + i, stride, weights, count, row + i);
  // The last few once more, together with some that are done: nothing behind `in` is read.
  if (size % 16 != 0) DownSixteen(in + size - 16, stride, weights, count, row + size - 16);
}

[[gnu::target("avx2")]] void AcrossThreeAvx2(const std::int16_t* row, const ResizeAxis& axis,
                                             std::uint8_t* out) {
  // Turns r g b r g b, each of 16 bits, into r r g g b b, and nothing.
  const __m128i by_channel = _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1);
  for (std::uint32_t x = 0; x < axis.out_size; ++x, out += 3) {
    const std::int16_t* pixel = row + std::size_t{axis.first[x]} * 3;
    const std::int16_t* weights = axis.weights.data() + std::size_t{x} * axis.taps;
    __m128i sum = _mm_set1_epi32(kAcrossHalf);
    for (std::uint32_t k = 0; k < axis.count[x]; k += 2, pixel += 6) {
      const auto two = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pixel));
      const __m128i weight = _mm_set1_epi32(TwoWeights(weights + k));
      sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_shuffle_epi8(two, by_channel), weight));
    }
    sum = _mm_srai_epi32(sum, kAcrossShift);
    sum = _mm_packus_epi16(_mm_packs_epi32(sum, sum), sum);
    const std::int32_t bytes = _mm_cvtsi128_si32(sum);
    std::memcpy(out, &bytes, 3);
  }
}

constexpr ResizeKernels kAvx2 = {&DownAvx2, &AcrossThreeAvx2};

}  // namespace

const ResizeKernels& BestResizeKernels() noexcept {
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  return has_avx2 ? kAvx2 : kResizePlain;
}

}  // namespace ffrecord
