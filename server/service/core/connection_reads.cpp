// The frames of batches, epoch plans and slabs: protocol.md, "Batches", "Plans".

#include <algorithm>
#include <utility>

#include "libffrecord/net/transport/descriptor_passing.h"
#include "libffrecord/net/transport/remote_memory.h"
#include "server/service/cluster/cluster_service.h"
#include "server/service/cluster/doubted_extents.h"
#include "server/service/core/connection.h"
#include "server/service/core/replies.h"
#include "server/service/origin/origin_cache.h"

namespace ffrecord::server {
Result<void> Connection::TakeExtentBind(const FrameHeader& header) {
  const auto bind = FFR_TRY(net::ExtentBind::Decode(endpoint_->body()));
  // The names that hold the extents are looked at below.
  if (auto allowed = Allow(Right::kRead, token_ ? token_->prefix : ""); !allowed)
    return SendError(header.request_id, allowed.error());
  std::vector<bool> is_referenced;
  if (token_ && !token_->prefix.empty())
    is_referenced = context_.names.AreReferenced(token_->prefix, bind.ids);
  table_.resize(std::max(table_.size(), bind.first_index + bind.ids.size()));
  net::ExtentBindReply reply;
  reply.statuses.resize(bind.ids.size());
  for (std::size_t i = 0; i < bind.ids.size(); ++i) {
    ExtentPtr& place = table_[bind.first_index + i];
    const bool is_empty = bind.ids[i] == ExtentId{};
    const bool is_foreign = !is_referenced.empty() && !is_referenced[i];
    place = is_empty || is_foreign ? nullptr : FindExtent(bind.ids[i]);
    DropDamaged(place);
    if (is_empty || place) {
      ++reply.bound_count;
    } else {
      ++reply.missing_count;
      reply.statuses[i] = net::EntryStatus::kNotHere;
    }
  }
  if (reply.missing_count == 0) reply.statuses.clear();
  return SendBody(net::ReplyTo(FrameType::kExtentBind), header.request_id, reply.Encode());
}

// An extent with an origin is never taken from the uploads: anybody may upload under its id.
ExtentPtr Connection::FindExtent(const ExtentId& id) const {
  if (context_.origins != nullptr && context_.origins->Knows(id)) return context_.origins->Find(id);
  ExtentPtr found = context_.extents.Find(id);
  if (!found && context_.cluster != nullptr) found = context_.cluster->stripe_reads().Find(id);
  return found;
}

// One that may come, or go, between two reads: as it is now.
ExtentPtr Connection::Renewed(const ExtentPtr& extent, std::uint8_t options) const {
  if (context_.origins != nullptr && context_.origins->Knows(extent->id))
    return context_.origins->Use(extent, (options & net::BatchRead::kDoubted) != 0
                                             ? OriginCache::Trust::kDoubted
                                             : OriginCache::Trust::kTrusted);
  return context_.cluster->stripe_reads().Use(extent, (options & net::BatchRead::kBring) != 0);
}

// A node of a cluster leaves what is damaged here to those that have it undamaged. A daemon outside
// of a cluster, or a node while nobody else is known to have it, serves what is left of it.
void Connection::DropDamaged(ExtentPtr& place) const {
  if (context_.cluster != nullptr && place && place->is_bad.load(std::memory_order_relaxed) &&
      context_.cluster->extents().IsElsewhere(place->id))
    place = nullptr;
}

bool Connection::ReleaseDeleted(Clock::time_point now) {
  std::vector<DeletedPlace> left;
  auto known = deleted_places_.cbegin();
  for (std::uint32_t i = 0; i < table_.size(); ++i) {
    ExtentPtr& place = table_[i];
    if (!place || !place->is_deleted.load(std::memory_order_acquire)) continue;
    ExtentPtr other = FindExtent(place->id);
    // Never other bytes than those that were bound.
    if (other && (other->size_bytes != place->size_bytes || other->xxh3 != place->xxh3))
      other = nullptr;
    if (other || place->is_cached) {
      place = std::move(other);
      DropDamaged(place);
      continue;
    }
    while (known != deleted_places_.cend() && known->index < i) ++known;
    const bool is_known =
        known != deleted_places_.cend() && known->index == i && known->extent == place.get();
    const auto seen = is_known ? known->seen : now;
    if (context_.cluster != nullptr && now - seen >= context_.deleted_hold)
      place = nullptr;
    else
      left.push_back({i, place.get(), seen});
  }
  deleted_places_ = std::move(left);
  return context_.cluster != nullptr && !deleted_places_.empty();
}

Result<void> Connection::TakeBatchRead(const FrameHeader& header) {
  const auto batch = FFR_TRY(net::BatchRead::Decode(endpoint_->body()));
  if (auto allowed = Allow(Right::kRead, token_ ? token_->prefix : ""); !allowed)
    return SendError(header.request_id, allowed.error());
  std::uint64_t size_bytes = 0;
  for (const auto& entry : batch.entries) size_bytes += entry.size_bytes;
  if (size_bytes > net::kBatchSizeBytesMax)
    return SendError(header.request_id,
                     {ErrorCode::kInvalidArgument, "a batch of " + std::to_string(size_bytes) +
                                                       " bytes: a batch has at most 4 GiB"});
  if (reads_.count() >= kBatchCountMax ||
      reads_.entry_count() + batch.entries.size() > kEntryCountMax) {
    context_.metrics.busy_batches.Add();
    return SendBusy(header.request_id);
  }
  std::uint32_t used = UINT32_MAX;  // Entries of one extent often follow each other.
  for (const auto& entry : batch.entries) {
    if (entry.extent_index >= table_.size()) continue;
    ExtentPtr& place = table_[entry.extent_index];
    if (place && place->is_cached) {
      if (std::exchange(used, entry.extent_index) != entry.extent_index)
        place = Renewed(place, batch.options);
    } else {
      DropDamaged(place);
      const bool is_doubted = (batch.options & net::BatchRead::kDoubted) != 0;
      if (place && is_doubted && context_.cluster != nullptr)
        place = context_.cluster->stripe_reads().Doubted(place);
      else if (place && is_doubted)
        context_.doubts->Doubt(place);
    }
  }
  std::shared_ptr<const ClientSlab> slab;
  if (batch.slab_id != 0) {
    auto found = FindSlab(batch.slab_id, net::SlabRegister::Use::kIsWritten);
    if (!found) return SendError(header.request_id, found.error());
    slab = std::move(found).value();
  }
  reads_.Begin(header.request_id, batch, table_, std::move(slab));
  return {};
}

Result<void> Connection::TakeGrant() {
  const auto grant = FFR_TRY(net::Grant::Decode(endpoint_->body()));
  reads_.Grant(grant.request_id, grant.total_bytes);
  return {};
}

Result<void> Connection::TakeCancel() {
  reads_.Cancel(FFR_TRY(net::Cancel::Decode(endpoint_->body())).request_id);
  return {};
}

Result<void> Connection::TakePlanSet(const FrameHeader& header) {
  const auto plan = Permitted(Right::kRead, &net::PlanSet::name);
  if (!plan) return Refuse(header, plan.error());
  return AddJob(header, Kind::kPlan,
                [plans = plans_, &context = context_, hint = plan.value(),
                 tenant = Tenant()]() -> Result<Reply> {
                  auto records = FFR_TRY(context.planned.Get(hint.name, hint.revision));
                  auto begun = FFR_TRY(context.read_ahead.Begin(std::move(records), hint, tenant));
                  FFR_TRY(plans->Keep(hint.plan_id, std::move(begun)));
                  return Answer(FrameType::kPlanSet);
                });
}

Result<void> Connection::TakePlanCancel() {
  plans_->Drop(FFR_TRY(net::PlanCancel::Decode(endpoint_->body())).plan_id);
  return {};
}

// Frames go on over the queue pair; the connection they came by stays below it.
Result<void> Connection::TakeRdmaConnect(const FrameHeader& header) {
  if (context_.rdma == nullptr || transport() != "tcp")
    return SendError(header.request_id,
                     {ErrorCode::kUnavailable, "this daemon does not offer RDMA here"});
  if (reads_.count() > 0 || !jobs_.empty() || put_)
    return OutOfPlace("RDMA_CONNECT while requests are under way");
  const Transport before = TransportOf(transport());
  auto accepted = context_.rdma->Accept(endpoint_);
  if (!accepted) return Refuse(header, accepted.error());
  endpoint_ = std::move(accepted).value();
  endpoint_->SetLimits(net::FrameLimits{});
  const Transport now = TransportOf(transport());
  context_.metrics.connections[before].Remove();
  context_.metrics.connections[now].Add();
  context_.metrics.connections_opened[now].Add();
  return {};
}

Result<ClientSlab> Connection::TakeSlab(const net::SlabRegister& request) {
  ClientSlab slab{.size_bytes = request.size_bytes, .use = request.use};
  const bool is_read = request.use == net::SlabRegister::Use::kIsRead;
  if (net::RemoteMemory* const memory = endpoint_->remote_memory()) {
    if (!request.remote) return OutOfPlace("SLAB_REG over RDMA without an address");
    slab.remote = *request.remote;
    if (is_read && !staging_)
      staging_ =
          FFR_TRY(memory->MakeStaging(kPutDataCountMax * std::size_t{net::PutPull::kSizeBytesMax}));
    return slab;
  }
  net::DescriptorPassing* const descriptors = endpoint_->descriptors();
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

Result<std::shared_ptr<const ClientSlab>> Connection::FindSlab(std::uint32_t slab_id,
                                                               net::SlabRegister::Use use) const {
  const auto slab = slab_id <= slabs_.size() ? slabs_[slab_id - 1] : nullptr;
  if (slab && slab->use == use) return slab;
  return Error{ErrorCode::kInvalidArgument,
               "no slab " + std::to_string(slab_id) +
                   (use == net::SlabRegister::Use::kIsRead ? " to upload from" : " to read into") +
                   " was registered on this connection"};
}

Result<void> Connection::TakeSlabRegister(const FrameHeader& header) {
  const auto request = FFR_TRY(net::SlabRegister::Decode(endpoint_->body()));
  auto& place = slabs_[request.slab_id - 1];
  place = nullptr;
  std::uint64_t sum_bytes = request.size_bytes;
  for (const auto& slab : slabs_) sum_bytes += slab ? slab->size_bytes : 0;
  auto slab = TakeSlab(request);
  if (!slab) return Refuse(header, slab.error());
  if (sum_bytes > net::kSlabBytesMax)
    return SendError(header.request_id, {ErrorCode::kInvalidArgument,
                                         "the slabs of a connection have at most 4 GiB together"});
  place = std::make_shared<const ClientSlab>(std::move(slab).value());
  return SendBody(net::ReplyTo(FrameType::kSlabRegister), header.request_id, {});
}

}  // namespace ffrecord::server
