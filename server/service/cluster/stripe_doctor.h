#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "server/cluster/machine.h"
#include "server/cluster/stripe_table.h"
#include "server/service/cluster/node_extents.h"
#include "server/service/cluster/peers.h"
#include "server/service/cluster/shown_state.h"

namespace ffrecord::server {

// Brings members of stripes that this node lacks: from other nodes, or computed from other members
// of the stripe.
//
// Threads: any; each call waits for other nodes and for disks. Ownership: ClusterService owns it;
// it borrows the state, the extents and the peers.
class StripeDoctor {
 public:
  StripeDoctor(std::string node, const ShownState& shown, NodeExtents& extents, Peers& peers)
      : node_(std::move(node)), shown_(shown), extents_(extents), peers_(peers) {}

  // Computes the member. `is_paced`: no faster than all pulls may be. Fails as RebuildMember().
  Result<std::vector<std::byte>> Rebuild(const cluster::StripePart& part,
                                         cluster::TimePoint deadline, bool is_paced);
  // Brings a member that a reader waits for into this node's store.
  Result<void> BringMember(const ManifestExtent& extent, const cluster::StripePlace& place);

 private:
  std::vector<std::size_t> OrderOf(const cluster::StripePart& part,
                                   const ClusterState& known) const;

  const std::string node_;
  const ShownState& shown_;
  NodeExtents& extents_;
  Peers& peers_;
};

}  // namespace ffrecord::server
