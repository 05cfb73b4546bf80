#include "server/service/cluster/metadata_desk.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>
#include <vector>

#include "libffrecord/base/clock.h"
#include "libffrecord/base/hex.h"
#include "libffrecord/base/random.h"
#include "server/cluster/unanswered_commits.h"
#include "server/service/cluster/history_json.h"

namespace ffrecord::server {
namespace {

using std::chrono_literals::operator""ms;
using cluster::HistoryRecord;
using cluster::TimePoint;

constexpr auto kPatience = 10'000ms;
constexpr auto kRebuildPatience = 25'000ms;
// Tells an aborted restore of the same backup from other keys.
constexpr std::string_view kRestoreKey = "restore";

std::vector<std::byte> Bytes(std::uint64_t number) {
  const auto bytes = std::as_bytes(std::span(&number, 1));
  return {bytes.begin(), bytes.end()};
}

Error NotEmpty() {
  return {ErrorCode::kConflict,
          "the coordinator has metadata of this cluster already: a backup is put into an empty "
          "one only"};
}

// The record of the level, from that of the backup; empty: it has none. A backup from before an
// upgrade does not lower it: names that need it may be published again, and nodes of the earlier
// version would misread them.
std::vector<std::byte> RestoredLevel(std::uint32_t known, const std::vector<std::byte>& backup) {
  using cluster::LevelRecord;
  const auto older =
      backup.empty() ? Result<LevelRecord>(LevelRecord()) : LevelRecord::Decode(backup);
  if (!older) return backup;  // A later version wrote it.
  return LevelRecord{std::max(known, older.value().level)}.Encode();
}

Error Unanswered(const std::string& what) {
  cluster::UnansweredCommits unanswered;
  unanswered.Note();
  return unanswered.Explain(
      {ErrorCode::kUnavailable, "the coordinator did not say whether it has taken " + what});
}

}  // namespace

void MetadataDesk::ListMetadata(const net::MetadataList& request,
                                Done<net::MetadataListReply> done) {
  const bool is_posted = machines_.Post([this, request, done] {
    if (!machines_.is_enrolled()) return done(machines_.NotTakingPart());
    MetaStore::ListRequest list;
    list.after = request.after;
    list.limit = net::MetadataPage::kCountMax;
    list.revision = request.revision;
    store_.List(list, Clock::now() + kPatience, [done](Result<MetaStore::Page> page) {
      if (!page) return done(std::move(page).error());
      net::MetadataListReply reply;
      reply.revision = page.value().revision;
      reply.more = page.value().more;
      for (MetaStore::KeyValue& entry : page.value().entries) {
        reply.more = !reply.page.Add({entry.key, entry.mod_revision, std::move(entry.value)});
        if (reply.more) break;
        reply.more = page.value().more;
      }
      done(std::move(reply));
    });
  });
  if (!is_posted) done(NodeMachines::Stopped());
}

// --- Putting it back ----------------------------------------------------------------------------

// A page of a backup. The cluster is founded by the last one: until then nobody takes part.
void MetadataDesk::PutMetadata(const net::MetadataPut& request, Done<void> done) {
  const bool is_posted = machines_.Post([this, request, done] {
    // The store decides, not what this node knows of it: it may have been emptied just now.
    MetaStore::ListRequest list;
    list.prefix = cluster::kDatasetKeys;
    list.limit = 1;
    store_.List(list, Clock::now() + kPatience,
                [this, inbox = machines_.inbox(), request, done](Result<MetaStore::Page> page) {
                  if (!page) return done(std::move(page).error());
                  const bool is_passed_on =
                      inbox->Post([this, request, page = std::move(page).value(), done] {
                        PutInto(page, request, done);
                      });
                  if (!is_passed_on) done(NodeMachines::Stopped());
                });
  });
  if (!is_posted) done(NodeMachines::Stopped());
}

void MetadataDesk::PutInto(const MetaStore::Page& first, const net::MetadataPut& request,
                           Done<void> done) {
  // The store has parts of this backup only together with the key that says so.
  store_.Get(
      std::string(kRestoreKey), Clock::now() + kPatience,
      [this, inbox = machines_.inbox(), is_empty = first.entries.empty(), revision = first.revision,
       request, done](const Result<std::optional<MetaStore::KeyValue>>& found) {
        if (!found) return done(found.error());
        const auto& key = found.value();
        if (key ? key->value != Bytes(request.backup) : !is_empty) return done(NotEmpty());
        const std::uint64_t mod_revision = key ? key->mod_revision : 0;
        const bool is_posted = inbox->Post([this, mod_revision, revision, request, done] {
          CommitPage(mod_revision, revision, request, done);
        });
        if (!is_posted) done(NodeMachines::Stopped());
      });
}

void MetadataDesk::CommitPage(std::uint64_t restore_revision, std::uint64_t revision,
                              const net::MetadataPut& request, Done<void> done) {
  // Where this node is of an earlier version, the operator has gone back to it.
  const std::uint32_t known_level = std::min(shown_.state()->level, options_.feature_level);
  MetaStore::Commit commit;
  commit.compares.push_back({std::string(cluster::kClusterKey), 0});
  commit.compares.push_back({std::string(kRestoreKey), restore_revision});
  for (const net::MetadataEntry& entry : request.page.entries) {
    // Leased keys end with their nodes. A backup of this page alone has them not.
    if (entry.key.starts_with(cluster::kNodeKeys) || entry.key == cluster::kLeaderKey ||
        entry.key == kRestoreKey)
      continue;
    if (entry.key == cluster::kLevelKey) {
      commit.puts.push_back({entry.key, RestoredLevel(known_level, entry.value)});
      continue;
    }
    if (entry.key == cluster::kHistoryKey) {
      const auto record = HistoryRecord::Decode(entry.value);
      if (!record) return done(record.error());
      commit.puts.push_back({entry.key, RestoredHistory(record.value(), revision + 1).Encode()});
      continue;
    }
    commit.puts.push_back({entry.key, entry.value});
  }
  // A backup of level 1 need not have the key. If this one has it, a later page puts it again.
  if (restore_revision == 0 && !HasKey(commit, cluster::kLevelKey))
    commit.puts.push_back({std::string(cluster::kLevelKey), RestoredLevel(known_level, {})});
  if (request.is_last)
    commit.deletes.push_back(std::string(kRestoreKey));
  else
    commit.puts.push_back({std::string(kRestoreKey), Bytes(request.backup)});
  if (request.is_last && !HasKey(commit, cluster::kClusterKey))
    return done(
        Error{ErrorCode::kInvalidArgument, "the backup does not say of which cluster it is"});
  store_.TryCommit(std::move(commit), Clock::now() + kPatience,
                   [done](const Result<MetaStore::Outcome>& outcome) {
                     if (!outcome) return done(outcome.error());
                     using Fate = MetaStore::Outcome::Fate;
                     if (outcome.value().fate == Fate::kLost) return done(NotEmpty());
                     if (outcome.value().fate == Fate::kCommitted) return done({});
                     done(Unanswered("a part of the backup"));
                   });
}

bool MetadataDesk::HasKey(const MetaStore::Commit& commit, std::string_view key) {
  return std::ranges::any_of(commit.puts, [&](const auto& put) { return put.key == key; });
}

// The incarnation of metadata that was put back, which nobody has confirmed.
HistoryRecord MetadataDesk::RestoredHistory(const HistoryRecord& older,
                                            std::uint64_t base_revision) const {
  HistoryRecord record;
  record.incarnation = std::max<std::uint64_t>(RandomNumber(), 1);
  record.is_confirmed = false;
  record.base_revision = base_revision;
  record.map_version_min = std::max(
      older.map_version_min,
      cluster::MapVersionAfter(std::max(view().map_version(), shown_.state()->map_version())));
  record.why = "the metadata was put back by way of node " + view().node;
  // In their order: those of the older state, then those that came after it. A node that has slept
  // through several of them knows one of the earlier ones.
  const cluster::Continuity& known = view().continuity;
  record.ancestors = {0};
  record.AddAncestors(older.ancestors);
  record.AddAncestors({&older.incarnation, 1});
  record.AddAncestors(known.ancestors());
  record.AddAncestors({&known.mark().incarnation, 1});
  return record;
}

// --- Comparing, publishing again, confirming ----------------------------------------------------

// Founds the cluster again in a store that has nothing of it. A restore that nobody has finished
// may have left names there: they are of the older state, and no part of it may come later.
void MetadataDesk::BeginAnew() {
  MetaStore::ListRequest list;
  list.prefix = kRestoreKey;
  list.limit = 1;
  store_.List(list, Clock::now() + kPatience,
              [this, inbox = machines_.inbox()](Result<MetaStore::Page> page) {
                if (!page)
                  return;  // The status shows the operator that this node does not take part.
                inbox->Post([this, page = std::move(page).value()] {
                  if (machines_.is_enrolled()) return;
                  const std::uint64_t restored =
                      page.entries.empty() ? 0 : page.entries.front().mod_revision;
                  machines_.enrolment().BeginAnew(FoundingKeys(restored, page.revision));
                });
              });
}

// The keys of a new beginning from this node's own disk: members and slot map; names follow once
// the nodes take part again. `restored`: the revision of an unfinished restore's key, 0: there is
// none; `revision`: of the store.
MetaStore::Commit MetadataDesk::FoundingKeys(std::uint64_t restored, std::uint64_t revision) const {
  const ClusterStatePtr known = shown_.state();
  const HistoryRecord history = RestoredHistory({}, revision);
  MetaStore::Commit commit;
  commit.compares.push_back({std::string(kRestoreKey), restored});
  if (restored != 0) commit.deletes.push_back(std::string(kRestoreKey));
  std::vector<MetaStore::Put>& puts = commit.puts;
  puts.push_back({std::string(cluster::kHistoryKey), history.Encode()});
  puts.push_back({std::string(cluster::kLevelKey), cluster::LevelRecord{known->level}.Encode()});
  if (known->map_version() != 0) {
    cluster::SlotsRecord slots = *known->slots;
    slots.map.version = history.map_version_min;
    puts.push_back({std::string(cluster::kSlotsKey), slots.Encode()});
  }
  for (const auto& node : known->nodes) {
    const cluster::MemberRecord member{static_cast<cluster::MemberRecord::State>(node.state),
                                       node.weight, node.domain};
    puts.push_back({cluster::Key(cluster::kMemberKeys, node.id), member.Encode()});
  }
  constexpr std::size_t kPutsMax = 100;  // Limit of one commit; the nodes put others themselves.
  if (puts.size() > kPutsMax) puts.resize(kPutsMax);
  spdlog::warn("event=metadata_begun_anew node={} nodes={}", view().node, known->nodes.size());
  return commit;
}

void MetadataDesk::Step(TimePoint now) {
  if (machines_.is_enrolled() || now >= may_found_until_ || !machines_.enrolment().finds_nothing())
    return;
  may_found_until_ = {};
  BeginAnew();
}

void MetadataDesk::WorkOnHistory(const net::MetadataHistory& request, Done<std::string> done) {
  const bool is_posted = machines_.Post([this, request, done] { BeginHistory(request, done); });
  if (!is_posted) done(NodeMachines::Stopped());
}

void MetadataDesk::BeginHistory(const net::MetadataHistory& request, Done<std::string> done) {
  using Action = net::MetadataHistory::Action;
  const TimePoint deadline = Clock::now() + kRebuildPatience;
  machines_.enrolment().LookNow();
  if (request.action == Action::kConfirm)
    return ConfirmOnceShown({request.incarnation, 0, deadline}, std::move(done));
  // It looks at the store now: that may have been emptied or put back a moment ago.
  machines_.node().Doubt();
  if (request.action == Action::kRebuild) may_found_until_ = Clock::now() + kPatience;
  // Once the others have had the time to take part as well.
  machines_.waiters().Add([this] { return ShowsMetadata() && AllMembersLive(); },
                          std::min(deadline, Clock::now() + kPatience),
                          [this, request, deadline, done = std::move(done)](const Result<void>&) {
                            may_found_until_ = {};
                            if (!machines_.is_enrolled()) return done(machines_.NotTakingPart());
                            BeginRebuild(request, deadline, done);
                          });
}

// This node takes part, as it soon does after a backup was put back.
bool MetadataDesk::ShowsMetadata() const {
  return machines_.is_enrolled() && view().mirror.was_listed() && view().continuity.is_checked();
}

// Those that an operator has counted out, or that drain, are not waited for.
bool MetadataDesk::AllMembersLive() const {
  const auto& entries = view().mirror.entries();
  for (auto at = entries.lower_bound(cluster::kMemberKeys);
       at != entries.end() && at->first.starts_with(cluster::kMemberKeys); ++at) {
    const auto member = cluster::MemberRecord::Decode(at->second.value);
    if (member && member.value().state == cluster::MemberRecord::State::kIn &&
        !view().IsLive(*cluster::NameIn(cluster::kMemberKeys, at->first)))
      return false;
  }
  return true;
}

void MetadataDesk::BeginRebuild(const net::MetadataHistory& request, TimePoint deadline,
                                Done<std::string> done) {
  cluster::Rebuild::Request rebuild;
  rebuild.publishes = request.action == net::MetadataHistory::Action::kRebuild;
  rebuild.removes_returned = rebuild.publishes && request.removes_returned;
  rebuild.deadline = deadline;
  rebuilds_[machines_.node().Begin(rebuild)] = std::move(done);
}

void MetadataDesk::AnswerRebuilt() {
  for (auto& rebuilt : machines_.node().TakeRebuilt()) {
    const auto done = std::move(rebuilds_.extract(rebuilt.request).mapped());
    if (!rebuilt.result) {
      done(std::move(rebuilt.result).error());
      continue;
    }
    if (rebuilt.result.value().changed_count > 0)
      spdlog::warn("event=metadata_rebuilt node={} witness={} names={}", view().node,
                   rebuilt.result.value().witness, rebuilt.result.value().changed_count);
    done(ToJson(rebuilt.result.value()));
  }
}

void MetadataDesk::ConfirmOnceShown(const Confirmation& confirmation, Done<std::string> done) {
  const auto shows_it = [this, compared = confirmation.compared] {
    if (!ShowsMetadata()) return false;
    const MetaStore::KeyValue* const key = view().mirror.Find(cluster::kHistoryKey);
    return key == nullptr || key->mod_revision != compared;
  };
  machines_.waiters().Add(
      shows_it, std::min(confirmation.deadline, Clock::now() + kPatience),
      [this, confirmation, done = std::move(done)](const Result<void>& shown) {
        if (shown) return ConfirmHistory(confirmation, done);
        if (shown.error().code != ErrorCode::kDeadlineExceeded) return done(shown.error());
        if (!machines_.is_enrolled()) return done(machines_.NotTakingPart());
        done(Error{ErrorCode::kUnavailable,
                   "this node does not show the newest history of the metadata yet; try again"});
      });
}

// Only the incarnation that the operator has looked at: the record may be of another by now.
void MetadataDesk::ConfirmHistory(const Confirmation& confirmation, Done<std::string> done) {
  const std::uint64_t incarnation = confirmation.incarnation;
  const MetaStore::KeyValue* const key = view().mirror.Find(cluster::kHistoryKey);
  auto record =
      key == nullptr ? Result<HistoryRecord>(HistoryRecord()) : HistoryRecord::Decode(key->value);
  if (!record) return done(std::move(record).error());
  if (key == nullptr || record.value().incarnation != incarnation)
    return done(Error{ErrorCode::kConflict, "the metadata is of another incarnation than " +
                                                Hex(incarnation) + ": compare it again"});
  if (record.value().is_confirmed) return done(std::string("{\"confirmed\": true}"));
  record.value().Confirm(key->mod_revision);
  MetaStore::Commit commit;
  commit.compares.push_back({key->key, key->mod_revision});
  commit.puts.push_back({key->key, record.value().Encode()});
  const Confirmation next{incarnation, key->mod_revision, confirmation.deadline};
  store_.TryCommit(std::move(commit), confirmation.deadline,
                   [this, inbox = machines_.inbox(), node = view().node, next,
                    done](const Result<MetaStore::Outcome>& outcome) {
                     if (!outcome) return done(outcome.error());
                     using Fate = MetaStore::Outcome::Fate;
                     if (outcome.value().fate == Fate::kUnknown)
                       return done(Unanswered("the confirmation"));
                     const bool is_committed = outcome.value().fate == Fate::kCommitted;
                     if (is_committed)
                       spdlog::warn("event=metadata_confirmed node={} incarnation={}", node,
                                    Hex(next.incarnation));
                     const bool is_posted = inbox->Post(
                         [this, is_committed, revision = outcome.value().revision, next, done] {
                           // Each node that begins to lead writes that into the record, and no
                           // incarnation.
                           if (!is_committed) return ConfirmOnceShown(next, done);
                           AwaitConfirmed(revision, next.deadline, done);
                         });
                     if (is_posted) return;
                     // The daemon stops, and shows it no more.
                     if (is_committed) return done(std::string("{\"confirmed\": true}"));
                     done(NodeMachines::Stopped());
                   });
}

void MetadataDesk::AwaitConfirmed(std::uint64_t revision, TimePoint deadline,
                                  Done<std::string> done) {
  machines_.waiters().Add([this, revision] { return view().mirror.revision() >= revision; },
                          deadline,
                          [done = std::move(done)](const Result<void>&) {
                            done(std::string("{\"confirmed\": true}"));
                          });
}

void MetadataDesk::GiveUp() {
  for (const auto& [request, done] : std::exchange(rebuilds_, {})) done(NodeMachines::Stopped());
}

}  // namespace ffrecord::server
