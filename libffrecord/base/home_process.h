#pragma once

#include <cstdint>

#include "libffrecord/base/fork_generation.h"

namespace ffrecord {

// Remembers the process that an object was made in. In a forked child connections, threads, rings
// and locks are the parent's: their owners ask this class, and leave them alone there. Cheap.
// Thread-safe. Blind to raw clone().
class HomeProcess {
 public:
  HomeProcess() noexcept : generation_(ForkGeneration()) {}

  bool is_here() const noexcept { return generation_ == ForkGeneration(); }

 private:
  std::uint32_t generation_;
};

}  // namespace ffrecord
