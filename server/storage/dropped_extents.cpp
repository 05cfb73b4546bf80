#include "server/storage/dropped_extents.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ffrecord::server {

bool DroppedExtents::Add(const ExtentId& id) {
  Dropped dropped{id, store_.MarkDeleted(id)};
  const bool is_there = dropped.extent != nullptr;
  const std::lock_guard lock(mutex_);
  ++left_[id];
  dropped_.push_back(std::move(dropped));
  return is_there;
}

bool DroppedExtents::empty() const {
  const std::lock_guard lock(mutex_);
  return dropped_.empty();
}

std::size_t DroppedExtents::CountGone(std::span<const ExtentId> ids) const {
  const std::lock_guard lock(mutex_);
  const auto first =
      std::ranges::find_if(ids, [&](const ExtentId& id) { return left_.contains(id); });
  return static_cast<std::size_t>(first - ids.begin());
}

std::vector<DroppedExtents::Dropped> DroppedExtents::Take(
    const std::function<bool(const Dropped&)>& wanted) {
  const std::lock_guard lock(mutex_);
  const auto first = std::partition(dropped_.begin(), dropped_.end(),
                                    [&](const Dropped& one) { return !wanted(one); });
  std::vector<Dropped> taken(std::make_move_iterator(first),
                             std::make_move_iterator(dropped_.end()));
  dropped_.erase(first, dropped_.end());
  return taken;
}

DroppedExtents::Swept DroppedExtents::Sweep(const Disk* disk,
                                            const std::function<bool()>& may_go_on) {
  std::vector<Dropped> dropped = Take([&](const Dropped& one) {
    return (one.extent != nullptr ? one.extent->disk : nullptr) == disk;
  });
  Swept swept;
  Names names;
  const auto is_left = [&](Dropped& one) {
    auto unlinked = may_go_on() ? Unlink(one, names) : Result<bool>(false);
    if (!unlinked) swept.outcome = std::move(unlinked).error();  // The others go all the same.
    return !unlinked || !unlinked.value();
  };
  auto gone = std::partition(dropped.begin(), dropped.end(), is_left);
  if (auto synced = Sync(names); !synced) {
    swept.outcome = std::move(synced);
    gone = dropped.end();
  }
  const std::lock_guard lock(mutex_);
  for (auto one = gone; one != dropped.end(); ++one) {
    swept.ids.push_back(one->id);
    const auto left = left_.find(one->id);
    if (--left->second == 0) left_.erase(left);
  }
  dropped_.insert(dropped_.end(), std::make_move_iterator(dropped.begin()),
                  std::make_move_iterator(gone));
  return swept;
}

void DroppedExtents::TakeBack() {
  const std::vector<Dropped> dropped = Take([](const Dropped& one) { return !one.is_begun; });
  // First those of ids that had no extent any more, so that none is marked when its extent comes.
  for (const Dropped& one : dropped)
    if (one.extent == nullptr) store_.Release({&one.id, 1});
  for (const Dropped& one : dropped)
    if (one.extent != nullptr) store_.TakeBack(*one.extent);
  const std::lock_guard lock(mutex_);
  for (const Dropped& one : dropped) {
    const auto left = left_.find(one.id);
    if (--left->second == 0) left_.erase(left);
  }
}

Result<bool> DroppedExtents::Unlink(Dropped& dropped, Names& names) {
  if (dropped.extent == nullptr) return true;
  // Nobody finds it any more: who has it now is the last to read it.
  if (dropped.extent.use_count() > 1) return false;
  dropped.is_begun = true;
  const std::vector<Disk*> disks = store_.DisksOf(*dropped.extent);
  if (!FFR_TRY(store_.Unlink(*dropped.extent))) return false;
  for (Disk* const disk : disks) names[disk].push_back(dropped.id);
  return true;
}

Result<void> DroppedExtents::Sync(const Names& names) {
  for (const auto& [disk, ids] : names) FFR_TRY(disk->writes().Noted(disk->SyncNames(ids)));
  return {};
}

}  // namespace ffrecord::server
