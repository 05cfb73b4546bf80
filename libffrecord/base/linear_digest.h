#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ffrecord {

// A digest of bytes at their places, which is a sum: the digest of a whole is the XOR of the
// digests of its parts, each at its offset, however the whole is cut and in whatever order. Zeros
// add nothing, so the size is to be compared apart.
//
// Byte i counts as the polynomial of its bits times x^(8 i), over GF(2), modulo that of
// CRC-64/ECMA-182: other bytes have the same digest once in 2^64, by accident. It is no protection
// against somebody who wants them to. Specified in format.md, "Digests of tensors".
//
// `offset_bytes` is below 2^48. Pure, thread-safe.
std::uint64_t LinearDigest(std::span<const std::byte> bytes,
                           std::uint64_t offset_bytes = 0) noexcept;

// The arithmetic of LinearDigest(), for each kind of processor.
struct LinearArithmetic {
  std::uint64_t (*digest)(std::span<const std::byte> bytes) noexcept;  // At offset 0.
  std::uint64_t (*multiply)(std::uint64_t a, std::uint64_t b) noexcept;
};
extern const LinearArithmetic kPlainLinear;
// The fastest of this processor.
const LinearArithmetic& BestLinear() noexcept;

// The polynomial without x^64.
inline constexpr std::uint64_t kLinearPolynomial = 0x42f0e1eba9ea3693;

constexpr std::uint64_t MultiplyLinear(std::uint64_t a, std::uint64_t b) noexcept {
  std::uint64_t product = 0;
  for (int bit = 63; bit >= 0; --bit) {
    product = (product << 1) ^ ((product >> 63) != 0 ? kLinearPolynomial : 0);
    if ((b >> bit & 1) != 0) product ^= a;
  }
  return product;
}

// x^n.
constexpr std::uint64_t PowerOfX(std::uint64_t n) noexcept {
  std::uint64_t power = 1;
  for (std::uint64_t square = 2; n != 0; n >>= 1, square = MultiplyLinear(square, square))
    if ((n & 1) != 0) power = MultiplyLinear(power, square);
  return power;
}

}  // namespace ffrecord
