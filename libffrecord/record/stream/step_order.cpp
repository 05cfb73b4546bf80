#include "libffrecord/record/stream/step_order.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "libffrecord/base/assert.h"

namespace ffrecord {
namespace {

std::uint64_t StepsIn(std::uint64_t positions, std::uint64_t step_size) {
  return positions / step_size + (positions % step_size != 0 ? 1 : 0);
}

// How many of `size` records belong to the ranks before `rank`. The product fits: both are below
// 2^32.
std::uint64_t ShareBegin(std::uint64_t size, std::uint32_t rank, std::uint32_t world_size) {
  return size * rank / world_size;
}

}  // namespace

Result<StepOrder> StepOrder::Make(const EpochPlan& plan, std::uint64_t epoch_end,
                                  std::uint64_t record_count) {
  const auto refuse = [](const std::string& what) {
    return Error{ErrorCode::kInvalidArgument, "steps of an epoch: " + what};
  };
  if (plan.step_size == 0) return refuse("step_size is 0, must be 1 or more");
  if (plan.rank >= plan.world_size)
    return refuse("rank is " + std::to_string(plan.rank) + ", must be below the world size, " +
                  std::to_string(plan.world_size));
  if (plan.in_file_order && (plan.block != 0 || plan.window != 0))
    return refuse("records in their order have neither block nor window");
  // The last step may go on at the epoch's start, to be as long as the others.
  const std::uint64_t end_max = record_count + plan.step_size;
  for (const auto& [first, end] : {std::pair(plan.first, plan.end), {0, epoch_end}})
    if (first >= end || first >= record_count || end > end_max)
      return refuse("positions " + std::to_string(first) + " to " + std::to_string(end) +
                    " of an epoch of " + std::to_string(record_count) + " records");
  StepOrder order(plan, epoch_end, record_count);
  FFR_TRY(Indices(order).Of(order.At(0)));  // Seed, block and window are checked here, once.
  return order;
}

Step StepOrder::At(std::uint64_t number) const noexcept {
  std::uint64_t epoch = plan_.epoch;
  std::uint64_t first = plan_.first;
  std::uint64_t end = plan_.end;
  const std::uint64_t left = StepsIn(end - first, plan_.step_size);
  if (number >= left) {
    const std::uint64_t steps = StepsIn(epoch_end_, plan_.step_size);
    epoch += 1 + (number - left) / steps;
    number = (number - left) % steps;
    first = 0;
    end = epoch_end_;
  }
  const std::uint64_t begin = first + number * plan_.step_size;
  const std::uint64_t size = std::min<std::uint64_t>(plan_.step_size, end - begin);
  const std::uint64_t share = ShareBegin(size, plan_.rank, plan_.world_size);
  return {epoch, begin + share, ShareBegin(size, plan_.rank + 1, plan_.world_size) - share};
}

Result<std::vector<std::uint64_t>> StepOrder::Indices::Of(const Step& step) {
  FFR_TRY(Turn(step.epoch));
  std::vector<std::uint64_t> indices(step.count);
  std::uint64_t position = step.position % order_.record_count_;
  for (std::span<std::uint64_t> rest(indices); !rest.empty(); position = 0) {
    const auto some =
        rest.first(std::min<std::uint64_t>(rest.size(), order_.record_count_ - position));
    Fill(position, some);
    rest = rest.subspan(some.size());
  }
  return indices;
}

Result<void> StepOrder::Indices::Turn(std::uint64_t epoch) {
  const EpochPlan& plan = order_.plan_;
  if (epoch_ == epoch || plan.in_file_order) return {};
  if (plan.block != 0 || plan.window != 0)
    blocked_ = FFR_TRY(
        BlockedPermutation::Make(plan.seed, epoch, order_.record_count_, plan.block, plan.window));
  else
    exact_ = FFR_TRY(Permutation::Make(plan.seed, epoch, 0, order_.record_count_));
  epoch_ = epoch;
  return {};
}

void StepOrder::Indices::Fill(std::uint64_t first,
                              std::span<std::uint64_t> indices) const noexcept {
  if (order_.plan_.in_file_order)
    std::iota(indices.begin(), indices.end(), first);
  else if (blocked_)
    blocked_->Fill(first, indices);
  else
    exact_->Fill(first, indices);
}

}  // namespace ffrecord
