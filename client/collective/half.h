#pragma once

#include <bit>
#include <cstdint>

namespace ffrecord::client {

// The half types, to fp32 and back: to the nearest, ties to even, NaNs to the one quiet NaN. By
// integers and without branches, which vectorises, and rounds the same way on every processor.

struct Bf16 {
  static float Decode(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  static std::uint16_t Encode(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    return static_cast<std::uint16_t>(is_nan ? 0x7FC0 : rounded);
  }
};

struct F16 {
  static float Decode(std::uint16_t bits) {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
    const std::uint32_t magnitude = bits & 0x7FFF;
    // 2^-24 is the smallest subnormal; the product is exact and a normal float.
    const auto subnormal = std::bit_cast<std::uint32_t>(
        static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24F);
    const std::uint32_t normal = (magnitude << 13) + ((127U - 15U) << 23);
    const std::uint32_t not_finite = (magnitude << 13) | 0x7F800000;
    const std::uint32_t finite = magnitude < 0x0400 ? subnormal : normal;
    return std::bit_cast<float>(sign | (magnitude < 0x7C00 ? finite : not_finite));
  }
  static std::uint16_t Encode(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign = (bits >> 16) & 0x8000;
    const std::uint32_t magnitude = bits & 0x7FFFFFFF;
    // Below 2^-14: adding 1/2 leaves the 10 bits of a subnormal at the low end, rounded.
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) -
        std::bit_cast<std::uint32_t>(0.5F);
    // A carry out of the mantissa raises the exponent, up to infinity: what rounding asks for.
    const std::uint32_t normal =
        (magnitude - ((127U - 15U) << 23) + 0xFFF + ((magnitude >> 13) & 1)) >> 13;
    const std::uint32_t finite = magnitude < 0x38800000 ? subnormal : normal;
    const std::uint32_t large = magnitude > 0x7F800000 ? 0x7E00 : 0x7C00;
    const std::uint32_t result = magnitude < 0x47800000 ? finite : large;
    // The quiet NaN has no sign.
    return static_cast<std::uint16_t>(magnitude > 0x7F800000 ? result : (result | sign));
  }
};

}  // namespace ffrecord::client
