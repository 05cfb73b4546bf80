#include <cpuid.h>
#include <immintrin.h>

#include "client/collective/wire_kernels.h"

// Eight floats at a time; the few at the end as any processor does them.
#define FFR_F16C [[gnu::target("avx2,f16c")]]

namespace ffrecord::client {
namespace {

constexpr std::uint64_t kLanes = 8;

FFR_F16C __m256 LoadFloats(const std::byte* from) {
  return _mm256_loadu_ps(reinterpret_cast<const float*>(from));
}
FFR_F16C void StoreFloats(__m256 values, std::byte* to) {
  _mm256_storeu_ps(reinterpret_cast<float*>(to), values);
}
FFR_F16C __m256 LoadHalves(const std::byte* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
// The processor would keep what a NaN carries.
FFR_F16C __m256 WithQuietNans(__m256 values) {
  const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
  return _mm256_blendv_ps(values, quiet, _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
}

FFR_F16C std::uint32_t Largest(std::uint64_t count, const std::byte* floats) {
  const __m256i all_but_sign = _mm256_set1_epi32(0x7FFFFFFF);
  const __m256i infinity = _mm256_set1_epi32(0x7F800000);
  __m256i largest = _mm256_setzero_si256();
  std::uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(floats + i * 4));
    const __m256i magnitude = _mm256_and_si256(bits, all_but_sign);
    const __m256i is_finite = _mm256_cmpgt_epi32(infinity, magnitude);
    largest = _mm256_max_epi32(largest, _mm256_and_si256(magnitude, is_finite));
  }
  alignas(32) std::uint32_t lanes[kLanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), largest);
  std::uint32_t all = kWirePlain.largest(count - i, floats + i * 4);
  for (const std::uint32_t lane : lanes) all = all < lane ? lane : all;
  return all;
}

template <bool kWrites>
FFR_F16C std::uint64_t EncodeEights(float scale, float back, std::uint64_t count, std::byte* floats,
                                    std::byte* halves) {
  const __m256 scales = _mm256_set1_ps(scale);
  const __m256 backs = _mm256_set1_ps(back);
  std::uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256 scaled = WithQuietNans(_mm256_mul_ps(LoadFloats(floats + i * 4), scales));
    const __m128i half = _mm256_cvtps_ph(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    if constexpr (kWrites) _mm_storeu_si128(reinterpret_cast<__m128i*>(halves + i * 2), half);
    StoreFloats(_mm256_mul_ps(_mm256_cvtph_ps(half), backs), floats + i * 4);
  }
  return i;
}

FFR_F16C void Encode(float scale, float back, std::uint64_t count, std::byte* floats,
                     std::byte* halves) {
  const std::uint64_t done = halves != nullptr
                                 ? EncodeEights<true>(scale, back, count, floats, halves)
                                 : EncodeEights<false>(scale, back, count, floats, halves);
  kWirePlain.encode(scale, back, count - done, floats + done * 4,
                    halves != nullptr ? halves + done * 2 : nullptr);
}

FFR_F16C void Decode(float back, std::uint64_t count, const std::byte* halves, std::byte* floats) {
  const __m256 backs = _mm256_set1_ps(back);
  std::uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    StoreFloats(_mm256_mul_ps(LoadHalves(halves + i * 2), backs), floats + i * 4);
  kWirePlain.decode(back, count - i, halves + i * 2, floats + i * 4);
}

FFR_F16C void Add(float back, std::uint64_t count, const std::byte* halves, std::byte* floats) {
  const __m256 backs = _mm256_set1_ps(back);
  std::uint64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    __m256 sum = _mm256_mul_ps(LoadHalves(halves + i * 2), backs);
    sum = _mm256_add_ps(sum, LoadFloats(floats + i * 4));
    StoreFloats(WithQuietNans(sum), floats + i * 4);
  }
  kWirePlain.add(back, count - i, halves + i * 2, floats + i * 4);
}

// clang 14 cannot ask for it by name.
bool HasF16c() {
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

constexpr WireKernels kF16c = {&Largest, &Encode, &Decode, &Add};

}  // namespace

const WireKernels& BestWireKernels() noexcept {
  static const bool has_both = __builtin_cpu_supports("avx2") && HasF16c();
  return has_both ? kF16c : kWirePlain;
}

}  // namespace ffrecord::client
