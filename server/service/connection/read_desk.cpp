#include "server/service/connection/read_desk.h"

#include <algorithm>
#include <string>
#include <utility>

#include "libffrecord/net/transport/packet_marks.h"
#include "libffrecord/pace/marks.h"
#include "server/service/cluster/cluster_service.h"
#include "server/service/cluster/doubted_extents.h"
#include "server/service/connection/replies.h"
#include "server/service/origin/origin_cache.h"

namespace ffrecord::server {

Result<void> ReadDesk::TakeExtentBind(const Frame& frame) {
  const auto bind = FFR_TRY(net::ExtentBind::Decode(frame.body));
  // The names that hold the extents are looked at below.
  if (auto allowed = caller_.Allow(frame); !allowed)
    return conversation_.SendError(frame.header.request_id, allowed.error());
  std::vector<bool> is_referenced;
  if (!caller_.prefix().empty())
    is_referenced = context_.names.AreReferenced(caller_.prefix(), bind.ids);
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
  return conversation_.SendBody(net::ReplyTo(FrameType::kExtentBind), frame.header.request_id,
                                reply.Encode());
}

// An extent with an origin is never taken from the uploads: anybody may upload under its id.
ExtentPtr ReadDesk::FindExtent(const ExtentId& id) const {
  if (context_.origins != nullptr && context_.origins->Knows(id)) return context_.origins->Find(id);
  ExtentPtr found = context_.extents.Find(id);
  if (!found && context_.cluster != nullptr) found = context_.cluster->stripe_reads().Find(id);
  return found;
}

// One that may come, or go, between two reads: as it is now.
ExtentPtr ReadDesk::Renewed(const ExtentPtr& extent, std::uint8_t options) const {
  if (context_.origins != nullptr && context_.origins->Knows(extent->id))
    return context_.origins->Use(extent, (options & net::BatchRead::kDoubted) != 0
                                             ? OriginCache::Trust::kDoubted
                                             : OriginCache::Trust::kTrusted);
  return context_.cluster->stripe_reads().Use(extent, (options & net::BatchRead::kBring) != 0);
}

// A node of a cluster leaves what is damaged here to those that have it undamaged. A daemon outside
// of a cluster, or a node while nobody else is known to have it, serves what is left of it.
void ReadDesk::DropDamaged(ExtentPtr& place) const {
  if (context_.cluster != nullptr && place && place->is_bad.load(std::memory_order_relaxed) &&
      context_.cluster->extents().IsElsewhere(place->id))
    place = nullptr;
}

bool ReadDesk::ReleaseDeleted(Clock::time_point now) {
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

Result<void> ReadDesk::TakeBatchRead(const Frame& frame) {
  const auto batch = FFR_TRY(net::BatchRead::Decode(frame.body));
  if (auto allowed = caller_.Allow(frame); !allowed)
    return conversation_.SendError(frame.header.request_id, allowed.error());
  std::uint64_t size_bytes = 0;
  for (const auto& entry : batch.entries) size_bytes += entry.size_bytes;
  if (size_bytes > net::kBatchSizeBytesMax)
    return conversation_.SendError(
        frame.header.request_id,
        {ErrorCode::kInvalidArgument,
         "a batch of " + std::to_string(size_bytes) + " bytes: a batch has at most 4 GiB"});
  if (reads_.count() >= kBatchCountMax ||
      reads_.entry_count() + batch.entries.size() > kEntryCountMax) {
    context_.metrics.busy_batches.Add();
    return conversation_.SendBusy(frame.header.request_id);
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
    auto found = slabs_.Find(batch.slab_id, net::SlabRegister::Use::kIsWritten);
    if (!found) return conversation_.SendError(frame.header.request_id, found.error());
    slab = std::move(found).value();
  }
  const TrafficMark mark = pace::MarkOf(net::TrafficOf(batch.traffic_class));
  if (std::exchange(mark_, mark) != mark) net::MarkPackets(conversation_.endpoint(), mark);
  reads_.Begin(frame.header.request_id, batch, table_, std::move(slab));
  return {};
}

Result<void> ReadDesk::TakeGrant(const Frame& frame) {
  const auto grant = FFR_TRY(net::Grant::Decode(frame.body));
  reads_.Grant(grant.request_id, grant.total_bytes);
  return {};
}

Result<void> ReadDesk::TakeCancel(const Frame& frame) {
  reads_.Cancel(FFR_TRY(net::Cancel::Decode(frame.body)).request_id);
  return {};
}

Result<void> ReadDesk::TakePlanSet(const Frame& frame) {
  const auto plan = caller_.Permitted(frame, &net::PlanSet::name);
  if (!plan) return conversation_.Refuse(frame.header, plan.error());
  return jobs_.Add(frame.header, Kind::kPlan,
                   [plans = plans_, &context = context_, hint = plan.value(),
                    tenant = caller_.Tenant()]() -> Result<Reply> {
                     auto records = FFR_TRY(context.planned.Get(hint.name, hint.revision));
                     auto begun =
                         FFR_TRY(context.read_ahead.Begin(std::move(records), hint, tenant));
                     FFR_TRY(plans->Keep(hint.plan_id, std::move(begun)));
                     return Answer(FrameType::kPlanSet);
                   });
}

Result<void> ReadDesk::TakePlanCancel(const Frame& frame) {
  plans_->Drop(FFR_TRY(net::PlanCancel::Decode(frame.body)).plan_id);
  return {};
}

}  // namespace ffrecord::server
