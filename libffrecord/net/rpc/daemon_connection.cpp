#include "libffrecord/net/rpc/daemon_connection.h"

#include <algorithm>

#include "libffrecord/base/assert.h"
#include "libffrecord/net/protocol/batch_messages.h"
#include "libffrecord/net/transport/remote_memory.h"

namespace ffrecord::net {
namespace {

// The smallest block that comes from a slab.
constexpr std::size_t kBlockBytes = std::size_t{64} << 10;

}  // namespace

Result<void> Connection::UseRail(RdmaLinks& links, std::size_t rail, Deadline deadline) {
  FFR_TRY(UseRdma(links, deadline));
  rail_ = rail;
  return {};
}

Result<std::uint32_t> Connection::Bind(std::uint64_t set, std::span<const ExtentId> ids,
                                       std::vector<std::uint64_t>& requests) {
  if (const auto found = bound_.find(set); found != bound_.end() && !found->second.is_outdated)
    return found->second.base;
  const auto count = static_cast<std::uint32_t>(ids.size());
  FFR_ASSERT(count <= kBoundExtentCountMax);
  if (count > kBoundExtentCountMax - bound_end_) {
    bound_.clear();  // Full: the others bind again when they come.
    bound_end_ = 0;
  }
  const std::uint32_t base = bound_end_;
  for (std::uint32_t done = 0; done < count;) {
    const std::uint32_t size = std::min(count - done, kBindCountMax);
    const auto part = ids.subspan(done, size);
    const ExtentBind bind{base + done, {part.begin(), part.end()}};
    requests.push_back(FFR_TRY(Send(FrameType::kExtentBind, bind.Encode())));
    done += size;
  }
  bound_.insert_or_assign(set, Bound{base, Clock::now()});
  bound_end_ = base + count;
  return base;
}

void Connection::NoteMissing(std::uint64_t set) {
  const auto found = bound_.find(set);
  if (found != bound_.end() && Clock::now() - found->second.at >= kBindEvery)
    found->second.is_outdated = true;
}

// Tells the daemon of one more slab, without waiting for its answer.
Result<Connection::Registered> Connection::Register(const Slab& slab, SlabRegister::Use use) {
  const std::uint64_t size_bytes = slab.bytes().size();
  if (slab_count_ >= kSlabCountMax || slab_bytes_ + size_bytes > kSlabBytesMax)
    return Break(
        {ErrorCode::kUnavailable, peer() + " already has as many slabs as a connection may have"});
  SlabRegister message{slab_count_ + 1, size_bytes, {}, use};
  std::uint64_t request = 0;
  if (RemoteMemory* const memory = remote_memory()) {
    using Reach = RemoteMemory::Reach;
    const Reach reach = use == SlabRegister::Use::kIsRead ? Reach::kRead : Reach::kWrite;
    message.remote = FFR_TRY(memory->Expose(slab.bytes(), reach));
    request = FFR_TRY(Send(FrameType::kSlabRegister, message.Encode()));
  } else {
    request = FFR_TRY(SendDescriptor(FrameType::kSlabRegister, message.Encode(), slab.fd()));
  }
  ++slab_count_;
  slab_bytes_ += size_bytes;
  return Registered{message.slab_id, request};
}

Result<std::uint32_t> Connection::SlabIdOf(const SharedSlab& slab,
                                           std::vector<std::uint64_t>& requests) {
  if (const auto found = slab_ids_.find(slab.number); found != slab_ids_.end())
    return found->second;
  const auto registered = FFR_TRY(Register(slab.memory, SlabRegister::Use::kIsWritten));
  requests.push_back(registered.request);
  slab_ids_.emplace(slab.number, registered.slab_id);
  return registered.slab_id;
}

bool Connection::HoldsRetiredSlab() const {
  return std::ranges::any_of(
      slab_ids_, [](const auto& known) { return SlabPool::Process().IsRetired(known.first); });
}

Result<void> Connection::ExposeSlab(Deadline deadline) {
  SlabPool& pool = SlabPool::Process();
  const PooledBuffer block = FFR_TRY(pool.Take(kBlockBytes));
  const auto place = pool.Find(*block);
  if (!place) return {};  // The slabs are all in use.
  std::vector<std::uint64_t> requests;
  if (auto known = SlabIdOf(*place->slab, requests); !known) return Break(std::move(known).error());
  for (const std::uint64_t request : requests)
    if (auto told = Receive(request, deadline, "an answer to SLAB_REG"); !told)
      return Break(std::move(told).error());
  return {};
}

Result<void> Connection::ExposeUploads(Deadline deadline) {
  if (!pulls() || uploads_) return {};
  // Once it is exposed it is within the daemon's reach, so it is the connection's, whatever comes.
  auto& uploads = uploads_.emplace();
  uploads.slab =
      FFR_TRY(Slab::Make(std::uint64_t{kUploadPieceBytes} * kUploadPieceCount, Slab::Peer::kReads));
  const auto registered = FFR_TRY(Register(uploads.slab, SlabRegister::Use::kIsRead));
  FFR_TRY(Receive(registered.request, deadline, "an answer to SLAB_REG"));
  uploads.slab_id = registered.slab_id;
  return {};
}

std::span<std::byte> Connection::upload_memory() noexcept {
  return upload_slab_id() == 0 ? std::span<std::byte>() : uploads_->slab.bytes();
}

}  // namespace ffrecord::net
