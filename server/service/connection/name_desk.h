#pragma once

#include <ffrecord/result.h>

#include "server/service/catalog/names.h"
#include "server/service/connection/caller.h"
#include "server/service/connection/connection_jobs.h"
#include "server/service/connection/conversation.h"
#include "server/service/connection/frame.h"

namespace ffrecord::server {

// The requests of one connection that look up, list, publish and remove names: protocol.md,
// "Names".
//
// Thread-bound to the worker of the connection; what waits runs in jobs, which may outlive this.
// Owns nothing. Errors end the connection.
class NameDesk {
 public:
  // All of them outlive this; `names` also its jobs.
  NameDesk(Names& names, Conversation& conversation, Caller& caller, ConnectionJobs& jobs)
      : names_(names), conversation_(conversation), caller_(caller), jobs_(jobs) {}
  NameDesk(const NameDesk&) = delete;
  NameDesk& operator=(const NameDesk&) = delete;

  Result<void> TakePublish(const Frame& frame);
  Result<void> TakeCheckRoom(const Frame& frame);
  Result<void> TakeResolve(const Frame& frame);
  Result<void> TakeList(const Frame& frame);
  Result<void> TakeDelete(const Frame& frame);

 private:
  Names& names_;
  Conversation& conversation_;
  Caller& caller_;
  ConnectionJobs& jobs_;
};

}  // namespace ffrecord::server
