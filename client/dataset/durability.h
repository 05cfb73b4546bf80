#pragma once

#include <cstdint>
#include <string_view>

#include <ffrecord/result.h>

#include "libffrecord/base/erasure_code.h"

namespace ffrecord::client {

// How a name of a cluster is kept: by so many replicas of each extent, 0 for as many as the cluster
// has, or by an erasure code.
struct Durability {
  std::uint8_t replicas = 0;
  ErasureCode code = {};

  bool is_default() const noexcept { return replicas == 0 && code.is_none(); }
  bool operator==(const Durability&) const = default;
};

// Reads "" (the default), "r1" to "r3", "ec:4+2" and the like. Fails with kInvalidArgument.
Result<Durability> ParseDurability(std::string_view text);

}  // namespace ffrecord::client
