#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace ffrecord {

// A type of tensor elements: its code in files, its name, and the size of one element in bytes.
struct CheckpointDtype {
  std::uint8_t code;
  std::string_view name;
  std::uint8_t size_bytes;
};

// format.md, "Element types". Nothing if unknown.
std::optional<CheckpointDtype> CheckpointDtypeOf(std::string_view name) noexcept;
std::optional<CheckpointDtype> CheckpointDtypeOf(std::uint8_t code) noexcept;

}  // namespace ffrecord
