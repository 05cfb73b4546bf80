#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/net/protocol/storage_messages.h"
#include "server/cluster/machine.h"
#include "server/service/cluster/node_extents.h"
#include "server/service/cluster/peers.h"
#include "server/service/cluster/shown_state.h"
#include "server/service/cluster/stripe_doctor.h"
#include "server/service/metrics.h"

namespace ffrecord::server {

// Moves extents as the machines of a node want it: fetches, stores, pulls and drops them.
//
// Threads: any. Each call but Drop() waits for disks and for other nodes. Ownership: ClusterService
// owns it; it borrows the state, the extents, the peers and the doctor.
class ExtentMover {
 public:
  using TimePoint = cluster::TimePoint;
  // Whether that extent may be sealed here now. Waits for the node's thread.
  using CheckSeal = std::function<Result<void>(const net::PutSeal& seal)>;
  // Counts of the work of repair since the start.
  struct Counters {
    Counter pulled, pulled_bytes, rebuilt, dropped;
  };

  ExtentMover(std::string node, const ShownState& shown, NodeExtents& extents, Peers& peers,
              StripeDoctor& doctor, CheckSeal check_seal)
      : node_(std::move(node)),
        shown_(shown),
        extents_(extents),
        peers_(peers),
        doctor_(doctor),
        check_seal_(std::move(check_seal)) {}

  Result<cluster::Body> Fetch(const cluster::FetchBody& call, TimePoint deadline);
  Result<void> Store(const cluster::StoreBody& call, TimePoint deadline);
  Result<void> Pull(const cluster::PullExtent& call, TimePoint deadline);
  void Drop(const ExtentId& id);

  const Counters& counters() const noexcept { return counters_; }

 private:
  std::vector<std::string> Others(std::vector<std::string> nodes) const;
  Result<cluster::Body> BytesOf(const cluster::PullExtent& call, TimePoint deadline);
  Result<cluster::Body> Restore(const ManifestExtent& extent, Error why);

  const std::string node_;
  const ShownState& shown_;
  NodeExtents& extents_;
  Peers& peers_;
  StripeDoctor& doctor_;
  const CheckSeal check_seal_;
  Counters counters_;
};

}  // namespace ffrecord::server
