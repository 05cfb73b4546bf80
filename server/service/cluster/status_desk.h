#pragma once

#include <functional>
#include <optional>
#include <string>

#include <ffrecord/result.h>

#include "libffrecord/base/clock.h"
#include "server/service/cluster/action_carrier.h"
#include "server/service/cluster/adoption.h"
#include "server/service/cluster/cluster_options.h"
#include "server/service/cluster/node_machines.h"
#include "server/service/cluster/node_status.h"
#include "server/service/cluster/peers.h"
#include "server/service/cluster/shown_state.h"

namespace ffrecord::server {

// A node's knowledge of its cluster, counted and described for operators.
//
// Threads: any; each call waits for the node's thread, which does the work and nothing else
// meanwhile. Ownership: ClusterService owns it; it borrows all that it looks at, and owns the last
// counts.
class StatusDesk {
 public:
  // `adoption`: null if the daemon does not adopt.
  StatusDesk(const ClusterOptions& options, NodeMachines& machines, const ShownState& shown,
             const ActionCarrier& carrier, const Peers& peers, const Adoption* adoption)
      : options_(options),
        machines_(machines),
        shown_(shown),
        carrier_(carrier),
        peers_(peers),
        adoption_(adoption) {}

  // The result of `describe` for the state of the machines. Fails with kUnavailable while this node
  // does not take part or once the service stops, and as `describe`.
  Result<std::string> Describe(
      const std::function<Result<std::string>(const cluster::ClusterNode&)>& describe);
  // Looks at every extent if something has changed. Fails with kUnavailable once the service stops.
  Result<NodeStatus> GetStatus();

 private:
  const ExtentCounts& CountExtents();
  NodeStatus MakeStatus();
  void AddAdoption(NodeStatus& status) const;
  void AddTrust(NodeStatus& status) const;
  void AddNodes(NodeStatus& status) const;
  void AddSilence(NodeStatus& status) const;

  const ClusterOptions& options_;
  NodeMachines& machines_;
  const ShownState& shown_;
  const ActionCarrier& carrier_;
  const Peers& peers_;
  const Adoption* const adoption_;
  const cluster::TimePoint started_ = Clock::now();
  std::optional<ExtentCounts> counts_;  // The node's thread's; none: nobody has asked.
};

}  // namespace ffrecord::server
