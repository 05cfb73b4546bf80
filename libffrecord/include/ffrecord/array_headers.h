#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/column_decoder.h>
#include <ffrecord/export.h>
#include <ffrecord/result.h>

namespace ffrecord {

// The place and type of an array within the bytes of a value. Sizes and offsets are in bytes and
// have been checked: the array lies inside the value, and shape and type fill its bytes exactly.
struct ArrayHeader {
  std::string dtype;                 // As NumPy spells it: "<f4", "|u1", "?".
  std::vector<std::uint64_t> shape;  // At most 32 dimensions.
  bool fortran_order = false;        // The first index moves fastest.
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint32_t item_size_bytes = 0;
};

struct NamedArray {
  std::string name;
  ArrayHeader array;
};

// Decodes the header of a .npy file of numbers, version 1 to 3. Executes and unpickles nothing.
// Fails with kCorruption; the message names the fault. Pure.
FFR_EXPORT Result<ArrayHeader> ReadNpyHeader(std::span<const std::byte> value);

// Decodes the header of a safetensors file: its arrays in the order of the header. bfloat16 becomes
// "<u2" and 8-bit floats become "|u1"; the bits are unchanged. Fails with kCorruption. Pure.
FFR_EXPORT Result<std::vector<NamedArray>> ReadSafetensorsHeader(std::span<const std::byte> value);

// Copies the array of a .npy file, which must be of that type and shape in C's order, and of the
// destination's size. Fails with kCorruption; the message names the fault. Pure.
FFR_EXPORT Result<void> CopyNpy(std::span<const std::byte> value, const std::string& dtype,
                                std::span<const std::uint64_t> shape,
                                std::span<std::byte> destination);

// Decodes a column of such files: the arrays back to back. `size_bytes` is the size of one.
FFR_EXPORT std::shared_ptr<const ColumnDecoder> NpyColumnDecoder(std::string dtype,
                                                                 std::vector<std::uint64_t> shape,
                                                                 std::size_t size_bytes);

}  // namespace ffrecord
