#include "server/service/read_ahead/plan_order.h"

#include <algorithm>
#include <span>
#include <string>

namespace ffrecord::server {

Result<PlanOrder> PlanOrder::Make(const net::PlanSet& plan, std::uint64_t record_count) {
  if (plan.order != net::PlanSet::kOrder1)
    return Error{ErrorCode::kInvalidArgument,
                 "the plan is of order " + std::to_string(plan.order) + "; known here is 1"};
  if (plan.block == 0)
    return PlanOrder(plan, record_count,
                     FFR_TRY(Permutation::Make(plan.seed, plan.epoch, 0, record_count)));
  return PlanOrder(plan, record_count,
                   FFR_TRY(BlockedPermutation::Make(plan.seed, plan.epoch, record_count, plan.block,
                                                    plan.window)));
}

void PlanOrder::Next(std::uint64_t count_max, std::vector<std::uint64_t>& indices) {
  indices.clear();
  if (at_end()) return;
  const std::uint64_t size = std::min<std::uint64_t>(plan_.step_size, plan_.end - step_begin_);
  // Both factors have 32 bits.
  const std::uint64_t share_begin = plan_.rank * size / plan_.world_size;
  const std::uint64_t share_end = (std::uint64_t{plan_.rank} + 1) * size / plan_.world_size;
  const std::uint64_t count = std::min(share_end - share_begin - done_, count_max);
  indices.resize(count);
  // Behind the epoch's end it begins again.
  std::uint64_t position = (step_begin_ + share_begin + done_) % record_count_;
  for (std::span<std::uint64_t> rest = indices; !rest.empty();) {
    const auto piece = rest.first(std::min<std::uint64_t>(rest.size(), record_count_ - position));
    std::visit([&](const auto& order) { order.Fill(position, piece); }, order_);
    rest = rest.subspan(piece.size());
    position = 0;
  }
  done_ += count;
  if (done_ < share_end - share_begin) return;
  done_ = 0;
  step_begin_ += size;
  ++step_;
}

}  // namespace ffrecord::server
