#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "libffrecord/io/io_engine.h"

namespace ffrecord::server {

// The reads of one disk that its engine has not taken: urgent ones before others, each kind in its
// order. So that the others never stop, one of them goes after each kUrgentInRow urgent ones that
// came later. Thread-bound.
class RunQueue {
 public:
  static constexpr std::uint32_t kUrgentInRow = 8;

  bool empty() const noexcept { return runs_.empty(); }
  std::size_t size() const noexcept { return runs_.size(); }

  void Push(IoRequest* run, bool is_urgent) {
    if (!is_urgent) return runs_.push_back(run);
    if (settled_count_ == runs_.size()) {
      passed_count_ = 0;
    } else if (++passed_count_ > kUrgentInRow) {
      passed_count_ = 1;
      ++settled_count_;
    }
    runs_.insert(runs_.begin() + static_cast<std::ptrdiff_t>(settled_count_), run);
    ++settled_count_;
  }

  // The next `count` ones.
  std::span<IoRequest* const> First(std::size_t count) const {
    return std::span(runs_).first(count);
  }
  void DropFirst(std::size_t count) {
    runs_.erase(runs_.begin(), runs_.begin() + static_cast<std::ptrdiff_t>(count));
    settled_count_ -= std::min(settled_count_, count);
  }
  template <class IsMeant>
  void DropIf(IsMeant is_meant) {
    std::size_t settled_count = 0;
    std::size_t kept_count = 0;
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      if (is_meant(runs_[i])) continue;
      settled_count += i < settled_count_;
      runs_[kept_count++] = runs_[i];
    }
    runs_.resize(kept_count);
    settled_count_ = settled_count;
  }

 private:
  std::vector<IoRequest*> runs_;
  std::size_t settled_count_ = 0;  // No urgent one passes the first ones, so many.
  std::uint32_t passed_count_ = 0;
};

}  // namespace ffrecord::server
