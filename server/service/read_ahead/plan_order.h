#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include <ffrecord/permutation.h>
#include <ffrecord/result.h>

#include "libffrecord/net/protocol/plan_messages.h"

namespace ffrecord::server {

// The records that one rank is going to read, in their order, as its plan says. Thread-bound.
class PlanOrder {
 public:
  // Fails with kInvalidArgument if the order is not known here, or cannot be one of `record_count`
  // records.
  static Result<PlanOrder> Make(const net::PlanSet& plan, std::uint64_t record_count);

  bool at_end() const noexcept { return step_begin_ >= plan_.end; }
  // Steps count from 0; that of the records that Next() will give.
  std::uint64_t step() const noexcept { return step_; }
  // Makes `indices` those of the next records, at most `count_max`, all of one step; none if the
  // rank has no share of it, or at the end. Requires count_max > 0.
  void Next(std::uint64_t count_max, std::vector<std::uint64_t>& indices);

 private:
  using Order = std::variant<Permutation, BlockedPermutation>;

  PlanOrder(const net::PlanSet& plan, std::uint64_t record_count, const Order& order)
      : plan_(plan), record_count_(record_count), order_(order), step_begin_(plan.first) {}

  net::PlanSet plan_;
  std::uint64_t record_count_;
  Order order_;
  std::uint64_t step_ = 0;
  std::uint64_t step_begin_;
  std::uint64_t done_ = 0;  // Records of the rank's share of this step.
};

}  // namespace ffrecord::server
