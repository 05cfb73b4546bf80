#pragma once

#include <chrono>
#include <cstdint>

#include "libffrecord/base/erasure_code.h"
#include "libffrecord/format/dataset_manifest.h"
#include "server/cluster/replication.h"

namespace ffrecord::server {

// How long one pull of a node may take, where all of them together move `bytes_per_s`; 0: as fast
// as it goes. The largest computes a member of a stripe from as many others as that has data. Twice
// that time: if one fails on the way, it begins anew with others.
inline std::chrono::minutes PullPatienceAt(std::uint64_t bytes_per_s,
                                           const cluster::Replication::Options& options) {
  if (bytes_per_s == 0) return options.pull_patience;
  const std::uint64_t most_bytes = options.pulls_max * ErasureCode::kDataMax * kExtentSizeMax;
  const std::chrono::seconds twice(2 * most_bytes / bytes_per_s);
  return options.pull_patience + std::chrono::ceil<std::chrono::minutes>(twice);
}

}  // namespace ffrecord::server
