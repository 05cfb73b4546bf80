#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/service/cluster/shown_state.h"
#include "server/service/cluster/stripe_reads.h"

namespace ffrecord::server {

// The nodes that readers and plans ask for an extent, by the state that this node shows.
//
// Thread-safe; no call waits. Ownership: ClusterService owns it; it borrows the state and the
// stripes.
class ExtentHolders {
 public:
  // `replicas`: replicas of each published extent, unless its name has another number.
  ExtentHolders(std::string node, std::uint8_t replicas, const ShownState& shown,
                const StripeReads& stripes)
      : node_(std::move(node)), replicas_(replicas), shown_(shown), stripes_(stripes) {}

  // Whether this node is the one, among the owners of the extent that are up, that readers with a
  // hint ask. `replicas`: of the extents of its name; 0: as many as the cluster has.
  bool IsPreferredOwner(const ExtentId& id, std::size_t replicas) const;
  // The other nodes that may hold the extent, the likeliest first.
  std::vector<std::string> OthersOf(const ExtentId& id) const;

 private:
  const std::string node_;
  const std::uint8_t replicas_;
  const ShownState& shown_;
  const StripeReads& stripes_;
};

}  // namespace ffrecord::server
