#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include <ffrecord/result.h>

#include "libffrecord/format/dataset_manifest.h"

namespace ffrecord::server {

// The last 64 bytes of an extent's file, behind its data. format.md, "Extent".
struct ExtentTrailer {
  static constexpr std::size_t kEncodedSizeBytes = 64;

  ExtentId id{};
  std::uint64_t size_bytes = 0;  // Size of the data.
  std::uint64_t xxh3 = 0;        // XXH3-64 of the data, seed 0.

  bool operator==(const ExtentTrailer&) const = default;
};

std::array<std::byte, ExtentTrailer::kEncodedSizeBytes> EncodeExtentTrailer(
    const ExtentTrailer& trailer);

// Fails with kCorruption, saying what is wrong, if magic, check or size are, or if the file is not
// one of `file_size_bytes`.
Result<ExtentTrailer> DecodeExtentTrailer(
    std::span<const std::byte, ExtentTrailer::kEncodedSizeBytes> bytes,
    std::uint64_t file_size_bytes);

// The slot of an extent, by a hash, 0 to 4095. Part of the layout: never changes.
inline constexpr std::uint32_t kSlotCount = 4096;
std::uint32_t SlotOf(const ExtentId& id) noexcept;

// "<slot, 3 hex digits>/<id, 32 hex digits>".
std::filesystem::path ExtentPath(const ExtentId& id);

// The id that `name` spells; none if it does not, or `slot` is not the name of its slot.
bool ParseExtentName(std::string_view slot, std::string_view name, ExtentId& id);

}  // namespace ffrecord::server
