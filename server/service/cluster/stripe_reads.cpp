#include "server/service/cluster/stripe_reads.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "libffrecord/base/hex.h"

namespace ffrecord::server {
namespace {

// Clients ask again for what does not fit.
constexpr std::size_t kComingMax = 64;

}  // namespace

void StripeReads::Change(const std::shared_ptr<const DatasetManifest>& before,
                         const std::shared_ptr<const DatasetManifest>& after) {
  const std::lock_guard lock(mutex_);
  if (after && after->has_code())
    cluster::ForEachMember(after,
                           [this](const ManifestExtent& extent, const cluster::StripePlace& place) {
                             Entry& entry = entries_[extent.id];
                             if (entry.name_count++ > 0) return;
                             entry.extent = extent;
                             entry.place = place;
                           });
  if (!before || !before->has_code()) return;
  ForEachHeldExtent(*before, [this](const ManifestExtent& extent) {
    const auto entry = entries_.find(extent.id);
    if (entry != entries_.end() && --entry->second.name_count == 0) entries_.erase(entry);
  });
}

ExtentPtr StripeReads::FindHere(const Entry& entry) const {
  ExtentPtr found = store_.Find(entry.extent.id);
  if (!found || found->is_bad.load(std::memory_order_relaxed) ||
      found->size_bytes != entry.extent.size_bytes || found->xxh3 != entry.extent.xxh3)
    return nullptr;
  return found;
}

ExtentPtr StripeReads::StandIn(const Entry& entry, std::shared_ptr<const Extent>& made,
                               ErrorCode refusal) {
  if (made == nullptr) {
    auto extent = std::make_shared<Extent>();
    extent->id = entry.extent.id;
    extent->size_bytes = entry.extent.size_bytes;
    extent->xxh3 = entry.extent.xxh3;
    extent->is_cached = true;
    made = std::move(extent);
  }
  made->refusal = refusal;
  return made;
}

ExtentPtr StripeReads::Find(const ExtentId& id) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return nullptr;
  return StandIn(found->second, found->second.refused, ErrorCode::kNotFound);
}

std::optional<cluster::StripePlace> StripeReads::PlaceOf(const ExtentId& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() ? std::nullopt : std::optional(found->second.place);
}

ExtentPtr StripeReads::Use(const ExtentPtr& extent, bool may_bring) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(extent->id);
  if (found == entries_.end()) return nullptr;
  Entry& entry = found->second;
  if (doubts_.IsVerifying(extent->id)) return StandIn(entry, entry.awaited, ErrorCode::kOk);
  if (ExtentPtr here = FindHere(entry)) return here;
  if (may_bring && !entry.is_coming && Clock::now() >= entry.retry_at) Begin(entry);
  if (!may_bring || (!entry.is_coming && Clock::now() < entry.retry_at))
    return StandIn(entry, entry.refused, ErrorCode::kNotFound);
  return StandIn(entry, entry.awaited, ErrorCode::kOk);
}

ExtentPtr StripeReads::Doubted(const ExtentPtr& extent) {
  const bool is_verifying = doubts_.Doubt(extent);
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(extent->id);
  if (found == entries_.end() || !is_verifying) return extent;
  return StandIn(found->second, found->second.awaited, ErrorCode::kOk);
}

// Requires mutex_.
void StripeReads::Begin(Entry& entry) {
  if (coming_count_ >= kComingMax) return;
  entry.is_coming = true;
  ++coming_count_;
  threads_.Post([this, extent = entry.extent, place = entry.place] { BringOne(extent, place); });
}

void StripeReads::BringOne(const ManifestExtent& extent, const cluster::StripePlace& place) {
  const auto brought = bring_(extent, place);
  if (!brought && !threads_.is_stopping())
    spdlog::error("event=stripe_member_missing extent={} error=\"{}\"", Hex(extent.id),
                  brought.error().message);
  const std::lock_guard lock(mutex_);
  --coming_count_;
  (brought ? brought_ : failed_).Add();
  const auto found = entries_.find(extent.id);
  if (found == entries_.end()) return;
  found->second.is_coming = false;
  found->second.retry_at = brought ? Clock::time_point{} : Clock::now() + retry_;
}

}  // namespace ffrecord::server
