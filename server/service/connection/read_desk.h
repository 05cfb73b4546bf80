#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ffrecord/result.h>
#include <ffrecord/runtime.h>

#include "libffrecord/base/clock.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "server/service/connection/caller.h"
#include "server/service/connection/connection_context.h"
#include "server/service/connection/connection_jobs.h"
#include "server/service/connection/conversation.h"
#include "server/service/connection/frame.h"
#include "server/service/connection/slab_desk.h"
#include "server/service/read/batch_reads.h"
#include "server/service/read_ahead/plans.h"
#include "server/storage/extent_store.h"

namespace ffrecord::server {

// The requests of one connection to bind extents to short numbers, to read batches of them, and to
// read ahead: protocol.md, "Batches" and "Plans".
//
// Thread-bound to the worker of the connection; never waits. Shares the extents that are bound,
// which keeps their files open, and owns the connection's plans. The batches are those of
// BatchReads, which the connection drives. Errors end the connection.
class ReadDesk {
 public:
  static constexpr std::size_t kBatchCountMax = 8;  // At one time; BUSY beyond.
  // Maximum entries over all batches of a connection; an entry takes some 150 bytes.
  static constexpr std::size_t kEntryCountMax = 2 * net::kBatchEntryCountMax;

  // All of them outlive this; `context` also its jobs.
  ReadDesk(const ConnectionContext& context, BatchReads& reads, const SlabDesk& slabs,
           Conversation& conversation, Caller& caller, ConnectionJobs& jobs)
      : context_(context),
        reads_(reads),
        slabs_(slabs),
        conversation_(conversation),
        caller_(caller),
        jobs_(jobs) {}
  ReadDesk(const ReadDesk&) = delete;
  ReadDesk& operator=(const ReadDesk&) = delete;

  Result<void> TakeExtentBind(const Frame& frame);
  Result<void> TakeBatchRead(const Frame& frame);
  Result<void> TakeGrant(const Frame& frame);
  Result<void> TakeCancel(const Frame& frame);
  Result<void> TakePlanSet(const Frame& frame);
  Result<void> TakePlanCancel(const Frame& frame);

  // Releases bound extents that were deleted since: for a copy on another disk at once. At a node
  // of a cluster, which deletes what others have or nobody wants after its grace, the others after
  // a while: so an idle client keeps no disk full. True: there are such to be looked at again.
  bool ReleaseDeleted(Clock::time_point now);

 private:
  struct DeletedPlace {
    std::uint32_t index;
    const Extent* extent;
    Clock::time_point seen;
  };

  ExtentPtr FindExtent(const ExtentId& id) const;
  ExtentPtr Renewed(const ExtentPtr& extent, std::uint8_t options) const;
  void DropDamaged(ExtentPtr& place) const;

  const ConnectionContext& context_;
  BatchReads& reads_;
  const SlabDesk& slabs_;
  Conversation& conversation_;
  Caller& caller_;
  ConnectionJobs& jobs_;
  TrafficMark mark_;                          // The mark of packets that leave now.
  std::vector<ExtentPtr> table_;              // The extents that are bound, by number.
  std::vector<DeletedPlace> deleted_places_;  // By index, as found last.
  std::shared_ptr<Plans> plans_ = std::make_shared<Plans>();  // Jobs add to them.
};

}  // namespace ffrecord::server
