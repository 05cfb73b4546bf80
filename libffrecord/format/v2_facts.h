#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/v2_header.h"

namespace ffrecord {

// The facts that a file states at its front, once more among the sections at its end, and those
// that only its writer knew. format.md, "Facts".
struct V2Facts {
  V2Header header;
  std::string key_column;              // Whose values are the keys; empty if keys were given apart.
  std::vector<std::byte> schema = {};  // The schema section; empty if there is none.

  bool operator==(const V2Facts&) const = default;
};

// Fails with kCorruption if the bytes are not those of a facts section, or as DecodeV2Header.
Result<V2Facts> DecodeV2Facts(std::span<const std::byte> bytes);
std::vector<std::byte> EncodeV2Facts(const V2Facts& facts);

}  // namespace ffrecord
