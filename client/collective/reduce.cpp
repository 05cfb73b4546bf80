// Built with -O3 for the vectoriser and -ffp-contract=off for equal bits; see meson.build.

#include "client/collective/reduce.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "libffrecord/base/assert.h"

namespace ffrecord::client {
namespace {

// --- How an element is loaded into the type that is computed with, and stored -------------------

template <class T>
struct Native {
  using Value = T;
  static constexpr std::size_t kSizeBytes = sizeof(T);
  static T Load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  static void Store(T value, std::byte* to) {
    if constexpr (std::is_floating_point_v<T>)
      value = value != value ? std::numeric_limits<T>::quiet_NaN() : value;
    std::memcpy(to, &value, sizeof(value));
  }
};

// Both half types by integers and without branches, which vectorises, and rounds the same way on
// every processor.
template <class Half>
struct InFloat {
  using Value = float;
  static constexpr std::size_t kSizeBytes = 2;
  static float Load(const std::byte* from) {
    return Half::Decode(Native<std::uint16_t>::Load(from));
  }
  static void Store(float value, std::byte* to) {
    Native<std::uint16_t>::Store(Half::Encode(std::bit_cast<std::uint32_t>(value)), to);
  }
};

struct Bf16 {
  static float Decode(std::uint16_t bits) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  static std::uint16_t Encode(std::uint32_t bits) {
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
  static std::uint16_t Encode(std::uint32_t bits) {
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

// fp32 that keeps what bf16 can hold.
struct RoundedFloat {
  using Value = float;
  static constexpr std::size_t kSizeBytes = 4;
  static float Load(const std::byte* from) { return Native<float>::Load(from); }
  static void Store(float value, std::byte* to) {
    Native<float>::Store(Bf16::Decode(Bf16::Encode(std::bit_cast<std::uint32_t>(value))), to);
  }
};

// --- What is computed ----------------------------------------------------------------------------

struct Sum {
  template <class T>
  static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;  // Wraps, where the signed type must not.
      return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  }
};

template <bool kLess>
struct Extreme {
  template <class T>
  static T Of(T a, T b) {
    bool takes_a = kLess ? a < b : b < a;
    // Both ranks of a pair may compute this, with a and b swapped: zeros have an order too.
    if constexpr (std::is_floating_point_v<T>) takes_a |= a == b && std::signbit(a) == kLess;
    const T chosen = takes_a ? a : b;
    return a != a ? a : chosen;  // A NaN in b is chosen already: it compares with nothing.
  }
};

template <class Element, class Incoming, class Op>
void Combine(std::uint64_t count, const std::byte* __restrict incoming,
             std::byte* __restrict local) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::byte* const at = local + i * Element::kSizeBytes;
    Element::Store(Op::Of(Incoming::Load(incoming + i * Incoming::kSizeBytes), Element::Load(at)),
                   at);
  }
}

template <class Element, class Incoming>
void Average(std::uint32_t divisor, std::uint64_t count, const std::byte* __restrict incoming,
             std::byte* __restrict local) {
  const auto by = static_cast<typename Element::Value>(divisor);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::byte* const at = local + i * Element::kSizeBytes;
    const auto sum =
        Sum::Of(Incoming::Load(incoming + i * Incoming::kSizeBytes), Element::Load(at));
    Element::Store(sum / by, at);
  }
}

template <class Element, class Incoming = Element>
void ReduceElements(ReduceOp op, std::uint32_t divisor, std::uint64_t count,
                    const std::byte* incoming, std::byte* local) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      if (divisor == 1) return Combine<Element, Incoming, Sum>(count, incoming, local);
      if constexpr (std::is_floating_point_v<typename Element::Value>)
        return Average<Element, Incoming>(divisor, count, incoming, local);
      break;
    case ReduceOp::kMin:
      return Combine<Element, Incoming, Extreme<true>>(count, incoming, local);
    case ReduceOp::kMax:
      return Combine<Element, Incoming, Extreme<false>>(count, incoming, local);
  }
  FFR_ASSERT(false);  // An integer was to be divided, or `op` is none: refused at Submit.
}

}  // namespace

std::size_t SizeOf(ReduceType type) {
  constexpr std::array<std::size_t, 6> kSizes{4, 8, 2, 2, 4, 8};
  return kSizes.at(static_cast<std::size_t>(type));
}

std::string_view NameOf(ReduceType type) {
  constexpr std::array<std::string_view, 6> kNames{"f32", "f64", "f16", "bf16", "i32", "i64"};
  return kNames.at(static_cast<std::size_t>(type));
}

std::string_view NameOf(ReduceOp op) {
  constexpr std::array<std::string_view, 4> kNames{"sum", "average", "minimum", "maximum"};
  return kNames.at(static_cast<std::size_t>(op));
}

void Reduce(ReduceType type, ReduceOp op, std::uint32_t divisor, std::uint64_t count,
            const std::byte* incoming, std::byte* local) {
  switch (type) {
    case ReduceType::kF32:
      return ReduceElements<Native<float>>(op, divisor, count, incoming, local);
    case ReduceType::kF64:
      return ReduceElements<Native<double>>(op, divisor, count, incoming, local);
    case ReduceType::kF16:
      return ReduceElements<InFloat<F16>>(op, divisor, count, incoming, local);
    case ReduceType::kBf16:
      return ReduceElements<InFloat<Bf16>>(op, divisor, count, incoming, local);
    case ReduceType::kI32:
      return ReduceElements<Native<std::int32_t>>(op, divisor, count, incoming, local);
    case ReduceType::kI64:
      return ReduceElements<Native<std::int64_t>>(op, divisor, count, incoming, local);
  }
}

void ReduceFromBf16(ReduceOp op, std::uint32_t divisor, bool rounds, std::uint64_t count,
                    const std::byte* incoming, std::byte* local) {
  if (rounds)
    ReduceElements<RoundedFloat, InFloat<Bf16>>(op, divisor, count, incoming, local);
  else
    ReduceElements<Native<float>, InFloat<Bf16>>(op, divisor, count, incoming, local);
}

void RoundToBf16(std::uint64_t count, std::byte* __restrict local, std::byte* __restrict wire) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint16_t half = Bf16::Encode(Native<std::uint32_t>::Load(local + i * 4));
    Native<std::uint16_t>::Store(half, wire + i * 2);
    Native<float>::Store(Bf16::Decode(half), local + i * 4);
  }
}

void ExpandBf16(std::uint64_t count, const std::byte* __restrict wire,
                std::byte* __restrict local) {
  for (std::uint64_t i = 0; i < count; ++i)
    Native<float>::Store(Bf16::Decode(Native<std::uint16_t>::Load(wire + i * 2)), local + i * 4);
}

}  // namespace ffrecord::client
