#include "libffrecord/net/protocol/plan_messages.h"

#include "libffrecord/base/assert.h"
#include "libffrecord/net/protocol/fields.h"
#include "libffrecord/net/protocol/messages.h"

namespace ffrecord::net {
namespace {

bool IsSound(const PlanSet& plan) {
  return plan.plan_id != 0 && plan.first <= plan.end && (plan.block == 0) == (plan.window == 0) &&
         plan.world_size > 0 && plan.rank < plan.world_size && plan.step_size >= plan.world_size;
}

}  // namespace

std::vector<std::byte> PlanSet::Encode() const {
  FFR_ASSERT(name.size() <= kNameSizeMax);
  return EncodeFields(plan_id, order, revision, seed, epoch, first, end, block, window, step_size,
                      world_size, rank, name);
}

Result<PlanSet> PlanSet::Decode(std::span<const std::byte> body) {
  PlanSet plan;
  if (!DecodeFields(body, plan.plan_id, plan.order, plan.revision, plan.seed, plan.epoch,
                    plan.first, plan.end, plan.block, plan.window, plan.step_size, plan.world_size,
                    plan.rank, plan.name) ||
      !IsSound(plan))
    return MalformedBody("PLAN_SET");
  FFR_TRY(CheckName(plan.name));
  return plan;
}

std::vector<std::byte> PlanCancel::Encode() const { return EncodeFields(plan_id); }

Result<PlanCancel> PlanCancel::Decode(std::span<const std::byte> body) {
  PlanCancel cancel;
  if (!DecodeFields(body, cancel.plan_id)) return MalformedBody("PLAN_CANCEL");
  return cancel;
}

}  // namespace ffrecord::net
