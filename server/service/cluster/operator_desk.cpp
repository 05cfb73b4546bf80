#include "server/service/cluster/operator_desk.h"

#include <algorithm>
#include <set>
#include <utility>

#include "libffrecord/base/clock.h"
#include "server/cluster/members.h"

namespace ffrecord::server {
namespace {

// Less than clients wait for a node, so that they hear why.
constexpr std::chrono::seconds kOperatorPatience{8};
// Before what came of a commit without an answer is looked at.
constexpr std::chrono::milliseconds kPause{100};

// The error of a wait that has ended in vain; another reason, as that the daemon stops, stays what
// it is.
Error Late(Error why, std::string awaited) {
  if (why.code != ErrorCode::kDeadlineExceeded) return why;
  return {ErrorCode::kUnavailable, std::move(awaited) + "; try again"};
}

}  // namespace

// --- Changes ------------------------------------------------------------------------------------

// Before everything is listed, nothing that this node does not know is known not to be.
void OperatorDesk::BeginChange(const ChangePtr& change, std::function<void()> begin) {
  const bool is_posted = machines_.Post([this, change, begin = std::move(begin)] {
    if (!machines_.is_enrolled()) return change->refuse(machines_.NotTakingPart());
    machines_.waiters().Add([this] { return view().mirror.was_listed(); }, change->deadline,
                            [change, begin](const Result<void>& listed) {
                              if (listed) return begin();
                              change->refuse(Late(listed.error(),
                                                  "this daemon has not read the metadata of its "
                                                  "cluster from the coordinator yet"));
                            });
  });
  if (!is_posted) change->refuse(NodeMachines::Stopped());
}

void OperatorDesk::CommitChange(const ChangePtr& change, MetaStore::Commit commit,
                                std::function<void()> made, std::function<void()> again) {
  if (Clock::now() >= change->deadline)
    return change->Refuse({ErrorCode::kUnavailable,
                           "the coordinator did not carry out the change in time; try again"});
  const auto committed = [this, inbox = machines_.inbox(), change, made = std::move(made),
                          again = std::move(again)](const Result<MetaStore::Outcome>& outcome) {
    if (!outcome) return change->Refuse(outcome.error());
    using Fate = MetaStore::Outcome::Fate;
    if (outcome.value().fate == Fate::kUnknown) change->unanswered.Note();
    const bool is_posted = inbox->Post([this, change, made, again, outcome = outcome.value()] {
      AwaitOutcome(change, outcome, made, again);
    });
    if (is_posted) return;
    // The daemon stops, and shows it no more.
    if (outcome.value().fate == Fate::kCommitted) return made();
    change->Refuse(NodeMachines::Stopped());
  };
  store_.TryCommit(std::move(commit), change->deadline, committed);
}

// Until the mirror shows it, or what was faster.
void OperatorDesk::AwaitOutcome(const ChangePtr& change, const MetaStore::Outcome& outcome,
                                const std::function<void()>& made,
                                const std::function<void()>& again) {
  using Fate = MetaStore::Outcome::Fate;
  const auto is_shown = [this, revision = outcome.revision] {
    return view().mirror.revision() >= revision;
  };
  if (outcome.fate == Fate::kCommitted) {
    machines_.waiters().Add(is_shown, change->deadline, [made](const Result<void>&) { made(); });
    return;
  }
  const auto look_again = [change, again](const Result<void>& reached) {
    if (reached) return again();
    change->Refuse(
        Late(reached.error(), "the coordinator has not told this daemon of the last changes"));
  };
  const TimePoint pause = Clock::now() + kPause;
  if (outcome.fate == Fate::kUnknown)
    machines_.waiters().Add([pause] { return Clock::now() >= pause; }, pause, look_again);
  else
    machines_.waiters().Add(is_shown, change->deadline, look_again);
}

// --- Members ------------------------------------------------------------------------------------

void OperatorDesk::SetMember(const net::SetMember& request, Done<void> done) {
  const auto change = std::make_shared<Change>(Clock::now() + kOperatorPatience, done);
  BeginChange(change, [this, request, change, done] { WriteMember(request, change, done); });
}

// The mirror has the record; where it is late the commit loses, and it is looked at again.
void OperatorDesk::WriteMember(const net::SetMember& request, const ChangePtr& change,
                               const Done<void>& done) {
  const std::string key = cluster::Key(cluster::kMemberKeys, request.node);
  const MetaStore::KeyValue* const entry = view().mirror.Find(key);
  const Error unknown{ErrorCode::kNotFound, "the cluster has no member " + request.node};
  if (entry == nullptr) return change->Refuse(unknown);
  auto record = cluster::MemberRecord::Decode(entry->value);
  if (!record) return change->Refuse(unknown);
  const auto state = static_cast<cluster::MemberRecord::State>(request.state);
  if (record.value().state == state) return done({});
  if (auto may = CheckChange(request.node, record.value(), state); !may)
    return change->Refuse(std::move(may).error());
  MetaStore::Commit commit;
  if (state == cluster::MemberRecord::State::kDraining) {
    auto replacements = FindReplacements(request.node);
    if (!replacements) return change->Refuse(std::move(replacements).error());
    commit.compares = std::move(replacements).value();
  }
  record.value().state = state;
  commit.compares.push_back({key, entry->mod_revision});
  commit.puts.push_back({key, record.value().Encode()});
  commit.deletes.push_back(cluster::Key(cluster::kWaitingKeys, request.node));
  CommitChange(
      change, std::move(commit), [done] { done({}); },
      [this, request, change, done] { WriteMember(request, change, done); });
}

// A node that is up and holds slots is drained, or stopped, before it is counted out: data that it
// alone has could not be read. A node that does not count has nothing to drain. Fails with
// kConflict.
Result<void> OperatorDesk::CheckChange(const std::string& node, const cluster::MemberRecord& member,
                                       cluster::MemberRecord::State state) const {
  const auto refuse = [](std::string why) { return Error{ErrorCode::kConflict, std::move(why)}; };
  if (state == cluster::MemberRecord::State::kDraining && !member.counts())
    return refuse(node + " takes no part in the cluster, and there is nothing to drain");
  if (state != cluster::MemberRecord::State::kOut || !member.counts()) return {};
  const cluster::View& view = machines_.view();
  const SlotMap& map = view.slots.map;
  const std::uint16_t ordinal = map.Find(node);
  const auto slots = ordinal == SlotMap::kNoNode ? 0 : std::ranges::count(map.rows, ordinal);
  if (slots == 0 || !view.IsLive(node)) return {};
  return refuse(node + " is up and holds " + std::to_string(slots) + " slots: drain it with " +
                "`ffrecord cluster drain` first; or stop it if its data is lost, and try again "
                "once its lease has ended");
}

// As many other nodes as there are replicas, of different failure domains, as they are on record:
// without them the replicas of `node` would have nowhere to go, and it could never be stopped. A
// commit that compares them loses if one of them is drained at the same time. Fails with kConflict.
Result<std::vector<MetaStore::Compare>> OperatorDesk::FindReplacements(
    const std::string& node) const {
  const cluster::View& view = machines_.view();
  std::size_t replicas = options_.replicas;
  for (const auto& [text, name] : view.names.names()) {
    replicas = std::max<std::size_t>(replicas, name.record.replicas);
    if (name.manifest) replicas = std::max(replicas, StripeSizeMax(*name.manifest));
  }
  std::vector<MetaStore::Compare> compares;
  std::set<std::string> domains;
  for (const auto& [id, member] : cluster::MembersOf(view)) {
    const bool takes = member.state == cluster::MemberRecord::State::kIn && member.weight > 0;
    if (id == node || !takes || !view.IsLive(id) || !domains.insert(member.domain).second) continue;
    const std::string key = cluster::Key(cluster::kMemberKeys, id);
    compares.push_back({key, view.mirror.Find(key)->mod_revision});
    if (compares.size() == replicas) return compares;
  }
  return Error{ErrorCode::kConflict,
               node + " cannot be drained: " + std::to_string(domains.size()) +
                   " other failure domains are up, and there are names with " +
                   std::to_string(replicas) +
                   " replicas or members of a stripe; start or add nodes first"};
}

// --- The feature level --------------------------------------------------------------------------

// The highest level that all nodes know which count. Fails with kConflict while one is down: it may
// be of an earlier version when it starts.
Result<std::uint32_t> OperatorDesk::FindCommonLevel() const {
  const cluster::View& view = machines_.view();
  std::uint32_t common = options_.feature_level;
  std::string down;
  for (const auto& [id, member] : cluster::MembersOf(view)) {
    if (!member.counts()) continue;
    const auto* const key = view.mirror.Find(cluster::Key(cluster::kNodeKeys, id));
    const auto record = key == nullptr ? Result<cluster::NodeRecord>(Error{})
                                       : cluster::NodeRecord::Decode(key->value);
    if (record)
      common = std::min(common, record.value().level);
    else
      down += (down.empty() ? "" : ", ") + id;
  }
  if (down.empty()) return common;
  return Error{ErrorCode::kConflict,
               "the feature level stays " + std::to_string(machines_.node().level()) + ": " + down +
                   " down, perhaps of an earlier version; start them, or count them out with "
                   "`ffrecord cluster remove`"};
}

void OperatorDesk::RaiseLevel(std::uint32_t level, Done<std::uint32_t> done) {
  const auto change = std::make_shared<Change>(Clock::now() + kOperatorPatience, done);
  BeginChange(change, [this, level, change, done] { BeginToRaise(level, change, done); });
}

void OperatorDesk::BeginToRaise(std::uint32_t level, const ChangePtr& change,
                                const Done<std::uint32_t>& done) {
  const std::uint32_t known = machines_.node().level();
  if (level != 0 && level < known)
    return change->Refuse({ErrorCode::kInvalidArgument, "the cluster is at feature level " +
                                                            std::to_string(known) +
                                                            ", and a level is never lowered"});
  if (level == known) return done(known);
  const auto common = FindCommonLevel();
  if (!common) return change->Refuse(common.error());
  if (level > common.value())
    return change->Refuse(
        {ErrorCode::kConflict, "all nodes know feature level " + std::to_string(common.value()) +
                                   ", and not all know " + std::to_string(level) +
                                   ": install the newer version on each node first"});
  if (common.value() <= known) return done(known);
  WriteLevel(level == 0 ? common.value() : level, change, done);
}

// A node of an earlier version that starts meanwhile sees the level, and lets its lease end.
void OperatorDesk::WriteLevel(std::uint32_t level, const ChangePtr& change,
                              const Done<std::uint32_t>& done) {
  const MetaStore::KeyValue* const key = view().mirror.Find(cluster::kLevelKey);
  MetaStore::Commit commit;
  commit.compares.push_back(
      {std::string(cluster::kLevelKey), key == nullptr ? 0 : key->mod_revision});
  commit.puts.push_back({std::string(cluster::kLevelKey), cluster::LevelRecord{level}.Encode()});
  CommitChange(
      change, std::move(commit), [level, done] { done(level); },
      [this, level, change, done] {
        if (machines_.node().level() >= level) return done(machines_.node().level());
        BeginToRaise(level, change, done);
      });
}

}  // namespace ffrecord::server
