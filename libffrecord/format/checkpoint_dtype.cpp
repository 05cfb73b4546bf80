#include <ffrecord/checkpoint_dtype.h>

#include <algorithm>
#include <array>

namespace ffrecord {
namespace {

// Codes 1 to 13 are those of a schema's columns.
constexpr std::array<CheckpointDtype, 41> kDtypes{{
    {1, "bool", 1},
    {2, "uint8", 1},
    {3, "int8", 1},
    {4, "uint16", 2},
    {5, "int16", 2},
    {6, "uint32", 4},
    {7, "int32", 4},
    {8, "uint64", 8},
    {9, "int64", 8},
    {10, "float16", 2},
    {11, "bfloat16", 2},
    {12, "float32", 4},
    {13, "float64", 8},
    {14, "complex32", 4},
    {15, "complex64", 8},
    {16, "complex128", 16},
    {17, "float8_e4m3fn", 1},
    {18, "float8_e5m2", 1},
    {19, "float8_e4m3fnuz", 1},
    {20, "float8_e5m2fnuz", 1},
    {21, "float8_e8m0fnu", 1},
    {22, "float4_e2m1fn_x2", 1},
    {23, "uint1", 1},
    {24, "uint2", 1},
    {25, "uint3", 1},
    {26, "uint4", 1},
    {27, "uint5", 1},
    {28, "uint6", 1},
    {29, "uint7", 1},
    {30, "int1", 1},
    {31, "int2", 1},
    {32, "int3", 1},
    {33, "int4", 1},
    {34, "int5", 1},
    {35, "int6", 1},
    {36, "int7", 1},
    {37, "bits8", 1},
    {38, "bits16", 2},
    {39, "bits1x8", 1},
    {40, "bits2x4", 1},
    {41, "bits4x2", 1},
}};

template <class Key>
const CheckpointDtype* Find(Key CheckpointDtype::*member, Key key) noexcept {
  const auto* const found = std::ranges::find(kDtypes, key, member);
  return found == kDtypes.end() ? nullptr : found;
}

}  // namespace

std::span<const CheckpointDtype> CheckpointDtypes() noexcept { return kDtypes; }

const CheckpointDtype* CheckpointDtypeOf(std::string_view name) noexcept {
  return Find(&CheckpointDtype::name, name);
}

const CheckpointDtype* CheckpointDtypeOf(std::uint8_t code) noexcept {
  return Find(&CheckpointDtype::code, code);
}

}  // namespace ffrecord
