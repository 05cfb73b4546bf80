#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord {

// Where an array lies in the bytes of a value, and what it is. Sizes and offsets are in bytes; they
// were checked: the array lies inside the value, and shape and type fill its bytes exactly.
struct ArrayHeader {
  std::string dtype;                 // As NumPy spells it: "<f4", "|u1", "?".
  std::vector<std::uint64_t> shape;  // At most 32 sides.
  bool fortran_order = false;        // The first index moves fastest.
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint32_t item_size_bytes = 0;
};

struct NamedArray {
  std::string name;
  ArrayHeader array;
};

// The header of a .npy file, version 1 to 3, of numbers; nothing is executed and no object is
// made. Fails with kCorruption, saying what is wrong. Pure.
FFR_EXPORT Result<ArrayHeader> ReadNpyHeader(std::span<const std::byte> value);

// The arrays of a safetensors file, in the order of the header; bfloat16 is "<u2", types of 8-bit
// floats are "|u1": the bits as they are. Fails with kCorruption. Pure.
FFR_EXPORT Result<std::vector<NamedArray>> ReadSafetensorsHeader(std::span<const std::byte> value);

}  // namespace ffrecord
