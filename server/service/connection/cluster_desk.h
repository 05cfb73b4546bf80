#pragma once

#include <ffrecord/result.h>

#include "server/service/connection/caller.h"
#include "server/service/connection/connection_jobs.h"
#include "server/service/connection/conversation.h"
#include "server/service/connection/frame.h"

namespace ffrecord::server {

class ClusterService;

// The requests of one connection about a cluster: its map for clients, changes by its
// administrators, and questions of its nodes; protocol.md, "Clusters".
//
// Thread-bound to the worker of the connection; what waits runs in jobs, which may outlive this.
// Owns nothing. Errors end the connection.
class ClusterDesk {
 public:
  // All of them outlive this; `service` also its jobs. Null: the daemon is in no cluster.
  ClusterDesk(ClusterService* service, Conversation& conversation, Caller& caller,
              ConnectionJobs& jobs)
      : service_(service), conversation_(conversation), caller_(caller), jobs_(jobs) {}
  ClusterDesk(const ClusterDesk&) = delete;
  ClusterDesk& operator=(const ClusterDesk&) = delete;

  Result<void> TakeClusterMap(const Frame& frame);
  Result<void> TakeSetMember(const Frame& frame);
  Result<void> TakeSetLevel(const Frame& frame);
  Result<void> TakeMetadata(const Frame& frame);  // METADATA_HISTORY, METADATA_LIST, METADATA_PUT.
  Result<void> TakePeerQuestion(const Frame& frame);

 private:
  // The cluster's service, if this client has the frame's right there. Null: the client has the
  // refusal.
  Result<ClusterService*> ServiceFor(const Frame& frame);

  ClusterService* const service_;
  Conversation& conversation_;
  Caller& caller_;
  ConnectionJobs& jobs_;
};

}  // namespace ffrecord::server
