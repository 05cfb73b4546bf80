#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <ffrecord/result.h>

#include "libffrecord/base/buffer_pool.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "server/service/connection/conversation.h"
#include "server/service/connection/frame.h"
#include "server/service/read/run_plan.h"

namespace ffrecord::server {

// The memory of a client that it has registered on its connection: to read batches into, and to
// upload from; protocol.md, "Shared memory" and "RDMA".
//
// Thread-bound to the worker of the connection. Shares each slab with the reads and jobs that use
// it: they keep it mapped beyond its place here. Errors end the connection.
class SlabDesk {
 public:
  // `conversation` outlives this.
  explicit SlabDesk(Conversation& conversation) : conversation_(conversation) {}
  SlabDesk(const SlabDesk&) = delete;
  SlabDesk& operator=(const SlabDesk&) = delete;

  Result<void> TakeSlabRegister(const Frame& frame);

  // Fails with kInvalidArgument if there is none of that number for that use.
  Result<std::shared_ptr<const ClientSlab>> Find(std::uint32_t slab_id,
                                                 net::SlabRegister::Use use) const;
  // A place for a piece that is fetched over RDMA: that which was used longest ago, of as many as
  // there may be pieces. Requires a slab to upload from that was registered over RDMA.
  PooledBuffer NextStaging(std::size_t size_bytes);

 private:
  Result<ClientSlab> Make(const net::SlabRegister& request);

  Conversation& conversation_;
  std::array<std::shared_ptr<const ClientSlab>, net::kSlabCountMax> slabs_;  // By number - 1.
  // Over RDMA, once there is a slab to upload from: a place for each piece that may be written at
  // one time, and which one is next.
  PooledBuffer staging_;
  std::size_t staging_next_ = 0;
};

}  // namespace ffrecord::server
