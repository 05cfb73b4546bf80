#include "server/cluster/continuity.h"

#include <algorithm>
#include <array>
#include <utility>

#include "libffrecord/base/checksum.h"

namespace ffrecord::server::cluster {
namespace {

bool Contains(const std::vector<std::uint64_t>& numbers, std::uint64_t number) {
  return std::ranges::find(numbers, number) != numbers.end();
}

// The leaders after the mark's have begun after the mark. One that has begun before it has begun in
// a history that does not have the mark.
bool HasTerms(const HistoryMark& mark, const HistoryRecord& record, std::uint64_t mod_revision) {
  if (record.terms.empty()) return mark.term.token == 0;
  const auto revision_of = [&](const HistoryRecord::Term& term) {
    return term.revision == 0 ? mod_revision : term.revision;
  };
  const auto found = std::ranges::find(record.terms, mark.term.token, &HistoryRecord::Term::token);
  // So many have led since that its own is forgotten.
  if (found == record.terms.end()) return revision_of(record.terms.front()) > mark.revision;
  const auto next = std::next(found);
  return revision_of(*found) == mark.term.revision &&
         (next == record.terms.end() || revision_of(*next) > mark.revision);
}

}  // namespace

Relation Relate(const HistoryMark& mark, const HistoryRecord* record, std::uint64_t mod_revision,
                std::uint64_t revision) {
  if (mark.revision == 0) return Relation::kContinues;
  if (record != nullptr && record->incarnation != mark.incarnation &&
      Contains(record->ancestors, mark.incarnation))
    return Relation::kDescends;
  if (revision < mark.revision) return Relation::kForeign;
  if (mark.incarnation == 0) return Relation::kContinues;
  if (record == nullptr || record->incarnation != mark.incarnation ||
      !HasTerms(mark, *record, mod_revision))
    return Relation::kForeign;
  return Relation::kContinues;
}

void Continuity::Doubt() {
  is_checked_ = finds_nothing_ = false;
  is_doubted_ = true;
  next_ = {};
}

void Continuity::Refute() {
  is_refuted_ = true;
  Doubt();
}

bool Continuity::TakeRestart() { return std::exchange(must_restart_, false); }

void Continuity::Update(const std::set<std::string>& changed, const KeyMirror& mirror) {
  newest_.Update(changed, mirror);
  const MetaStore::KeyValue* const key = mirror.Find(kHistoryKey);
  if (const auto* const cluster = mirror.Find(kClusterKey))
    cluster_revision_ = cluster->mod_revision;
  current_ = {0, mirror.revision(), {}, newest_.newest()};
  current_ancestors_.clear();
  is_unconfirmed_ = false;
  if (key != nullptr) {
    const auto record = HistoryRecord::Decode(key->value);
    // One that cannot be read is of a later version of this program: nothing is dropped by it.
    is_unconfirmed_ = !record || !record.value().is_confirmed;
    why_ = record ? record.value().why : record.error().message;
    if (record) {
      current_.incarnation = record.value().incarnation;
      current_ancestors_ = record.value().ancestors;
      current_.term = record.value().NewestTerm(key->mod_revision).value_or(HistoryRecord::Term{});
    }
  }
  if (is_trusted()) Trust();
}

void Continuity::Trust() {
  mark_ = current_;
  ancestors_ = current_ancestors_;
}

void Continuity::Step(TimePoint now, Outbox& out) {
  if (call_ != 0 || now < next_) return;
  asked_mark_ = mark_;
  asked_current_ = current_;
  is_doubted_ = asks_anchor_ = false;
  MetaStore::ListRequest request;
  request.prefix = kHistoryKey;
  request.limit = 1;
  call_ = out.Ask(std::move(request), now + options_.patience);
}

bool Continuity::Take(TimePoint now, std::uint32_t map_version, const Answer& answer, Outbox& out) {
  if (call_ == 0 || answer.id != call_) return false;
  call_ = 0;
  next_ = now + options_.retry;
  const bool was_for_anchor = std::exchange(asks_anchor_, false);
  using Found = Result<std::optional<MetaStore::KeyValue>>;
  const auto* const page = std::get_if<Result<MetaStore::Page>>(&answer.reply);
  const auto* const found = std::get_if<Found>(&answer.reply);
  const auto* const outcome = std::get_if<Result<MetaStore::Outcome>>(&answer.reply);
  if (is_doubted_) {  // It may be of before the doubt.
    if ((page && *page) || (found && *found) || (outcome && *outcome)) next_ = now;
  } else if (page && was_for_anchor) {
    TakeAnchor(now, map_version, *page, out);
  } else if (page && *page) {
    TakePage(now, map_version, page->value(), out);
  } else if (found && *found) {
    TakeCluster(now, map_version, found->value(), out);
  } else if (outcome && *outcome) {
    // The reply to the commit of an incarnation: the next look at the store finds the outcome. If
    // it cannot be put there, as in the store of another cluster, not at once.
    if (outcome->value().fate == MetaStore::Outcome::Fate::kCommitted) next_ = now;
  }
  return true;
}

void Continuity::TakePage(TimePoint now, std::uint32_t map_version, const MetaStore::Page& page,
                          Outbox& out) {
  look_ = {};
  look_.revision = page.revision;
  if (!page.entries.empty() && page.entries.front().key == kHistoryKey) {
    look_.mod_revision = page.entries.front().mod_revision;
    auto decoded = HistoryRecord::Decode(page.entries.front().value);
    if (!decoded) return;  // A later version wrote it: conclude nothing.
    look_.record = std::move(decoded).value();
  }
  look_.mark = RelateToStore(asked_mark_);
  look_.current = RelateToStore(asked_current_);
  if (look_.mark == Relation::kContinues && is_refuted_) look_.mark = Relation::kForeign;
  if (!AskAnchor(now, out)) Conclude(now, map_version, out);
}

Relation Continuity::RelateToStore(const HistoryMark& mark) const {
  return Relate(mark, look_.known(), look_.mod_revision, look_.revision);
}

// Asks for the anchor of the mark; where the store is another one anyway, for that of the keys in
// the mirror, in which a listing of before may be mixed with changes of after. False: there is
// nothing to ask for.
bool Continuity::AskAnchor(TimePoint now, Outbox& out) {
  if (look_.mark == Relation::kForeign) return false;
  const auto has_anchor = [](const HistoryMark& mark, Relation relation) {
    return relation == Relation::kContinues && mark.anchor.revision != 0;
  };
  look_.anchors_mark = has_anchor(asked_mark_, look_.mark);
  if (!look_.anchors_mark && !has_anchor(asked_current_, look_.current)) return false;
  const HistoryMark& mark = look_.anchors_mark ? asked_mark_ : asked_current_;
  MetaStore::ListRequest request;
  request.prefix = mark.anchor.key;
  request.limit = 1;
  request.revision = mark.revision;
  asks_anchor_ = true;
  call_ = out.Ask(std::move(request), now + options_.patience);
  return true;
}

void Continuity::TakeAnchor(TimePoint now, std::uint32_t map_version,
                            const Result<MetaStore::Page>& page, Outbox& out) {
  // Where the store has forgotten what it was then, the revision and the leaders have to do.
  if (!page && page.error().code != ErrorCode::kConflict) return;
  const Anchor& anchor = (look_.anchors_mark ? asked_mark_ : asked_current_).anchor;
  const auto is_there = [&](const std::vector<MetaStore::KeyValue>& entries) {
    return !entries.empty() && AnchorOf(entries.front()) == anchor;
  };
  if (page && !is_there(page.value().entries))
    (look_.anchors_mark ? look_.mark : look_.current) = Relation::kForeign;
  Conclude(now, map_version, out);
}

void Continuity::Conclude(TimePoint now, std::uint32_t map_version, Outbox& out) {
  const HistoryRecord* const known = look_.known();
  if (look_.mark == Relation::kForeign) {
    is_foreign_ = true;
    is_checked_ = false;
    if (known != nullptr) return BeginIncarnation(now, map_version, out);
    // Older than the record, or empty.
    call_ = out.Ask(GetKey{std::string(kClusterKey)}, now + options_.patience);
    return;
  }
  is_foreign_ = is_refuted_ = finds_nothing_ = false;
  is_checked_ = true;
  is_unconfirmed_ = known != nullptr && !known->is_confirmed;
  if (is_unconfirmed_) why_ = known->why;
  next_ = now + options_.interval;
  if (asked_current_.revision == 0) return;
  if (look_.current == Relation::kContinues) {
    if (is_trusted()) Trust();
    return;
  }
  must_restart_ = true;
  current_ = {};
  current_ancestors_.clear();
  newest_.Clear();
}

// Nothing is put into a store that has nothing of the cluster: a backup goes into an empty one.
void Continuity::TakeCluster(TimePoint now, std::uint32_t map_version,
                             const std::optional<MetaStore::KeyValue>& found, Outbox& out) {
  finds_nothing_ = !found;
  if (!finds_nothing_) return BeginIncarnation(now, map_version, out);
  why_ = "the coordinator has nothing of the cluster: restore or rebuild its metadata";
}

void Continuity::BeginIncarnation(TimePoint now, std::uint32_t map_version, Outbox& out) {
  const HistoryRecord* const record = look_.known();
  const std::uint64_t revision = look_.revision;
  HistoryRecord next;
  const std::array words{options_.seed, ++begun_count_, revision};
  next.incarnation = std::max<std::uint64_t>(Xxh3(std::as_bytes(std::span(words))), 1);
  next.is_confirmed = false;
  next.map_version_min = MapVersionAfter(map_version);
  why_ =
      "node " + options_.node + " has seen revision " + std::to_string(asked_mark_.revision) +
      " of the metadata, and the coordinator was put back to an older state; it is at revision " +
      std::to_string(revision);
  next.why = why_;
  next.base_revision = revision;
  if (record != nullptr) {
    // Nobody has published again yet the names that an older state lacks.
    if (!record->is_confirmed) next.base_revision = std::min(revision, record->base_revision);
    next.map_version_min = std::max(next.map_version_min, record->map_version_min);
    next.ancestors = record->ancestors;
    next.AddAncestors({&record->incarnation, 1});
  }
  // Also those between the older state's and the mark's: a node may have slept since one of them.
  next.AddAncestors(ancestors_);
  next.AddAncestors({&asked_mark_.incarnation, 1});
  MetaStore::Commit commit;
  commit.compares.push_back({std::string(kHistoryKey), look_.mod_revision});
  if (cluster_revision_ != 0)
    commit.compares.push_back({std::string(kClusterKey), cluster_revision_});
  commit.puts.push_back({std::string(kHistoryKey), next.Encode()});
  call_ = out.Ask(std::move(commit), now + options_.patience);
}

}  // namespace ffrecord::server::cluster
