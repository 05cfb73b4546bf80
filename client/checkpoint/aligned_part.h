#pragma once

#include <cstdint>

#include "libffrecord/base/align.h"

namespace ffrecord::client {

// Reads [offset, offset + size) of a file, whatever alignment it asks for.
struct AlignedPart {
  std::uint64_t begin;  // Begin of the bytes that are read.
  std::uint64_t skipped;
  std::uint64_t read_size;

  AlignedPart(std::uint64_t offset, std::uint64_t size, std::uint64_t alignment)
      : begin(AlignDown(offset, alignment)),
        skipped(offset - begin),
        read_size(AlignUp(skipped + size, alignment)) {}
};

}  // namespace ffrecord::client
