#include "server/cluster/burial.h"

#include <algorithm>
#include <utility>

namespace ffrecord::server::cluster {

const std::vector<ExtentId>& Burial::Unnamed(const View& view) const {
  const std::pair at(view.names.change_count(), view.extents.ChangeCount());
  if (unnamed_at_ == at) return unnamed_;
  unnamed_.clear();
  for (const ManifestExtent& extent : view.extents.All())
    if (!view.names.Find(extent.id)) unnamed_.push_back(extent.id);
  unnamed_at_ = at;
  return unnamed_;
}

std::vector<ExtentId> Burial::Left(const View& view, const Tombstone& tombstone,
                                   const std::vector<ExtentId>& unnamed) {
  // An extent that was published and removed again has a tombstone of its own, with a grace for its
  // readers.
  const auto has_own = [&](const ExtentId& id) {
    return tombstone.record.upload != 0 && view.tombstones.WasRemoved(id);
  };
  std::vector<ExtentId> left;
  for (const ExtentId& id : unnamed)
    if (tombstone.record.Names(id) && !has_own(id)) left.push_back(id);
  return left;
}

// A crash, or the end of a copy that is under way, would bring back what it names.
bool Burial::IsInMotion(std::span<const ExtentId> moving, const Tombstone& tombstone) {
  return std::ranges::any_of(moving,
                             [&](const ExtentId& id) { return tombstone.record.Names(id); });
}

Flags Burial::OnAskBuried(TimePoint now, const View& view, const AskBuried& question) const {
  Flags flags;
  // First: what comes between the two looks is seen by both.
  const std::vector<ExtentId> moving = view.extents.InMotion();
  const auto& unnamed = Unnamed(view);
  for (const std::string& key : question.keys) {
    const Tombstone* const found = view.tombstones.Find(key);
    // Until the grace is over it tells what has come of an attempt, also if nothing was dropped.
    flags.push_back(found != nullptr && now - found->seen >= found->record.grace &&
                    view.MayConclude(now) && Left(view, *found, unnamed).empty() &&
                    !IsInMotion(moving, *found));
  }
  return flags;
}

std::vector<ExtentId> Burial::Unexplained(const View& view) const {
  std::vector<ExtentId> unexplained;
  for (const ExtentId& id : Unnamed(view))
    if (!view.tombstones.Names(id) && !view.mirror.Find(UploadKey(UploadOf(id))))
      unexplained.push_back(id);
  return unexplained;
}

void Burial::Step(TimePoint now, const View& view, Outbox& out) {
  if (now < next_ || look_ != 0) return;
  next_ = now + options_.interval;
  if (view.tombstones.all().empty() || !view.MayConclude(now)) return;
  const auto& unnamed = Unnamed(view);
  for (const auto& [key, tombstone] : view.tombstones.all()) {
    if (now - tombstone.seen < tombstone.record.grace || Left(view, tombstone, unnamed).empty())
      continue;
    looked_at_ = key;
    look_ = out.Ask(GetKey{key}, now + options_.patience);
    return;
  }
}

bool Burial::Take(TimePoint now, const View& view, const Answer& answer, Outbox& out) {
  if (look_ == 0 || answer.id != look_) return false;
  look_ = 0;
  const auto& found = std::get<Result<std::optional<MetaStore::KeyValue>>>(answer.reply);
  const Tombstone* const tombstone = view.tombstones.Find(looked_at_);
  if (!found || !found.value() || tombstone == nullptr) return true;
  if (found.value()->mod_revision == tombstone->revision && view.MayConclude(now)) {
    for (const ExtentId& id : Left(view, *tombstone, Unnamed(view))) out.Ask(DropExtent{id});
    next_ = now;
  }
  return true;
}

}  // namespace ffrecord::server::cluster
