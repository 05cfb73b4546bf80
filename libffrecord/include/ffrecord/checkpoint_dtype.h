#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <ffrecord/export.h>

namespace ffrecord {

// A type of tensor elements: its code in files, its name, and the size of one element in bytes.
struct CheckpointDtype {
  std::uint8_t code;
  std::string_view name;
  std::uint8_t size_bytes;
};

// All types: format.md, "Element types".
FFR_EXPORT std::span<const CheckpointDtype> CheckpointDtypes() noexcept;
// Null if unknown.
FFR_EXPORT const CheckpointDtype* CheckpointDtypeOf(std::string_view name) noexcept;
FFR_EXPORT const CheckpointDtype* CheckpointDtypeOf(std::uint8_t code) noexcept;

}  // namespace ffrecord
