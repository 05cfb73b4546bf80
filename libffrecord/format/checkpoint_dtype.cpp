#include "libffrecord/format/checkpoint_dtype.h"

#include <algorithm>
#include <array>

namespace ffrecord {
namespace {

// Codes 1 to 13 are those of a schema's columns.
constexpr std::array<CheckpointDtype, 20> kDtypes{{
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
}};

template <class Predicate>
std::optional<CheckpointDtype> Find(Predicate predicate) noexcept {
  const auto* found = std::find_if(kDtypes.begin(), kDtypes.end(), predicate);
  if (found == kDtypes.end()) return std::nullopt;
  return *found;
}

}  // namespace

std::optional<CheckpointDtype> CheckpointDtypeOf(std::string_view name) noexcept {
  return Find([&](const CheckpointDtype& dtype) { return dtype.name == name; });
}

std::optional<CheckpointDtype> CheckpointDtypeOf(std::uint8_t code) noexcept {
  return Find([&](const CheckpointDtype& dtype) { return dtype.code == code; });
}

}  // namespace ffrecord
