// Built with -O3 for the vectoriser and -ffp-contract=off for equal bits; see meson.build.

#include "client/collective/reduce.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>

#include "client/collective/half.h"
#include "libffrecord/base/assert.h"

namespace ffrecord::client {
namespace {

using Kind = ReduceTypeTraits::Kind;

constexpr std::array<ReduceTypeTraits, 7> kTypes{{
    {ReduceType::kF32, "float32", "f32", 4, Kind::kReal},
    {ReduceType::kF64, "float64", "f64", 8, Kind::kReal},
    {ReduceType::kF16, "float16", "f16", 2, Kind::kReal},
    {ReduceType::kBf16, "bfloat16", "bf16", 2, Kind::kReal},
    {ReduceType::kI32, "int32", "i32", 4, Kind::kInteger},
    {ReduceType::kI64, "int64", "i64", 8, Kind::kInteger},
    {ReduceType::kBytes, "bytes", "bytes", 1, Kind::kBytes},
}};
constexpr std::array<ReduceOpTraits, 8> kOps{{
    {ReduceOp::kSum, "sum", "sum", true, true},
    {ReduceOp::kAverage, "average", "average", true, false},
    {ReduceOp::kMin, "min", "minimum", true, true},
    {ReduceOp::kMax, "max", "maximum", true, true},
    {ReduceOp::kProduct, "product", "product", true, true},
    {ReduceOp::kBitAnd, "bit_and", "bitwise and", false, true},
    {ReduceOp::kBitOr, "bit_or", "bitwise or", false, true},
    {ReduceOp::kBitXor, "bit_xor", "bitwise exclusive or", false, true},
}};

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

// A half type, computed with in fp32.
template <class Half>
struct InFloat {
  using Value = float;
  static constexpr std::size_t kSizeBytes = 2;
  static float Load(const std::byte* from) {
    return Half::Decode(Native<std::uint16_t>::Load(from));
  }
  static void Store(float value, std::byte* to) {
    Native<std::uint16_t>::Store(Half::Encode(value), to);
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

struct Product {
  template <class T>
  static T Of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
    } else {
      return a * b;
    }
  }
};

template <template <class> class Function>
struct Bits {
  template <class T>
  static T Of(T a, T b) {
    return Function<T>()(a, b);
  }
};

template <class Element, class Op>
void Combine(std::uint64_t count, const std::byte* __restrict incoming,
             std::byte* __restrict local) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::byte* const at = local + i * Element::kSizeBytes;
    Element::Store(Op::Of(Element::Load(incoming + i * Element::kSizeBytes), Element::Load(at)),
                   at);
  }
}

template <class Element>
void DivideElements(std::uint32_t divisor, std::uint64_t count, std::byte* local) {
  const auto by = static_cast<typename Element::Value>(divisor);
  for (std::uint64_t i = 0; i < count; ++i) {
    std::byte* const at = local + i * Element::kSizeBytes;
    Element::Store(Element::Load(at) / by, at);
  }
}

template <class Element>
void CombineBits(ReduceOp op, std::uint64_t count, const std::byte* incoming, std::byte* local) {
  if (op == ReduceOp::kBitAnd) return Combine<Element, Bits<std::bit_and>>(count, incoming, local);
  if (op == ReduceOp::kBitOr) return Combine<Element, Bits<std::bit_or>>(count, incoming, local);
  return Combine<Element, Bits<std::bit_xor>>(count, incoming, local);
}

template <class Element>
void ReduceElements(ReduceOp op, std::uint64_t count, const std::byte* incoming, std::byte* local) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return Combine<Element, Sum>(count, incoming, local);
    case ReduceOp::kMin:
      return Combine<Element, Extreme<true>>(count, incoming, local);
    case ReduceOp::kMax:
      return Combine<Element, Extreme<false>>(count, incoming, local);
    case ReduceOp::kProduct:
      return Combine<Element, Product>(count, incoming, local);
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      if constexpr (std::is_integral_v<typename Element::Value>)
        return CombineBits<Element>(op, count, incoming, local);
      break;
  }
  FFR_ASSERT(false);  // No such operation: refused at Submit.
}

}  // namespace

std::span<const ReduceTypeTraits> ReduceTypes() noexcept { return kTypes; }
std::span<const ReduceOpTraits> ReduceOps() noexcept { return kOps; }

const ReduceTypeTraits* FindTraits(ReduceType type) noexcept {
  const auto* const found = std::ranges::find(kTypes, type, &ReduceTypeTraits::type);
  return found == kTypes.end() ? nullptr : found;
}

const ReduceOpTraits* FindTraits(ReduceOp op) noexcept {
  const auto* const found = std::ranges::find(kOps, op, &ReduceOpTraits::op);
  return found == kOps.end() ? nullptr : found;
}

std::size_t SizeOf(ReduceType type) {
  const ReduceTypeTraits* const traits = FindTraits(type);
  FFR_ASSERT(traits != nullptr);
  return traits->size_bytes;
}

bool IsOffered(ReduceType type, ReduceOp op) {
  const ReduceOpTraits& traits = *FindTraits(op);
  switch (FindTraits(type)->kind) {
    case Kind::kReal:
      return traits.is_of_reals;
    case Kind::kInteger:
      return traits.is_of_integers;
    case Kind::kBytes:
      break;
  }
  return false;
}

void Reduce(ReduceType type, ReduceOp op, std::uint64_t count, const std::byte* incoming,
            std::byte* local) {
  switch (type) {
    case ReduceType::kF32:
      return ReduceElements<Native<float>>(op, count, incoming, local);
    case ReduceType::kF64:
      return ReduceElements<Native<double>>(op, count, incoming, local);
    case ReduceType::kF16:
      return ReduceElements<InFloat<F16>>(op, count, incoming, local);
    case ReduceType::kBf16:
      return ReduceElements<InFloat<Bf16>>(op, count, incoming, local);
    case ReduceType::kI32:
      return ReduceElements<Native<std::int32_t>>(op, count, incoming, local);
    case ReduceType::kI64:
      return ReduceElements<Native<std::int64_t>>(op, count, incoming, local);
    case ReduceType::kBytes:
      break;
  }
  FFR_ASSERT(false);  // Bytes are not reduced: refused at Submit.
}

void Divide(ReduceType type, std::uint32_t divisor, std::uint64_t count, std::byte* local) {
  switch (type) {
    case ReduceType::kF32:
      return DivideElements<Native<float>>(divisor, count, local);
    case ReduceType::kF64:
      return DivideElements<Native<double>>(divisor, count, local);
    case ReduceType::kF16:
      return DivideElements<InFloat<F16>>(divisor, count, local);
    case ReduceType::kBf16:
      return DivideElements<InFloat<Bf16>>(divisor, count, local);
    case ReduceType::kI32:
    case ReduceType::kI64:
    case ReduceType::kBytes:
      break;
  }
  FFR_ASSERT(false);  // Integers have no average: refused at Submit.
}

}  // namespace ffrecord::client
