#include "server/cluster/rebuild.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "server/cluster/removals.h"

namespace ffrecord::server::cluster {
namespace {

constexpr std::chrono::seconds kPatience{5};
constexpr std::chrono::milliseconds kRetry{200};
constexpr std::size_t kNamesMax = 32;  // Limit for one commit, which has at most 128 operations.

// The place of an incarnation among those of the record; 0: it is none of them.
std::size_t OrderOf(std::uint64_t incarnation, const HistoryRecord& record) {
  if (incarnation == record.incarnation) return record.ancestors.size() + 1;
  const auto found = std::ranges::find(record.ancestors, incarnation);
  if (found == record.ancestors.end()) return 0;
  return static_cast<std::size_t>(found - record.ancestors.begin()) + 1;
}

bool IsLive(const View& view, const std::string& member) {
  return member == view.node || view.IsLive(member);
}

HistoryMark Completion(const HistoryRecord& record, const View& view) {
  return {record.incarnation, view.mirror.revision(), {}};
}

// The newest publication that the older state has just as it was known; 0: it has none, or its
// revisions are others, as after a restore from a backup. A name that was published before that
// one, and is absent, was removed by the time of the older state.
std::uint64_t NewestShared(const View& view, const KnownNames& known, std::uint64_t base_revision) {
  std::uint64_t newest = 0;
  for (const auto& [text, name] : known) {
    const auto* const found = view.names.Find(text);
    if (found != nullptr && found->revision == name.revision && found->record == name.record &&
        name.revision <= base_revision)
      newest = std::max(newest, name.revision);
  }
  return newest;
}

}  // namespace

bool MayLackNames(const View& view) {
  const auto record = UnconfirmedIn(view);
  if (!record) return false;
  const MetaStore::KeyValue* const key = view.mirror.Find(kRebuiltKeys);
  if (key == nullptr) return true;
  const auto mark = HistoryMark::Decode(key->value);
  return !mark || mark.value().incarnation != record->incarnation;
}

bool IsNewer(const HistoryMark& mark, const HistoryMark& than, const HistoryRecord& record) {
  const auto order = [&record](const HistoryMark& of) {
    return std::tuple(OrderOf(of.incarnation, record), of.term.revision, of.revision);
  };
  return order(mark) > order(than);
}

std::vector<Difference> Compare(const std::map<std::string, NameTable::Name, std::less<>>& names,
                                const KnownNames& known, const IsOlder& is_older,
                                const WasRemoved& was_removed) {
  using Kind = Difference::Kind;
  std::vector<Difference> differences;
  for (const auto& [text, name] : known) {
    const auto found = names.find(text);
    if (found == names.end()) {
      if (!was_removed(name.record)) differences.push_back({Kind::kLost, text, name.record, 0});
    } else if (found->second.record != name.record && is_older(text, found->second.revision)) {
      differences.push_back({Kind::kReplaced, text, name.record, found->second.revision});
    }
  }
  for (const auto& [text, name] : names)
    if (!known.contains(text) && is_older(text, name.revision))
      differences.push_back({Kind::kReturned, text, name.record, name.revision});
  std::ranges::sort(differences, {}, &Difference::name);
  return differences;
}

void Rebuild::Fail(Error refusal) {
  result_ = unanswered_.any() ? unanswered_.Explain(std::move(refusal)) : std::move(refusal);
}

void Rebuild::Restart(TimePoint now) {
  if (commit_ != 0) unanswered_.Note();
  doubtful_.clear();
  phase_ = Phase::kMarks;
  questions_.clear();
  commit_ = 0;
  awaited_ = 0;
  next_ = now;
}

void Rebuild::Step(TimePoint now, const View& view, Outbox& out) {
  if (result_) return;
  if (now >= request_.deadline) {
    if (commit_ != 0) unanswered_.Note();
    return Fail({ErrorCode::kDeadlineExceeded,
                 "the nodes or the coordinator did not answer in time; what was published again "
                 "by then stays: repeat the command"});
  }
  if (now < next_ || !questions_.empty() || commit_ != 0) return;
  next_ = now + kRetry;
  if (!view.mirror.was_listed() || !view.continuity.is_checked()) return;
  const auto record = UnconfirmedIn(view);
  if (!record) return Fail(NothingUnconfirmed());
  report_.incarnation = record->incarnation;
  report_.why = record->why;
  if (phase_ == Phase::kMarks) return AskMarks(now, view, out);
  if (phase_ == Phase::kNames) return AskNames(now, *record, out);
  if (view.mirror.revision() >= awaited_) Publish(now, view, *record, out);
}

Error Rebuild::NothingUnconfirmed() const {
  if (report_.changed_count == 0)
    return {ErrorCode::kConflict,
            "the metadata was not put back to an older state, or that is confirmed already: there "
            "is nothing to compare"};
  return {ErrorCode::kConflict, "the metadata was confirmed meanwhile; " +
                                    std::to_string(report_.changed_count) +
                                    " names were published again or removed by then, and stay so"};
}

void Rebuild::AskMarks(TimePoint now, const View& view, Outbox& out) {
  report_.marks.clear();
  report_.silent.clear();
  witnesses_.clear();
  // Those that joined after the older state are no members of it, and have seen most.
  std::set<std::string> nodes = view.live;
  nodes.insert(view.node);
  const auto& entries = view.mirror.entries();
  for (auto at = entries.lower_bound(kMemberKeys);
       at != entries.end() && at->first.starts_with(kMemberKeys); ++at)
    nodes.insert(*NameIn(kMemberKeys, at->first));
  for (const std::string& node : nodes) {
    if (IsLive(view, node))
      questions_.emplace(out.Ask(AskKnown{node, false}, now + kPatience), node);
    else
      report_.silent.insert(node);
  }
  phase_ = Phase::kNames;
}

void Rebuild::AskNames(TimePoint now, const HistoryRecord& record, Outbox& out) {
  const auto newest = std::ranges::max_element(witnesses_, [&](const auto& one, const auto& other) {
    return IsNewer(other.second, one.second, record);
  });
  if (newest == witnesses_.end()) {
    return Fail({ErrorCode::kUnavailable,
                 "no node that answers has known anything of the metadata before; start the "
                 "nodes that are down"});
  }
  report_.witness = newest->first;
  phase_ = Phase::kTakeNames;
  questions_.emplace(out.Ask(AskKnown{newest->first, true}, now + kPatience), newest->first);
}

bool Rebuild::MayReplace(const View& view, const HistoryRecord& record, const std::string& name,
                         std::uint64_t revision) const {
  // Where both count revisions alike, the witness has slept through what comes after its mark.
  if (revision <= record.base_revision)
    return newest_shared_ == 0 || revision <= known_.mark.revision;
  const MetaStore::KeyValue* const key = view.mirror.Find(Key(kRebuiltKeys, name));
  if (key == nullptr || key->mod_revision != revision) return false;
  const auto mark = HistoryMark::Decode(key->value);
  return mark && IsNewer(known_.mark, mark.value(), record);
}

// Nothing is left to be published again, and nobody has noted that yet.
bool Rebuild::IsComplete(const View& view) const {
  return request_.publishes && report_.silent.empty() && MayLackNames(view);
}

void Rebuild::Publish(TimePoint now, const View& view, const HistoryRecord& record, Outbox& out) {
  newest_shared_ = NewestShared(view, known_.names, record.base_revision);
  report_.differences = Compare(
      view.names.names(), known_.names,
      [&](const std::string& name, std::uint64_t revision) {
        return MayReplace(view, record, name, revision);
      },
      [&](const DatasetRecord& published) { return view.WasRemoved(published); });
  std::erase_if(report_.differences, [&](const Difference& difference) {
    return difference.kind == Difference::Kind::kLost &&
           (known_.names.at(difference.name).revision < newest_shared_ ||
            WasRemovedSince(view, known_.mark, difference.name, difference.record));
  });
  CountDone();
  MetaStore::Commit commit;
  committing_.clear();
  for (const Difference& difference : report_.differences) {
    const bool returned = difference.kind == Difference::Kind::kReturned;
    if (!(returned ? request_.removes_returned : request_.publishes)) continue;
    if (committing_.size() == kNamesMax) break;
    committing_.insert(difference.name);
    const std::string key = Key(kDatasetKeys, difference.name);
    commit.compares.push_back({key, difference.revision});
    if (returned) {
      commit.deletes.push_back(key);
      continue;
    }
    commit.puts.push_back({key, difference.record.Encode()});
    commit.puts.push_back({Key(kRebuiltKeys, difference.name), known_.mark.Encode()});
  }
  if (committing_.empty()) {
    if (!IsComplete(view)) {
      result_ = report_;
      return;
    }
    commit.puts.push_back({std::string(kRebuiltKeys), Completion(record, view).Encode()});
  }
  // Not once it is confirmed: from then on nodes may drop what these names refer to.
  commit.compares.push_back(
      {std::string(kHistoryKey), view.mirror.Find(kHistoryKey)->mod_revision});
  commit.puts.push_back({std::string(kGenerationKey), {}});
  commit_ = out.Ask(std::move(commit), now + kPatience);
}

// A difference that is gone was mended by a commit without an answer.
void Rebuild::CountDone() {
  for (const std::string& name : std::exchange(doubtful_, {}))
    if (std::ranges::find(report_.differences, name, &Difference::name) ==
        report_.differences.end())
      ++report_.changed_count;
}

void Rebuild::Committed(TimePoint now, const Result<MetaStore::Outcome>& outcome) {
  using Fate = MetaStore::Outcome::Fate;
  if (!outcome) return;
  if (outcome.value().fate == Fate::kUnknown) {
    unanswered_.Note();
    doubtful_ = committing_;
  } else if (outcome.value().fate == Fate::kCommitted) {
    report_.changed_count += committing_.size();
    awaited_ = outcome.value().revision;
    next_ = now;
  }
}

bool Rebuild::Take(TimePoint now, const View& view, const Answer& answer, Outbox& out) {
  if (commit_ != 0 && answer.id == commit_) {
    commit_ = 0;
    Committed(now, std::get<Result<MetaStore::Outcome>>(answer.reply));
  } else if (const auto question = questions_.find(answer.id); question != questions_.end()) {
    const std::string node = question->second;
    questions_.erase(question);
    const auto& known = std::get<Result<Known>>(answer.reply);
    if (!known) {
      report_.silent.insert(node);
      report_.marks.erase(node);
      witnesses_.erase(node);
      phase_ = Phase::kNames;
    } else if (phase_ == Phase::kTakeNames) {
      known_ = known.value();
      phase_ = Phase::kPublish;
    } else {
      report_.marks[node] = known.value().mark;
      if (known.value().mark.revision != 0) witnesses_[node] = known.value().mark;
    }
    if (questions_.empty()) next_ = now;
  } else {
    return false;
  }
  Step(now, view, out);
  return true;
}

}  // namespace ffrecord::server::cluster
