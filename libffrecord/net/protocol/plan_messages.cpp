#include "libffrecord/net/protocol/plan_messages.h"

#include <string_view>
#include <utility>

#include "libffrecord/base/assert.h"
#include "libffrecord/base/cursor.h"
#include "libffrecord/net/protocol/messages.h"

namespace ffrecord::net {
namespace {

Error Malformed(std::string_view message) {
  return Error{ErrorCode::kCorruption, std::string(message) + ": the body is malformed"};
}

bool IsSound(const PlanSet& plan) {
  return plan.plan_id != 0 && plan.first <= plan.end && (plan.block == 0) == (plan.window == 0) &&
         plan.world_size > 0 && plan.rank < plan.world_size && plan.step_size >= plan.world_size;
}

}  // namespace

std::vector<std::byte> PlanSet::Encode() const {
  FFR_ASSERT(name.size() <= kNameSizeMax);
  ByteWriter writer;
  writer.Put(plan_id);
  writer.Put(order);
  for (const std::uint64_t field : {revision, seed, epoch, first, end}) writer.Put(field);
  for (const std::uint32_t field : {block, window, step_size, world_size, rank}) writer.Put(field);
  writer.Put(static_cast<std::uint16_t>(name.size()));
  writer.PutText(name);
  return std::move(writer).Take();
}

Result<PlanSet> PlanSet::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  PlanSet plan;
  plan.plan_id = reader.Take<std::uint32_t>();
  plan.order = reader.Take<std::uint32_t>();
  for (std::uint64_t* const field :
       {&plan.revision, &plan.seed, &plan.epoch, &plan.first, &plan.end})
    *field = reader.Take<std::uint64_t>();
  for (std::uint32_t* const field :
       {&plan.block, &plan.window, &plan.step_size, &plan.world_size, &plan.rank})
    *field = reader.Take<std::uint32_t>();
  plan.name = std::string(reader.TakeText(reader.Take<std::uint16_t>()));
  if (!reader.AtEnd() || !IsSound(plan)) return Malformed("PLAN_SET");
  FFR_TRY(CheckName(plan.name));
  return plan;
}

std::vector<std::byte> PlanCancel::Encode() const {
  ByteWriter writer;
  writer.Put(plan_id);
  return std::move(writer).Take();
}

Result<PlanCancel> PlanCancel::Decode(std::span<const std::byte> body) {
  ByteReader reader(body);
  const PlanCancel cancel{reader.Take<std::uint32_t>()};
  if (!reader.AtEnd()) return Malformed("PLAN_CANCEL");
  return cancel;
}

}  // namespace ffrecord::net
