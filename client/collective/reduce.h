#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ffrecord/client/collective.h>

namespace ffrecord::client {

// Null if there is no such type or operation: a peer may send any value.
const ReduceTypeTraits* FindTraits(ReduceType type) noexcept;
const ReduceOpTraits* FindTraits(ReduceOp op) noexcept;

// This function and those below require that the type and the operation exist.
std::size_t SizeOf(ReduceType type);

// Whether elements of that type can be combined at all.
inline bool IsNumber(ReduceType type) noexcept {
  const ReduceTypeTraits* const traits = FindTraits(type);
  return traits != nullptr && traits->kind != ReduceTypeTraits::Kind::kBytes;
}

// Whether elements of that type can be combined by that operation.
bool IsOffered(ReduceType type, ReduceOp op);

// local[i] = op(incoming[i], local[i]) for `count` elements, at any alignment; an average is a sum
// of what Divide() has made. Requires that the ranges do not overlap.
//
// Half types are added in fp32 and rounded to the nearest, ties to even, once. NaNs become the one
// quiet NaN; minimum and maximum of a NaN are NaN, and -0 is less than 0. Integers wrap. Only
// integers have the operations on bits (IsOffered). The bits
// depend on the operands alone, in either order: no fused or reordered arithmetic.
void Reduce(ReduceType type, ReduceOp op, std::uint64_t count, const std::byte* incoming,
            std::byte* local);

// local[i] /= divisor, half types in fp32: what a rank adds to an average. No partial sum of such
// is larger than the largest operand, so an average never overflows. Requires no integers.
void Divide(ReduceType type, std::uint32_t divisor, std::uint64_t count, std::byte* local);

}  // namespace ffrecord::client
