#include "client/session/slabs.h"

#include <utility>

#include "libffrecord/net/protocol/batch_messages.h"

namespace ffrecord::client {
namespace {

using net::FrameType;

// The smallest that comes from a slab.
constexpr std::size_t kBlockBytes = std::size_t{64} << 10;

}  // namespace

Result<std::uint32_t> SlabIdOf(net::Channel& channel, const SharedSlab& slab,
                               std::vector<std::uint64_t>& requests) {
  if (const auto found = channel.slabs.find(slab.number); found != channel.slabs.end())
    return found->second;
  const std::uint64_t size_bytes = slab.memory.bytes().size();
  if (channel.slabs.size() >= net::kSlabCountMax ||
      channel.slab_bytes + size_bytes > net::kSlabBytesMax)
    return channel.Break({ErrorCode::kUnavailable,
                          channel.peer() + " knows as many slabs as a connection may have"});
  net::SlabRegister slab_register{static_cast<std::uint32_t>(channel.slabs.size() + 1), size_bytes};
  if (channel.transport() == "rdma") {
    slab_register.remote = FFR_TRY(channel.Expose(slab.memory.bytes()));
    requests.push_back(FFR_TRY(channel.Send(FrameType::kSlabRegister, slab_register.Encode())));
  } else {
    requests.push_back(FFR_TRY(channel.SendDescriptor(FrameType::kSlabRegister,
                                                      slab_register.Encode(), slab.memory.fd())));
  }
  channel.slabs.emplace(slab.number, slab_register.slab_id);
  channel.slab_bytes += size_bytes;
  return slab_register.slab_id;
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

}  // namespace ffrecord::client
