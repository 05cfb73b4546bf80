// Built with -O3 for the vectoriser and -ffp-contract=off for equal bits; see meson.build.

#include "client/collective/wire.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "client/collective/half.h"
#include "client/collective/reduce.h"
#include "client/collective/wire_kernels.h"

namespace ffrecord::client {
namespace {

template <class T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
template <class T>
void Store(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(value));
}

float PowerOfTwo(std::int32_t exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

std::uint32_t LargestPlain(std::uint64_t count, const std::byte* floats) {
  std::uint32_t largest = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = Load<std::uint32_t>(floats + i * 4) & 0x7FFFFFFF;
    largest = std::max(largest, magnitude < 0x7F800000 ? magnitude : 0);
  }
  return largest;
}

// A product with a power of two is exact, or below all that a half can hold.
template <class Half, bool kWrites>
void Encode(float scale, float back, std::uint64_t count, std::byte* __restrict floats,
            std::byte* __restrict halves) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint16_t half = Half::Encode(Load<float>(floats + i * 4) * scale);
    if constexpr (kWrites) Store(half, halves + i * 2);
    Store(Half::Decode(half) * back, floats + i * 4);
  }
}

void EncodePlain(float scale, float back, std::uint64_t count, std::byte* floats,
                 std::byte* halves) {
  if (halves != nullptr)
    Encode<F16, true>(scale, back, count, floats, halves);
  else
    Encode<F16, false>(scale, back, count, floats, halves);
}

template <class Half>
void Decode(float back, std::uint64_t count, const std::byte* __restrict halves,
            std::byte* __restrict floats) {
  for (std::uint64_t i = 0; i < count; ++i)
    Store(Half::Decode(Load<std::uint16_t>(halves + i * 2)) * back, floats + i * 4);
}

void DecodePlain(float back, std::uint64_t count, const std::byte* halves, std::byte* floats) {
  Decode<F16>(back, count, halves, floats);
}

void AddPlain(float back, std::uint64_t count, const std::byte* __restrict halves,
              std::byte* __restrict floats) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const float half = F16::Decode(Load<std::uint16_t>(halves + i * 2)) * back;
    const float sum = half + Load<float>(floats + i * 4);
    Store(sum != sum ? std::numeric_limits<float>::quiet_NaN() : sum, floats + i * 4);
  }
}

}  // namespace

const WireKernels kWirePlain = {&LargestPlain, &EncodePlain, &DecodePlain, &AddPlain};

std::int32_t WireShift(WireType wire, std::uint64_t count, const std::byte* floats) {
  if (wire != WireType::kF16) return 0;
  const std::uint32_t largest = BestWireKernels().largest(count, floats);
  if (largest == 0) return 0;
  // As it will be rounded, for then it has the same scale when it is sent on.
  const std::uint32_t rounded = largest + 0xFFF + ((largest >> 13) & 1);
  const auto exponent = static_cast<std::int32_t>(rounded >> 23) - 127;
  return std::clamp(14 - exponent, kWireShiftMin, kWireShiftMax);
}

void EncodeWire(WireType wire, std::int32_t shift, std::uint64_t count, std::byte* floats,
                std::byte* halves) {
  if (wire == WireType::kF16)
    BestWireKernels().encode(PowerOfTwo(shift), PowerOfTwo(-shift), count, floats, halves);
  else
    Encode<Bf16, true>(1, 1, count, floats, halves);
}

void DecodeWire(WireType wire, std::int32_t shift, std::uint64_t count, const std::byte* halves,
                std::byte* floats) {
  if (wire == WireType::kF16)
    BestWireKernels().decode(PowerOfTwo(-shift), count, halves, floats);
  else
    Decode<Bf16>(1, count, halves, floats);
}

void ReduceFromWire(WireType wire, std::int32_t shift, ReduceOp op, std::uint64_t count,
                    const std::byte* halves, std::byte* floats) {
  if (wire == WireType::kF16 && (op == ReduceOp::kSum || op == ReduceOp::kAverage))
    return BestWireKernels().add(PowerOfTwo(-shift), count, halves, floats);
  constexpr std::uint64_t kTile = 1024;  // Stays in the innermost cache.
  std::array<std::byte, kTile * sizeof(float)> tile;
  for (std::uint64_t done = 0; done < count; done += kTile) {
    const std::uint64_t now = std::min(kTile, count - done);
    DecodeWire(wire, shift, now, halves + done * 2, tile.data());
    Reduce(ReduceType::kF32, op, now, tile.data(), floats + done * sizeof(float));
  }
}

void RoundAsSent(WireType wire, std::uint64_t count, std::byte* floats) {
  const std::int32_t shift = WireShift(wire, count, floats);
  if (wire == WireType::kF16)
    BestWireKernels().encode(PowerOfTwo(shift), PowerOfTwo(-shift), count, floats, nullptr);
  else
    Encode<Bf16, false>(1, 1, count, floats, nullptr);
}

}  // namespace ffrecord::client
