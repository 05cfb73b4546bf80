#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <ffrecord/result.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/base/clock.h"
#include "libffrecord/net/protocol/storage_messages.h"
#include "server/service/connection/caller.h"
#include "server/service/connection/connection_context.h"
#include "server/service/connection/connection_jobs.h"
#include "server/service/connection/conversation.h"
#include "server/service/connection/frame.h"
#include "server/service/connection/open_put.h"
#include "server/service/connection/slab_desk.h"

namespace ffrecord::server {

// The requests of one connection that bring extents, one extent at a time: protocol.md, "Storing".
//
// Thread-bound to the worker of the connection; writing runs in jobs, in strands of the disks.
// Shares the open extent with them. Errors end the connection.
class UploadDesk {
 public:
  // All of them outlive this; `context` also its jobs.
  UploadDesk(const ConnectionContext& context, SlabDesk& slabs, Conversation& conversation,
             Caller& caller, ConnectionJobs& jobs)
      : context_(context),
        slabs_(slabs),
        conversation_(conversation),
        caller_(caller),
        jobs_(jobs) {}
  UploadDesk(const UploadDesk&) = delete;
  UploadDesk& operator=(const UploadDesk&) = delete;

  Result<void> TakePutBegin(const Frame& frame);
  Result<void> TakePutData(const Frame& frame);
  Result<void> TakePutPull(const Frame& frame);
  Result<void> TakePutSeal(const Frame& frame);

  bool is_open() const noexcept { return put_ != nullptr; }  // Between a begin and its seal.
  // Drops the open extent: a piece of it that comes after all is out of place.
  void Drop() noexcept { put_ = nullptr; }
  // Drops it if nothing has come of it for the grace of uploads.
  void DropSilent(Clock::time_point now);

 private:
  // Gives a job the piece of an upload that it is to write.
  using PieceSource = std::function<Result<PooledBuffer>()>;

  Result<void> Continue(const ExtentId& id, std::uint64_t offset_bytes, std::uint64_t size_bytes);
  Result<std::shared_ptr<const ClientSlab>> SlabOf(const net::PutPull& pull) const;
  Result<void> FetchPull(const FrameHeader& header, const net::RemoteRegion& source,
                         std::size_t size_bytes);
  Result<void> AddPull(const FrameHeader& header, const std::shared_ptr<OpenPut>& put,
                       PieceSource source);

  const ConnectionContext& context_;
  SlabDesk& slabs_;
  Conversation& conversation_;
  Caller& caller_;
  ConnectionJobs& jobs_;
  std::shared_ptr<OpenPut> put_;
  std::uint64_t next_offset_bytes_ = 0;  // In the open extent.
  Clock::time_point heard_;              // When it last went on.
};

}  // namespace ffrecord::server
