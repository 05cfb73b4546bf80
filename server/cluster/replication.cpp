#include "server/cluster/replication.h"

#include <algorithm>
#include <utility>

namespace ffrecord::server::cluster {
namespace {

constexpr std::size_t kLostRank = ErasureCode::kDataMax + ErasureCode::kParityMax + 1;  // Last.

// Keeps at most `count` of them: those behind `last` in the order of ids, then those from the
// beginning. `last` becomes the last one that is kept.
void KeepBatch(std::vector<ManifestExtent>& extents, std::size_t count, ExtentId& last) {
  if (extents.size() <= count) return;
  const auto order = [last](const ManifestExtent& one) {
    return std::pair(one.id <= last, one.id);
  };
  const auto is_before = [&](const ManifestExtent& one, const ManifestExtent& other) {
    return order(one) < order(other);
  };
  const auto end = extents.begin() + static_cast<std::ptrdiff_t>(count);
  std::nth_element(extents.begin(), end, extents.end(), is_before);
  extents.erase(end, extents.end());
  last = std::max_element(extents.begin(), extents.end(), is_before)->id;
}

// Where a member of a stripe most probably is: with its owner, or with the one before the last
// change of the map. One without an owner may be anywhere. `former`: of that map.
std::vector<std::string> LikelyHolders(const View& view, const StripeTable& former,
                                       const StripePlace& place, const ExtentId& id) {
  const std::uint16_t owner = view.stripes.OwnerOf(view.slots.map, place);
  if (owner == SlotMap::kNoNode) return view.CandidatesOf(id);
  std::vector<std::string> nodes{view.slots.map.nodes[owner].id};
  if (!view.slots.previous) return nodes;
  const SlotMap& previous = *view.slots.previous;
  const std::uint16_t other = former.OwnerOf(previous, place);
  if (other != SlotMap::kNoNode && previous.nodes[other].id != nodes.front())
    nodes.push_back(previous.nodes[other].id);
  return nodes;
}

}  // namespace

Holdings Replication::OnAskHoldings(TimePoint now, const View& view, const AskHoldings& question) {
  const bool may_promise =
      question.promise_version != 0 && question.promise_version == view.map_version() &&
      view.lease.IsLeased(now) && view.mirror.was_listed() && view.continuity.is_trusted();
  Holdings holdings;
  for (const ManifestExtent& extent : question.extents) {
    const auto found = view.extents.Find(extent.id);
    if (!found || *found != extent) {
      holdings.push_back(Holding::kAbsent);
      continue;
    }
    const NameTable::Wanted* const wanted = view.names.Find(extent.id);
    const bool promises = may_promise && wanted && view.IsOwner(*wanted);
    holdings.push_back(promises ? Holding::kPromised : Holding::kHeld);
  }
  return holdings;
}

bool Replication::IsFilled(const View& view, std::uint32_t version) const {
  if (version != view.map_version() || !view.mirror.was_listed() || !view.names.IsComplete())
    return false;
  return std::ranges::all_of(view.names.wanted(), [&](const auto& entry) {
    return !view.IsOwner(entry.second) || view.extents.Find(entry.first) == entry.second.extent;
  });
}

void Replication::Step(TimePoint now, const View& view, Outbox& out) {
  if (now < next_) return;
  next_ = now + options_.interval;
  if (!questions_.empty() || !pulls_.empty()) return;  // Questions and pulls that were begun go on.
  Look(now, view, out);
}

void Replication::Look(TimePoint now, const View& view, Outbox& out) {
  missing_.clear();
  order_.clear();
  members_held_.clear();
  were_members_asked_ = false;
  surplus_.clear();
  has_pulled_ = false;
  if (!view.mirror.was_listed()) return;
  const auto is_missing_no_more = [&](const ExtentId& id) {
    const NameTable::Wanted* const wanted = view.names.Find(id);
    return !wanted || !view.IsOwner(*wanted) || view.extents.Find(id);
  };
  std::erase_if(unheld_, is_missing_no_more);
  std::erase_if(elsewhere_, is_missing_no_more);
  is_turn_of_missing_ = !is_turn_of_missing_;
  if (is_turn_of_missing_)
    (void)(AskForMissing(now, view, out) || AskForSurplus(now, view, out));
  else
    (void)(AskForSurplus(now, view, out) || AskForMissing(now, view, out));
}

// The number of the extents is taken first: what changes meanwhile is seen by the next look.
Replication::Seen Replication::LookAt(const View& view) {
  const std::uint64_t extents = view.extents.ChangeCount();
  return {view.names.change_count(), extents, view.map_version(), view.live};
}

std::vector<ManifestExtent> Replication::FindMissing(const View& view, bool may_conclude,
                                                     Outbox& out) {
  Seen seen = LookAt(view);
  if (filled_ == seen) return {};
  bool has_other = false;
  std::vector<ManifestExtent> missing;
  for (const auto& [id, wanted] : view.names.wanted()) {
    if (!view.IsOwner(wanted)) continue;
    const auto held = view.extents.Find(id);
    if (held == wanted.extent) continue;
    has_other = has_other || held;
    // Other bytes, as of an upload that began anew: no name wants them, and they are in the way.
    if (held && may_conclude)
      out.Ask(DropExtent{id});
    else if (!held)
      missing.push_back(wanted.extent);
  }
  if (missing.empty() && !has_other) filled_ = std::move(seen);
  return missing;
}

bool Replication::AskForMissing(TimePoint now, const View& view, Outbox& out) {
  auto found = FindMissing(view, view.MayConclude(now), out);
  refusing_count_ = 0;
  if (found.empty()) {
    refused_count_ = 0;
    return false;
  }
  KeepBatch(found, options_.batch_max, last_missing_);
  std::map<std::string, std::vector<ManifestExtent>> questions;
  for (const ManifestExtent& extent : found) {
    missing_.emplace(extent.id, Missing{extent});
    for (const std::string& candidate : view.CandidatesOf(extent.id))
      if (candidate != view.node && view.IsLive(candidate)) questions[candidate].push_back(extent);
  }
  Ask(now, questions, 0, /*is_of_members=*/false, out);
  if (questions.empty()) GoOn(now, view, out);  // Nobody is there to answer.
  return true;
}

// All nodes would be asked for too much: a member that lies elsewhere makes its stripe look worse
// than it is, and nothing else comes of it.
void Replication::AskForMembers(TimePoint now, const View& view, Outbox& out) {
  std::map<const DatasetManifest*, std::vector<Missing*>> by_manifest;  // Each is walked once.
  for (auto& [id, missing] : missing_)
    if (const StripePlace* const place = PlaceOf(view, missing))
      by_manifest[place->manifest.get()].push_back(&missing);
  const StripeTable former;
  std::map<std::string, std::vector<ManifestExtent>> questions;
  for (const auto& [manifest, lost] : by_manifest) {
    const std::vector<Stripe> stripes = StripesOf(*manifest);
    for (Missing* const missing : lost) {
      const StripePlace& place = *PlaceOf(view, *missing);
      const Stripe& stripe = stripes[place.stripe];
      missing->needed_count = stripe.data_count;
      StripePlace at = place;
      for (at.member = 0; at.member < at.member_count; ++at.member) {
        if (at.member == place.member) continue;
        const ManifestExtent& member = stripe.members[at.member];
        missing->others.push_back(member.id);
        if (view.extents.Find(member.id) == member) members_held_.insert(member.id);
        for (const std::string& node : LikelyHolders(view, former, at, member.id))
          if (node != view.node && view.IsLive(node)) questions[node].push_back(member);
      }
    }
  }
  Ask(now, questions, 0, /*is_of_members=*/true, out);
}

void Replication::FindKnownLists(const View& view) {
  const auto has_none = [](const auto& entry) { return entry.second.holders.empty(); };
  if (std::ranges::none_of(missing_, has_none)) return;
  for (const auto& [text, name] : view.names.names()) {
    if (!name.manifest || name.record.body.size() != 1) continue;
    const auto missing = missing_.find(name.record.body.front().id);
    if (missing != missing_.end() && has_none(*missing)) missing->second.is_known_list = true;
  }
}

void Replication::GoOn(TimePoint now, const View& view, Outbox& out) {
  if (missing_.empty()) return Drop(now, view, out);
  if (!std::exchange(were_members_asked_, true)) {
    FindKnownLists(view);
    AskForMembers(now, view, out);
  }
  if (!questions_.empty()) return;
  for (const auto& [id, missing] : missing_) {
    const std::size_t rank = Rank(view, missing);
    order_.emplace(rank, id);
    if (rank != kLostRank)
      elsewhere_.insert(id);
    else
      elsewhere_.erase(id);
  }
  Pull(now, view, out);
}

std::vector<ManifestExtent> Replication::FindSurplus(const View& view) const {
  std::vector<ManifestExtent> found;
  for (const ManifestExtent& extent : view.extents.All()) {
    const NameTable::Wanted* const wanted = view.names.Find(extent.id);
    // Tombstones drop extents that no name wants.
    if (!wanted || view.IsOwner(*wanted)) continue;
    const auto owners = view.OwnersOf(*wanted);
    // Where there are too few, as in a cluster without nodes, everything is kept.
    if (owners.are_all &&
        std::ranges::all_of(owners.nodes, [&](const auto& owner) { return view.IsLive(owner); }))
      found.push_back(wanted->extent);
  }
  return found;
}

bool Replication::AskForSurplus(TimePoint now, const View& view, Outbox& out) {
  if (!view.MayConclude(now)) return false;
  Seen seen = LookAt(view);
  if (tidy_ == seen) return false;
  auto found = FindSurplus(view);
  if (found.empty()) {
    tidy_ = std::move(seen);
    return false;
  }
  KeepBatch(found, options_.batch_max, last_surplus_);
  surplus_version_ = view.map_version();
  std::map<std::string, std::vector<ManifestExtent>> questions;
  for (const ManifestExtent& extent : found) {
    const auto owners = view.OwnersOf(*view.names.Find(extent.id)).nodes;
    surplus_[extent.id].owners = {owners.begin(), owners.end()};
    for (const std::string& owner : owners) questions[owner].push_back(extent);
  }
  Ask(now, questions, surplus_version_, /*is_of_members=*/false, out);
  return true;
}

void Replication::Ask(TimePoint now,
                      const std::map<std::string, std::vector<ManifestExtent>>& questions,
                      std::uint32_t promise_version, bool is_of_members, Outbox& out) {
  for (const auto& [node, extents] : questions) {
    Question question{node, {}, is_of_members};
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
    if (questions_.empty()) GoOn(now, view, out);
    return true;
  }
  if (const auto pull = pulls_.find(answer.id); pull != pulls_.end()) {
    const auto& result = std::get<Result<void>>(answer.reply);
    // Too many members of its stripe are lost, or it does not come of what is known.
    if (!result && pull->second.is_rebuilt &&
        (result.error().code == ErrorCode::kNotFound ||
         result.error().code == ErrorCode::kCorruption))
      unheld_.insert(pull->second.id);
    pulls_.erase(pull);
    has_pulled_ = has_pulled_ || result;
    Pull(now, view, out);
    return true;
  }
  return false;
}

void Replication::NoteHoldings(const Question& question, const Holdings& holdings) {
  for (std::size_t i = 0; i < holdings.size(); ++i) {
    const ExtentId& id = question.extents[i];
    const bool is_held = holdings[i] != Holding::kAbsent;
    if (question.is_of_members) {
      if (is_held) members_held_.insert(id);
      continue;
    }
    if (const auto found = missing_.find(id); found != missing_.end() && is_held)
      found->second.holders.push_back(question.node);
    if (const auto found = surplus_.find(id);
        found != surplus_.end() && holdings[i] == Holding::kPromised)
      found->second.promises.insert(question.node);
  }
}

// The place of an extent without any replica that answers, in a stripe that it can be computed
// from. Null: there is none.
const StripePlace* Replication::PlaceOf(const View& view, const Missing& missing) {
  const NameTable::Wanted* const wanted = view.names.Find(missing.extent.id);
  if (!missing.holders.empty() || wanted == nullptr || wanted->stripes.empty()) return nullptr;
  return &wanted->stripes.front();
}

std::optional<StripePart> Replication::PartOf(const View& view, const Missing& missing) {
  const StripePlace* const place = PlaceOf(view, missing);
  if (place == nullptr) return std::nullopt;
  return StripePart{place->manifest->code, StripeOf(*place->manifest, place->stripe),
                    place->member};
}

// How many further losses of nodes would take it from the cluster. Extents that seem to be lost
// already come last: they are tried, and others that can be had do not wait for them.
std::size_t Replication::Rank(const View& view, const Missing& missing) const {
  const auto held_count = static_cast<std::size_t>(std::ranges::count_if(
      missing.others, [&](const ExtentId& id) { return members_held_.contains(id); }));
  if (missing.holders.empty()) {
    const bool can_be_had = missing.needed_count > 0 && held_count >= missing.needed_count;
    return can_be_had ? held_count - missing.needed_count + 1 : kLostRank;
  }
  // A member that is only to lie elsewhere: its stripe has all others, as far as is known.
  const NameTable::Wanted* const wanted = view.names.Find(missing.extent.id);
  const bool is_member = wanted != nullptr && !wanted->stripes.empty();
  return missing.holders.size() +
         (is_member ? wanted->stripes.front().manifest->code.parity : std::size_t{0});
}

void Replication::Pull(TimePoint now, const View& view, Outbox& out) {
  while (pulls_.size() < options_.pulls_max && !order_.empty()) {
    const auto first = missing_.find(order_.begin()->second);
    order_.erase(order_.begin());
    Missing missing = std::move(first->second);
    missing_.erase(first);
    auto part = PartOf(view, missing);
    const bool is_rebuilt = part || missing.is_known_list;
    const bool can_be_had = !missing.holders.empty() || is_rebuilt;
    // One that cannot is left for the next look.
    if (!can_be_had) unheld_.insert(missing.extent.id);
    if (!missing.holders.empty()) unheld_.erase(missing.extent.id);
    if (!can_be_had || !view.names.Find(missing.extent.id)) continue;
    if (!view.extents.HasRoomFor(missing.extent.size_bytes)) {
      ++refusing_count_;
      continue;
    }
    elsewhere_.erase(missing.extent.id);  // Soon it is here, or is known not to be whole there.
    const Pulled pulled{missing.extent.id, is_rebuilt};
    // The likeliest first, for they are asked in that order.
    const CallId call =
        out.Ask(PullExtent{missing.extent, std::move(missing.holders), std::move(part)},
                now + options_.pull_patience);
    pulls_.emplace(call, pulled);
  }
  if (!pulls_.empty() || !missing_.empty()) return;
  refused_count_ = refusing_count_;
  // If at least one pull succeeded, looks at once for the rest; otherwise at the next interval.
  if (has_pulled_) next_ = now;
}

void Replication::Drop(TimePoint now, const View& view, Outbox& out) {
  const bool may_drop = view.MayConclude(now) && view.map_version() == surplus_version_;
  for (const auto& [id, surplus] : std::exchange(surplus_, {})) {
    const NameTable::Wanted* const wanted = view.names.Find(id);
    if (!may_drop || !wanted || surplus.promises != surplus.owners) continue;
    // Another name may want more replicas since.
    const auto owners = view.OwnersOf(*wanted).nodes;
    if (std::set(owners.begin(), owners.end()) == surplus.owners) out.Ask(DropExtent{id});
  }
}

}  // namespace ffrecord::server::cluster
