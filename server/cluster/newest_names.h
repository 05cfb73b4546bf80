#pragma once

#include <cstdint>
#include <optional>

namespace ffrecord::server::cluster {

// Up to which revision there is something to know of names: as the store says, once it is wanted.
struct NewestNames {
  bool is_wanted = false;
  bool is_asked = false;  // The store, after it was wanted.
  std::optional<std::uint64_t> revision;
};

}  // namespace ffrecord::server::cluster
