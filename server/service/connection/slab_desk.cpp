#include "server/service/connection/slab_desk.h"

#include <span>
#include <string>
#include <utility>

#include "libffrecord/net/protocol/storage_messages.h"
#include "libffrecord/net/transport/descriptor_passing.h"
#include "libffrecord/net/transport/remote_memory.h"
#include "server/service/connection/connection_jobs.h"
#include "server/service/connection/replies.h"

namespace ffrecord::server {

Result<ClientSlab> SlabDesk::Make(const net::SlabRegister& request) {
  ClientSlab slab{.size_bytes = request.size_bytes, .use = request.use};
  const bool is_read = request.use == net::SlabRegister::Use::kIsRead;
  if (net::RemoteMemory* const memory = conversation_.endpoint().remote_memory()) {
    if (!request.remote) return OutOfPlace("SLAB_REG over RDMA without an address");
    slab.remote = *request.remote;
    if (is_read && !staging_)
      staging_ = FFR_TRY(memory->MakeStaging(ConnectionJobs::kPieceCountMax *
                                             std::size_t{net::PutPull::kSizeBytesMax}));
    return slab;
  }
  net::DescriptorPassing* const descriptors = conversation_.endpoint().descriptors();
  if (descriptors == nullptr)
    return Error{ErrorCode::kInvalidArgument,
                 "slabs are for clients of the same machine, on the local socket, or for RDMA"};
  ForeignFd descriptor = descriptors->TakeDescriptor();
  if (!descriptor || request.remote) return OutOfPlace("SLAB_REG without a descriptor");
  if (is_read) {
    slab.source = FFR_TRY(net::UploadSlab::Take(std::move(descriptor), request.size_bytes));
    return slab;
  }
  slab.mapped = FFR_TRY(net::RemoteSlab::Map(std::move(descriptor), request.size_bytes));
  const auto bytes = FFR_TRY(slab.mapped->At(0, request.size_bytes));
  slab.guard = SigbusGuard(bytes.data(), bytes.size(), SigbusGuard::Access::kReadWrite);
  return slab;
}

Result<std::shared_ptr<const ClientSlab>> SlabDesk::Find(std::uint32_t slab_id,
                                                         net::SlabRegister::Use use) const {
  const auto slab = slab_id <= slabs_.size() ? slabs_[slab_id - 1] : nullptr;
  if (slab && slab->use == use) return slab;
  return Error{ErrorCode::kInvalidArgument,
               "no slab " + std::to_string(slab_id) +
                   (use == net::SlabRegister::Use::kIsRead ? " to upload from" : " to read into") +
                   " was registered on this connection"};
}

Result<void> SlabDesk::TakeSlabRegister(const Frame& frame) {
  const auto request = FFR_TRY(net::SlabRegister::Decode(frame.body));
  auto& place = slabs_[request.slab_id - 1];
  place = nullptr;
  std::uint64_t sum_bytes = request.size_bytes;
  for (const auto& slab : slabs_) sum_bytes += slab ? slab->size_bytes : 0;
  auto slab = Make(request);
  if (!slab) return conversation_.Refuse(frame.header, slab.error());
  if (sum_bytes > net::kSlabBytesMax)
    return conversation_.SendError(
        frame.header.request_id,
        {ErrorCode::kInvalidArgument, "the slabs of a connection have at most 4 GiB together"});
  place = std::make_shared<const ClientSlab>(std::move(slab).value());
  return conversation_.SendBody(net::ReplyTo(FrameType::kSlabRegister), frame.header.request_id,
                                {});
}

// Jobs end in their order, and pieces beyond ConnectionJobs::kPieceCountMax are held: so the place
// that was used longest ago is free.
PooledBuffer SlabDesk::NextStaging(std::size_t size_bytes) {
  const std::size_t begin = staging_next_ * net::PutPull::kSizeBytesMax;
  staging_next_ = (staging_next_ + 1) % ConnectionJobs::kPieceCountMax;
  return {new std::span(staging_->subspan(begin, size_bytes)),
          [staging = staging_](std::span<std::byte>* dead) { delete dead; }};
}

}  // namespace ffrecord::server
