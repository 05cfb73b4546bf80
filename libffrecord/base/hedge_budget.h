#pragma once

#include <algorithm>
#include <cstdint>

namespace ffrecord {

// How many requests whose answers are late may be made a second time: one for each
// kRequestsPerHedge requests, so that a slow server does not get much more work.
class HedgeBudget {
 public:
  static constexpr std::uint64_t kRequestsPerHedge = 20;  // 5 %.

  // Saves up to `hedges_max`, and begins with `hedges`.
  explicit HedgeBudget(std::uint64_t hedges_max, std::uint64_t hedges = 0) noexcept
      : credit_max_(hedges_max * kRequestsPerHedge), credit_(hedges * kRequestsPerHedge) {}

  void Earn(std::uint64_t request_count) noexcept {
    credit_ += std::min(request_count, credit_max_ - credit_);
  }
  // False: there is none left.
  bool Take() noexcept {
    if (credit_ < kRequestsPerHedge) return false;
    credit_ -= kRequestsPerHedge;
    return true;
  }

 private:
  std::uint64_t credit_max_;
  std::uint64_t credit_;  // In requests, at most credit_max_.
};

}  // namespace ffrecord
