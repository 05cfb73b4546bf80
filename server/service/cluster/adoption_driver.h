#pragma once

#include <ffrecord/result.h>

#include "server/service/cluster/adoption.h"
#include "server/service/cluster/client_desk.h"
#include "server/service/cluster/cluster_options.h"
#include "server/service/cluster/node_extents.h"
#include "server/service/cluster/node_machines.h"
#include "server/service/cluster/state_keeper.h"

namespace ffrecord::server {

// Publishes a daemon's own names in its cluster, as a client would that has just uploaded all of
// their extents to this node alone.
//
// Threads: the node's thread alone, which waits for no disk: the keeper's thread writes the
// records. Ownership: ClusterService owns it; it borrows the adoption and the rooms.
class AdoptionDriver {
 public:
  AdoptionDriver(const ClusterOptions& options, Adoption& adoption, NodeMachines& machines,
                 ClientDesk& clients, NodeExtents& extents, StateKeeper& keeper)
      : options_(options),
        adoption_(adoption),
        machines_(machines),
        clients_(clients),
        extents_(extents),
        keeper_(keeper) {}

  // Begins with the names that are due.
  void Step(cluster::TimePoint now);
  // When to step next.
  cluster::TimePoint wake() const;

 private:
  bool MayAdopt() const;
  void Begin(const Adoption::Name& name);
  void Publish(const Adoption::Name& name);
  bool WasAdopted(const Adoption::Name& name) const;
  void End(const Adoption::Name& name, const Result<void>& outcome);

  const ClusterOptions& options_;
  Adoption& adoption_;
  NodeMachines& machines_;
  ClientDesk& clients_;
  NodeExtents& extents_;
  StateKeeper& keeper_;
};

}  // namespace ffrecord::server
