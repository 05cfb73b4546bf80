#include "server/cluster/replication.h"

#include <algorithm>
#include <utility>

namespace ffrecord::server::cluster {

Holdings Replication::OnAskHoldings(TimePoint now, const View& view, const AskHoldings& question) {
  const bool may_promise = question.promise_version != 0 &&
                           question.promise_version == view.map_version() &&
                           view.lease.IsLeased(now) && view.mirror.was_listed();
  Holdings holdings;
  for (const ManifestExtent& extent : question.extents) {
    const auto found = view.extents.Find(extent.id);
    if (!found || *found != extent) {
      holdings.push_back(Holding::kAbsent);
      continue;
    }
    const NameTable::Wanted* const wanted = view.names.Find(extent.id);
    const bool promises = may_promise && wanted && view.IsOwner(extent.id, wanted->replicas);
    holdings.push_back(promises ? Holding::kPromised : Holding::kHeld);
  }
  return holdings;
}

bool Replication::IsFilled(const View& view, std::uint32_t version) const {
  if (version != view.map_version() || !view.mirror.was_listed() || !view.names.IsComplete())
    return false;
  return std::ranges::all_of(view.names.wanted(), [&](const auto& entry) {
    return !view.IsOwner(entry.first, entry.second.replicas) ||
           view.extents.Find(entry.first) == entry.second.extent;
  });
}

void Replication::Step(TimePoint now, const View& view, Outbox& out) {
  if (now < next_) return;
  next_ = now + options_.interval;
  if (!questions_.empty() || !pulls_.empty()) return;  // What was begun goes on.
  Look(now, view, out);
}

void Replication::Look(TimePoint now, const View& view, Outbox& out) {
  missing_.clear();
  surplus_.clear();
  refused_count_ = 0;
  if (!view.mirror.was_listed()) return;
  for (const auto& [id, wanted] : view.names.wanted()) {
    if (missing_.size() >= options_.batch_max) break;
    if (!view.IsOwner(id, wanted.replicas)) continue;
    const auto held = view.extents.Find(id);
    if (held == wanted.extent) continue;
    // Other bytes, as of an upload that began anew: no name wants them, and they are in the way.
    if (held && view.MayConclude(now))
      out.Ask(DropExtent{id});
    else if (!held)
      missing_.emplace(id, Missing{wanted.extent, 0, {}});
  }
  if (!missing_.empty()) return AskForMissing(now, view, out);
  if (view.MayConclude(now)) AskForSurplus(now, view, out);
}

void Replication::AskForMissing(TimePoint now, const View& view, Outbox& out) {
  std::map<std::string, std::vector<ManifestExtent>> questions;
  for (const auto& [id, missing] : missing_) {
    for (const std::string& candidate : view.slots.CandidatesOf(id))
      if (candidate != view.node && view.IsLive(candidate))
        questions[candidate].push_back(missing.extent);
  }
  Ask(now, questions, 0, out);
}

void Replication::AskForSurplus(TimePoint now, const View& view, Outbox& out) {
  std::map<std::string, std::vector<ManifestExtent>> questions;
  surplus_version_ = view.map_version();
  for (const ManifestExtent& extent : view.extents.All()) {
    if (surplus_.size() >= options_.batch_max) break;
    const NameTable::Wanted* const wanted = view.names.Find(extent.id);
    // What no name wants is for tombstones to drop.
    if (!wanted || view.IsOwner(extent.id, wanted->replicas)) continue;
    const auto owners = view.slots.OwnersOf(extent.id, wanted->replicas);
    // A row that is too short, as in a cluster without nodes, keeps everything.
    if (owners.size() < wanted->replicas ||
        !std::ranges::all_of(owners, [&](const auto& owner) { return view.IsLive(owner); }))
      continue;
    surplus_[extent.id].owners = {owners.begin(), owners.end()};
    for (const std::string& owner : owners) questions[owner].push_back(wanted->extent);
  }
  Ask(now, questions, surplus_version_, out);
}

void Replication::Ask(TimePoint now,
                      const std::map<std::string, std::vector<ManifestExtent>>& questions,
                      std::uint32_t promise_version, Outbox& out) {
  for (const auto& [node, extents] : questions) {
    Question question{node, {}};
    for (const ManifestExtent& extent : extents) question.extents.push_back(extent.id);
    const CallId call =
        out.Ask(AskHoldings{node, promise_version, extents}, now + options_.patience);
    questions_.emplace(call, std::move(question));
  }
}

bool Replication::Take(TimePoint now, const View& view, const Answer& answer, Outbox& out) {
  if (const auto question = questions_.find(answer.id); question != questions_.end()) {
    const auto& holdings = std::get<Result<Holdings>>(answer.reply);
    if (holdings && holdings.value().size() == question->second.extents.size())
      NoteHoldings(question->second, holdings.value());
    questions_.erase(question);
    if (!questions_.empty()) return true;
    if (!missing_.empty())
      Pull(now, view, out);
    else
      Drop(now, view, out);
    return true;
  }
  if (const auto pull = pulls_.find(answer.id); pull != pulls_.end()) {
    pulls_.erase(pull);
    Pull(now, view, out);
    return true;
  }
  return false;
}

void Replication::NoteHoldings(const Question& question, const Holdings& holdings) {
  for (std::size_t i = 0; i < holdings.size(); ++i) {
    const ExtentId& id = question.extents[i];
    if (const auto found = missing_.find(id);
        found != missing_.end() && holdings[i] != Holding::kAbsent) {
      ++found->second.replica_count;
      found->second.holders.push_back(question.node);
    }
    if (const auto found = surplus_.find(id);
        found != surplus_.end() && holdings[i] == Holding::kPromised)
      found->second.promises.insert(question.node);
  }
}

void Replication::Pull(TimePoint now, const View& view, Outbox& out) {
  while (pulls_.size() < options_.pulls_max && !missing_.empty()) {
    // One without any replica that answers is left for the next look.
    const auto rarest = std::ranges::min_element(missing_, {}, [](const auto& entry) {
      return entry.second.replica_count == 0 ? SIZE_MAX : entry.second.replica_count;
    });
    Missing missing = std::move(rarest->second);
    missing_.erase(rarest);
    if (missing.replica_count == 0 || !view.names.Find(missing.extent.id)) continue;
    if (!view.extents.HasRoomFor(missing.extent.size_bytes)) {
      ++refused_count_;
      continue;
    }
    // The likeliest first, for they are asked in that order.
    const ExtentId id = missing.extent.id;
    const CallId call = out.Ask(PullExtent{missing.extent, std::move(missing.holders)},
                                now + options_.pull_patience);
    pulls_.emplace(call, id);
  }
  if (pulls_.empty() && missing_.empty()) next_ = now;
}

void Replication::Drop(TimePoint now, const View& view, Outbox& out) {
  const bool may_drop = view.MayConclude(now) && view.map_version() == surplus_version_;
  for (const auto& [id, surplus] : std::exchange(surplus_, {})) {
    const NameTable::Wanted* const wanted = view.names.Find(id);
    if (!may_drop || !wanted || surplus.promises != surplus.owners) continue;
    // Another name may want more replicas since.
    const auto owners = view.slots.OwnersOf(id, wanted->replicas);
    if (std::set(owners.begin(), owners.end()) == surplus.owners) out.Ask(DropExtent{id});
  }
}

}  // namespace ffrecord::server::cluster
