#include "server/service/cluster/doubted_extents.h"

#include <spdlog/spdlog.h>

#include <string>

#include "libffrecord/base/hex.h"
#include "server/storage/extent_damage.h"

namespace ffrecord::server {

bool DoubtedExtents::Doubt(const ExtentPtr& extent) {
  if (extent->is_bad.load(std::memory_order_relaxed)) return false;
  const auto now = Clock::now();
  const std::lock_guard lock(mutex_);
  if (waiting_.contains(extent->id)) return true;
  std::erase_if(verified_, [&](const auto& one) { return now - one.second >= kVerifyInterval; });
  if (verified_.contains(extent->id) || waiting_.size() == kWaitingMax) return false;
  waiting_.insert(extent->id);
  threads_.Post([this, extent] { Verify(extent); });
  return true;
}

bool DoubtedExtents::IsVerifying(const ExtentId& id) const {
  const std::lock_guard lock(mutex_);
  return waiting_.contains(id);
}

void DoubtedExtents::Verify(const ExtentPtr& extent) {
  const std::string why_bad = WhyDamaged(*extent);
  if (!why_bad.empty() && store_.Mark(*extent, true)) {
    damaged_.Add();
    spdlog::warn("event=extent_bad extent={} found_by=reader error=\"{}\"", Hex(extent->id),
                 why_bad);
  }
  const std::lock_guard lock(mutex_);
  waiting_.erase(extent->id);
  // The copy that replaces a damaged one was not verified: a bad disk may damage it at once, and a
  // reader reports that only once.
  if (why_bad.empty()) verified_[extent->id] = Clock::now();
}

}  // namespace ffrecord::server
