#include "client/session/slabs.h"

#include <utility>

#include "libffrecord/net/protocol/batch_messages.h"

namespace ffrecord::client {
namespace {

using net::FrameType;
using Use = net::SlabRegister::Use;

// The smallest that comes from a slab.
constexpr std::size_t kBlockBytes = std::size_t{64} << 10;
// What stands for the memory of uploads among the slabs of a connection: no slab has that number.
constexpr std::uint64_t kUploads = 0;

struct Registered {
  std::uint32_t slab_id;
  std::uint64_t request;
};

// Tells the daemon of one more slab, without waiting for its answer.
Result<Registered> Register(net::Channel& channel, const net::Slab& slab, Use use) {
  const std::uint64_t size_bytes = slab.bytes().size();
  if (channel.slabs.size() >= net::kSlabCountMax ||
      channel.slab_bytes + size_bytes > net::kSlabBytesMax)
    return channel.Break({ErrorCode::kUnavailable,
                          channel.peer() + " already has as many slabs as a connection may have"});
  net::SlabRegister message{
      static_cast<std::uint32_t>(channel.slabs.size() + 1), size_bytes, {}, use};
  std::uint64_t request = 0;
  if (channel.transport() == "rdma") {
    using Reach = net::Endpoint::Reach;
    const Reach reach = use == Use::kIsRead ? Reach::kRead : Reach::kWrite;
    message.remote = FFR_TRY(channel.Expose(slab.bytes(), reach));
    request = FFR_TRY(channel.Send(FrameType::kSlabRegister, message.Encode()));
  } else {
    request =
        FFR_TRY(channel.SendDescriptor(FrameType::kSlabRegister, message.Encode(), slab.fd()));
  }
  channel.slab_bytes += size_bytes;
  return Registered{message.slab_id, request};
}

}  // namespace

Result<std::uint32_t> SlabIdOf(net::Channel& channel, const SharedSlab& slab,
                               std::vector<std::uint64_t>& requests) {
  if (const auto found = channel.slabs.find(slab.number); found != channel.slabs.end())
    return found->second;
  const auto registered = FFR_TRY(Register(channel, slab.memory, Use::kIsWritten));
  requests.push_back(registered.request);
  channel.slabs.emplace(slab.number, registered.slab_id);
  return registered.slab_id;
}

Result<void> ExposeSlab(net::Channel& channel, net::Deadline deadline) {
  SlabPool& pool = SlabPool::Process();
  const PooledBuffer block = FFR_TRY(pool.Take(kBlockBytes));
  const auto place = pool.Find(*block);
  if (!place) return {};  // The slabs are all in use.
  std::vector<std::uint64_t> requests;
  if (auto known = SlabIdOf(channel, *place->slab, requests); !known)
    return channel.Break(std::move(known).error());
  for (const std::uint64_t request : requests)
    if (auto told = channel.Receive(request, deadline, "an answer to SLAB_REG"); !told)
      return channel.Break(std::move(told).error());
  return {};
}

Result<void> ExposeUploads(net::Channel& channel, net::Deadline deadline) {
  // Once it is exposed it is within the daemon's reach, so it is the connection's, whatever comes.
  auto& uploads = channel.uploads.emplace();
  uploads.slab = FFR_TRY(net::Slab::Make(std::uint64_t{kUploadPieceBytes} * kUploadPieceCount,
                                         net::Slab::Peer::kReads));
  const auto registered = FFR_TRY(Register(channel, uploads.slab, Use::kIsRead));
  channel.slabs.emplace(kUploads, registered.slab_id);
  FFR_TRY(channel.Receive(registered.request, deadline, "an answer to SLAB_REG"));
  uploads.slab_id = registered.slab_id;
  return {};
}

}  // namespace ffrecord::client
