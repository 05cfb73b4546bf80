#pragma once

#include <cstddef>
#include <cstdint>

#include <ffrecord/client/collective.h>

namespace ffrecord::client {

// fp32 arrays that cross as halves. Each piece of fp16 has a scale of its own, a power of two by
// which its largest finite magnitude comes to lie in [2^14, 2^15): nothing in it can overflow, its
// rank needs to know of no other's values, and nothing is ever sent twice. A value that was rounded
// once and is sent on in a piece with the same bounds does not change again: its scale is the same.
// bf16 has the range of fp32 and needs no scale.
//
// A value v of an fp16 piece is rounded by at most 2^-11 |v|, or 2^-39 of the largest magnitude in
// its piece, whichever is more; one of bf16 by 2^-8 |v|. Infinities stay; NaNs become the quiet
// one.

inline constexpr std::int32_t kWireShiftMin = -114;
inline constexpr std::int32_t kWireShiftMax = 126;

// The power of 2 by which `count` floats are multiplied before they are encoded.
std::int32_t WireShift(WireType wire, std::uint64_t count, const std::byte* floats);

// Writes `count` floats to `halves`, and rounds them in place to what the halves stand for.
void EncodeWire(WireType wire, std::int32_t shift, std::uint64_t count, std::byte* floats,
                std::byte* halves);
void DecodeWire(WireType wire, std::int32_t shift, std::uint64_t count, const std::byte* halves,
                std::byte* floats);
// floats[i] = op(what halves[i] stands for, floats[i]), as Reduce().
void ReduceFromWire(WireType wire, std::int32_t shift, ReduceOp op, std::uint64_t count,
                    const std::byte* halves, std::byte* floats);
// Rounds `count` floats in place as if they were sent now.
void RoundAsSent(WireType wire, std::uint64_t count, std::byte* floats);

}  // namespace ffrecord::client
