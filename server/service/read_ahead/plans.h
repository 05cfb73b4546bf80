#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include <ffrecord/result.h>

#include "server/service/read_ahead/read_ahead.h"

namespace ffrecord::server {

// The plans of one connection, by the numbers that its client gave them; they end with it.
// Thread-safe: jobs begin plans, the connection ends them.
class Plans {
 public:
  // This epoch of a few datasets, and the next.
  static constexpr std::size_t kCountMax = 16;

  // In place of one with that number. Fails with kUnavailable if there are too many.
  Result<void> Keep(std::uint32_t plan_id, ReadAhead::Handle plan) {
    const std::lock_guard lock(mutex_);
    if (plans_.size() >= kCountMax && !plans_.contains(plan_id))
      return Error{ErrorCode::kUnavailable, "a connection has at most 16 plans: cancel some"};
    plans_.insert_or_assign(plan_id, std::move(plan));
    return {};
  }

  void Drop(std::uint32_t plan_id) {
    const std::lock_guard lock(mutex_);
    plans_.erase(plan_id);
  }

 private:
  std::mutex mutex_;
  std::map<std::uint32_t, ReadAhead::Handle> plans_;
};

}  // namespace ffrecord::server
