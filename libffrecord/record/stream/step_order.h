#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ffrecord/epoch_plan.h>
#include <ffrecord/permutation.h>
#include <ffrecord/result.h>

namespace ffrecord {

// One rank's share of one step of a stream.
struct Step {
  std::uint64_t epoch = 0;
  std::uint64_t position = 0;  // In the epoch, of the share's first record.
  std::uint64_t count = 0;     // Records of the share.
};

// The steps of an epoch and of those that follow it, without end, as functions of their number.
// Immutable, hence thread-safe.
class StepOrder {
 public:
  // `plan` is the rest of the first epoch; the epochs that follow it have the positions [0,
  // `epoch_end`). Fails with kInvalidArgument if these are not steps of an epoch of `record_count`
  // records.
  static Result<StepOrder> Make(const EpochPlan& plan, std::uint64_t epoch_end,
                                std::uint64_t record_count);

  std::uint64_t seed() const noexcept { return plan_.seed; }

  // Step `number`; 0 is the first of the plan.
  Step At(std::uint64_t number) const noexcept;

  // Computes which records steps consist of. For one thread: it remembers the order of an epoch.
  class Indices {
   public:
    // Borrows `order`.
    explicit Indices(const StepOrder& order) noexcept : order_(order) {}
    // The records of `step`, in its order.
    Result<std::vector<std::uint64_t>> Of(const Step& step);

   private:
    Result<void> Turn(std::uint64_t epoch);
    void Fill(std::uint64_t first, std::span<std::uint64_t> indices) const noexcept;

    const StepOrder& order_;
    std::optional<std::uint64_t> epoch_;
    std::optional<Permutation> exact_;
    std::optional<BlockedPermutation> blocked_;
  };

 private:
  StepOrder(const EpochPlan& plan, std::uint64_t epoch_end, std::uint64_t record_count) noexcept
      : plan_(plan), epoch_end_(epoch_end), record_count_(record_count) {}

  EpochPlan plan_;
  std::uint64_t epoch_end_;
  std::uint64_t record_count_;
};

}  // namespace ffrecord
