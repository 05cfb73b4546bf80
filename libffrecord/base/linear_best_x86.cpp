#include <emmintrin.h>
#include <smmintrin.h>
#include <wmmintrin.h>

#include <array>
#include <cstring>

#include "libffrecord/base/linear_digest.h"

#define FFR_CLMUL [[gnu::target("pclmul,sse4.1")]]

namespace ffrecord {
namespace {

__extension__ using Wide = unsigned __int128;

// x^128 divided by the polynomial, without x^64.
constexpr std::uint64_t Reciprocal() {
  Wide rest = Wide{kLinearPolynomial} << 64;
  std::uint64_t quotient = 0;
  for (int bit = 63; bit >= 0; --bit) {
    if ((rest >> (64 + bit) & 1) == 0) continue;
    quotient |= std::uint64_t{1} << bit;
    rest ^= (Wide{1} << (64 + bit)) ^ (Wide{kLinearPolynomial} << bit);
  }
  return quotient;
}
constexpr std::uint64_t kReciprocal = Reciprocal();

constexpr std::size_t kBlock = 16;
constexpr std::size_t kLanes = 8;  // A product is there some cycles after it was begun.
constexpr std::size_t kChunk = kLanes * kBlock;

FFR_CLMUL __m128i Wide128(std::uint64_t high, std::uint64_t low) {
  return _mm_set_epi64x(static_cast<long long>(high), static_cast<long long>(low));
}

// For Fold(): times x^bits.
template <std::uint64_t bits>
FFR_CLMUL __m128i Shift() {
  constexpr std::uint64_t low = PowerOfX(bits);
  constexpr std::uint64_t high = PowerOfX(bits + 64);
  return Wide128(high, low);
}

// 128 bits that are `value` times the power of x in `shift`, modulo the polynomial.
FFR_CLMUL __m128i Fold(__m128i value, __m128i shift) {
  return _mm_xor_si128(_mm_clmulepi64_si128(value, shift, 0x00),
                       _mm_clmulepi64_si128(value, shift, 0x11));
}

FFR_CLMUL std::uint64_t High(__m128i value) {
  return static_cast<std::uint64_t>(_mm_extract_epi64(value, 1));
}
FFR_CLMUL std::uint64_t Low(__m128i value) {
  return static_cast<std::uint64_t>(_mm_cvtsi128_si64(value));
}

FFR_CLMUL std::uint64_t Reduce(__m128i value) {
  const __m128i constants = Wide128(kLinearPolynomial, kReciprocal);
  const std::uint64_t high = High(value);
  const std::uint64_t quotient =
      high ^ High(_mm_clmulepi64_si128(Wide128(0, high), constants, 0x00));
  return Low(value) ^ Low(_mm_clmulepi64_si128(Wide128(0, quotient), constants, 0x10));
}

FFR_CLMUL __m128i Load(const std::byte* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}

FFR_CLMUL std::uint64_t DigestOfFew(std::span<const std::byte> bytes) {
  std::array<std::byte, kBlock> block{};
  if (!bytes.empty()) std::memcpy(block.data(), bytes.data(), bytes.size());
  return Reduce(Load(block.data()));
}

// Chunk by chunk from the last to the first, each lane on its own; the rest beyond the last whole
// chunk comes first, with zeros behind it.
FFR_CLMUL std::uint64_t DigestByProducts(std::span<const std::byte> bytes) noexcept {
  if (bytes.size() <= kBlock) return DigestOfFew(bytes);
  std::array<std::byte, kChunk> rest{};
  std::size_t end = bytes.size() - bytes.size() % kChunk;
  if (end != bytes.size()) std::memcpy(rest.data(), bytes.data() + end, bytes.size() - end);
  __m128i lanes[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = Load(rest.data() + i * kBlock);
  const __m128i by_chunk = Shift<8 * kChunk>();
  while (end != 0) {
    end -= kChunk;
    for (std::size_t i = 0; i < kLanes; ++i)
      lanes[i] = _mm_xor_si128(Fold(lanes[i], by_chunk), Load(bytes.data() + end + i * kBlock));
  }
  const __m128i by_block = Shift<8 * kBlock>();
  __m128i digest = lanes[kLanes - 1];
  for (std::size_t i = kLanes - 1; i-- > 0;)
    digest = _mm_xor_si128(Fold(digest, by_block), lanes[i]);
  return Reduce(digest);
}

FFR_CLMUL std::uint64_t MultiplyByProduct(std::uint64_t a, std::uint64_t b) noexcept {
  return Reduce(_mm_clmulepi64_si128(Wide128(0, a), Wide128(0, b), 0x00));
}

constexpr LinearArithmetic kByProducts{&DigestByProducts, &MultiplyByProduct};

}  // namespace

const LinearArithmetic& BestLinear() noexcept {
  const bool has_products = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
  return has_products ? kByProducts : kPlainLinear;
}

}  // namespace ffrecord
