#include "server/cluster/leader.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/hex.h"
#include "server/cluster/members.h"
#include "server/cluster/placement.h"
#include "server/cluster/upload_quotas.h"

namespace ffrecord::server::cluster {
namespace {

constexpr std::size_t kSubjectsMax = 64;  // Two operations each, of the 128 of a commit.

// Names this start of this node: an earlier one's is not ours.
std::vector<std::byte> OwnValue(const View& view) {
  const std::string text = view.node + " " + Hex(view.lease.epoch());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// The history of the metadata; none: there is no record of it yet, or none that can be read.
std::optional<HistoryRecord> HistoryOf(const View& view) {
  const MetaStore::KeyValue* const key = view.mirror.Find(kHistoryKey);
  if (key == nullptr) return std::nullopt;
  auto record = HistoryRecord::Decode(key->value);
  return record ? std::optional(std::move(record).value()) : std::nullopt;
}

}  // namespace

void Leader::Update(const View& view) {
  const MetaStore::KeyValue* const key = view.mirror.Find(kLeaderKey);
  const bool is_ours = key != nullptr && key->value == OwnValue(view);
  fence_ = is_ours && view.lease.lease() != 0 ? key->mod_revision : 0;
}

void Leader::Step(TimePoint now, const View& view, Outbox& out) {
  if (now < next_) return;
  next_ = now + options_.interval;
  if (commit_ != 0 || !questions_.empty() || !view.mirror.was_listed()) return;
  if (view.mirror.revision() < awaited_) return;
  if (!view.lease.IsLeased(now) || !view.continuity.is_checked()) return;
  // Uploads that were open in an older state may be data by now: their time begins when an operator
  // has confirmed it.
  if (!view.continuity.is_trusted()) uploads_seen_.clear();
  if (!is_leading()) return Campaign(now, view, out);
  if (ApproveMembers(now, view, out)) return;
  NoteDown(now, view);
  if (ChangeMap(now, view, out) || !view.continuity.is_trusted()) return;
  if (ForgetRebuilt(now, view, out) || ForgetPending(now, view, out)) return;
  // By turns, so that none of them keeps the others from theirs.
  for (int tries = 0; tries < 3; ++tries) {
    turn_ = (turn_ + 1) % 3;
    if (turn_ == 0 && AskFilledNodes(now, view, out)) return;
    if (turn_ == 1 && AskAboutUploads(now, view, out)) return;
    if (turn_ == 2 && AskAboutTombstones(now, view, out)) return;
  }
}

void Leader::Campaign(TimePoint now, const View& view, Outbox& out) {
  down_since_.clear();
  uploads_seen_.clear();
  if (view.mirror.Find(kLeaderKey) != nullptr) return;
  MetaStore::Commit commit;
  commit.compares.push_back({std::string(kLeaderKey), 0});
  commit.puts.push_back({std::string(kLeaderKey), OwnValue(view), view.lease.lease()});
  AddTerm(view, commit);
  asked_ = Asked::kLead;
  commit_ = out.Ask(std::move(commit), now + options_.patience);
}

void Leader::AddTerm(const View& view, MetaStore::Commit& commit) {
  const MetaStore::KeyValue* const key = view.mirror.Find(kHistoryKey);
  auto history = HistoryOf(view);
  if (key != nullptr && !history) return;  // A later version of this program wrote it.
  const std::array words{view.lease.epoch(), ++campaign_count_, view.mirror.revision()};
  const std::uint64_t token = std::max<std::uint64_t>(Xxh3(std::as_bytes(std::span(words))), 1);
  if (!history) {
    history.emplace();
    history->incarnation = token;
  }
  const std::uint64_t revision = key == nullptr ? 0 : key->mod_revision;
  history->AddTerm(token, revision);
  commit.compares.push_back({std::string(kHistoryKey), revision});
  commit.puts.push_back({std::string(kHistoryKey), history->Encode()});
}

void Leader::Commit(TimePoint now, MetaStore::Commit commit, Outbox& out) {
  commit.compares.push_back({std::string(kLeaderKey), fence_});
  asked_ = Asked::kCommit;
  commit_ = out.Ask(std::move(commit), now + options_.patience);
}

bool Leader::ApproveMembers(TimePoint now, const View& view, Outbox& out) {
  if (!options_.approves_members) return false;
  MetaStore::Commit commit;
  for (const auto& [id, member] : MembersOf(view)) {
    if (member.state != MemberRecord::State::kWaiting || commit.puts.size() == kSubjectsMax)
      continue;
    const std::string key = Key(kMemberKeys, id);
    MemberRecord approved = member;
    approved.state = MemberRecord::State::kIn;
    commit.compares.push_back({key, view.mirror.Find(key)->mod_revision});
    commit.puts.push_back({key, approved.Encode()});
    commit.deletes.push_back(Key(kWaitingKeys, id));
  }
  if (commit.puts.empty()) return false;
  Commit(now, std::move(commit), out);
  return true;
}

// Removes the notes of rebuilds, which serve until the metadata is confirmed.
bool Leader::ForgetRebuilt(TimePoint now, const View& view, Outbox& out) {
  MetaStore::Commit commit;
  const auto& entries = view.mirror.entries();
  for (auto at = entries.lower_bound(kRebuiltKeys);
       at != entries.end() && at->first.starts_with(kRebuiltKeys) &&
       commit.deletes.size() < kSubjectsMax;
       ++at)
    commit.deletes.push_back(at->first);
  if (commit.deletes.empty()) return false;
  Commit(now, std::move(commit), out);
  return true;
}

// Removes pending extents that were uploaded and are published, or were given up.
bool Leader::ForgetPending(TimePoint now, const View& view, Outbox& out) {
  MetaStore::Commit commit;
  for (const MetaStore::KeyValue* const key : PendingNoMore(view, kSubjectsMax - 1)) {
    commit.compares.push_back({key->key, key->mod_revision});
    commit.deletes.push_back(key->key);
  }
  if (commit.deletes.empty()) return false;
  Commit(now, std::move(commit), out);
  return true;
}

// --- The slot map -------------------------------------------------------------------------------

void Leader::NoteDown(TimePoint now, const View& view) {
  std::erase_if(down_since_, [&](const auto& entry) { return view.IsLive(entry.first); });
  for (const auto& [id, member] : MembersOf(view))
    if (member.counts() && !view.IsLive(id)) down_since_.try_emplace(id, now);
}

std::vector<PlacedNode> Leader::Placeable(TimePoint now, const View& view) const {
  return PlaceableNodes(view, [&](const std::string& id) {
    const auto down = down_since_.find(id);
    return down != down_since_.end() && now - down->second >= options_.down_grace;
  });
}

bool Leader::ChangeMap(TimePoint now, const View& view, Outbox& out) {
  auto nodes = Placeable(now, view);
  const auto history = HistoryOf(view);
  SlotMap before = view.slots.map;
  const std::uint32_t version_min = history ? history->map_version_min : 0;
  if (nodes.empty() || (nodes == before.nodes && before.row_size == options_.row_size &&
                        before.version >= version_min))
    return false;
  before.version = std::max(before.version, version_min);
  std::set<std::string> domains;
  for (const PlacedNode& node : nodes)
    if (node.weight > 0) domains.insert(node.domain);
  // A map without owners would hide the replicas that there are, on nodes that drain say.
  if (domains.empty()) {
    trouble_ =
        "no node that is up takes slots, and the slot map stays as it is; start, undrain or add "
        "nodes";
    return false;
  }
  auto map = Place(before, std::move(nodes), {.row_size = options_.row_size, .allow_short = true});
  if (!map) {
    trouble_ = map.error().message;
    return false;
  }
  trouble_ = domains.size() < options_.replicas
                 ? std::to_string(domains.size()) + " failure domains are up and " +
                       std::to_string(options_.replicas) +
                       " replicas are wanted; start or add nodes"
                 : "";
  SlotsRecord record;
  record.map = std::move(map).value();
  // Replicas may still lie where they were before an earlier change.
  record.previous = view.slots.previous;
  if (!record.previous && view.slots.map.row_size > 0) record.previous = view.slots.map;
  const MetaStore::KeyValue* const key = view.mirror.Find(kSlotsKey);
  MetaStore::Commit commit;
  commit.compares.push_back({std::string(kSlotsKey), key == nullptr ? 0 : key->mod_revision});
  commit.puts.push_back({std::string(kSlotsKey), record.Encode()});
  Commit(now, std::move(commit), out);
  return true;
}

template <class Question>
void Leader::Ask(TimePoint now, const std::string& node, Question question, Outbox& out) {
  question.node = node;
  questions_.emplace(out.Ask(std::move(question), now + options_.patience), node);
}

template <class Question>
void Leader::AskAll(TimePoint now, const View& view, const Question& question, Outbox& out) {
  flags_.clear();
  for (const auto& [id, member] : MembersOf(view))
    if (member.counts()) Ask(now, id, question, out);
}

// Those that own slots: the others have nothing to get, and may be down for good.
bool Leader::AskFilledNodes(TimePoint now, const View& view, Outbox& out) {
  if (!view.slots.previous) return false;
  asked_ = Asked::kFilled;
  subjects_ = {{std::string(kSlotsKey), view.mirror.Find(kSlotsKey)->mod_revision}};
  flags_.clear();
  const SlotMap& map = view.slots.map;
  std::vector<bool> owns(map.nodes.size(), false);
  for (const std::uint16_t owner : map.rows)
    if (owner != SlotMap::kNoNode) owns[owner] = true;
  for (std::size_t node = 0; node < owns.size(); ++node)
    if (owns[node]) Ask(now, map.nodes[node].id, AskFilled{"", view.map_version()}, out);
  return !questions_.empty();
}

bool Leader::AskAboutUploads(TimePoint now, const View& view, Outbox& out) {
  AskHeard question;
  subjects_.clear();
  std::erase_if(uploads_seen_, [&](const auto& entry) { return !view.mirror.Find(entry.first); });
  const auto& entries = view.mirror.entries();
  for (auto at = entries.lower_bound(kUploadKeys);
       at != entries.end() && at->first.starts_with(kUploadKeys); ++at) {
    const auto upload = UploadOfKey(at->first);
    const TimePoint seen = uploads_seen_.try_emplace(at->first, now).first->second;
    if (!upload || now - seen < options_.upload_grace || question.uploads.size() == kSubjectsMax)
      continue;
    question.uploads.push_back(*upload);
    subjects_.push_back({at->first, at->second.mod_revision});
  }
  if (subjects_.empty()) return false;
  asked_ = Asked::kHeard;
  AskAll(now, view, question, out);
  return true;
}

// By turns: while some wait for their grace, those behind them may be done.
bool Leader::AskAboutTombstones(TimePoint now, const View& view, Outbox& out) {
  AskBuried question;
  subjects_.clear();
  const auto& entries = view.mirror.entries();
  const auto is_tombstone = [&](auto at) {
    return at != entries.end() && at->first.starts_with(kTombstoneKeys);
  };
  auto at = entries.upper_bound(last_tombstone_);
  if (!is_tombstone(at)) at = entries.lower_bound(kTombstoneKeys);
  for (; is_tombstone(at) && question.keys.size() < kSubjectsMax; ++at) {
    question.keys.push_back(at->first);
    subjects_.push_back({at->first, at->second.mod_revision});
  }
  if (question.keys.empty()) return false;
  last_tombstone_ = question.keys.back();
  asked_ = Asked::kBuried;
  AskAll(now, view, question, out);
  return true;
}

// --- Answers ------------------------------------------------------------------------------------

bool Leader::Take(TimePoint now, const View& view, const Answer& answer, Outbox& out) {
  if (commit_ != 0 && answer.id == commit_) {
    commit_ = 0;  // The mirror tells what has come of it.
    const auto& outcome = std::get<Result<MetaStore::Outcome>>(answer.reply);
    if (outcome && outcome.value().fate == MetaStore::Outcome::Fate::kCommitted)
      awaited_ = outcome.value().revision;
    asked_ = Asked::kNothing;
    next_ = now;
    return true;
  }
  const auto question = questions_.find(answer.id);
  if (question == questions_.end()) return false;
  // Uploads: heard of by anybody, and a node that is up and does not answer may have heard. The
  // others: yes from everybody, and silence is no.
  const bool any = asked_ == Asked::kHeard;
  const bool of_silence = any && view.IsLive(question->second);
  questions_.erase(question);
  const auto& flags = std::get<Result<Flags>>(answer.reply);
  Flags said = flags && flags.value().size() == subjects_.size()
                   ? flags.value()
                   : Flags(subjects_.size(), of_silence);
  if (flags_.empty()) {
    flags_ = std::move(said);
  } else {
    for (std::size_t i = 0; i < flags_.size(); ++i)
      flags_[i] = any ? flags_[i] || said[i] : flags_[i] && said[i];
  }
  if (questions_.empty()) Finish(now, view, out);
  return true;
}

void Leader::Finish(TimePoint now, const View& view, Outbox& out) {
  // Also if it may do nothing now: in the next second it may, and who has heard may be silent.
  if (asked_ == Asked::kHeard) NoteHeard(now);
  if (!is_leading() || !view.continuity.is_trusted()) return;
  switch (asked_) {
    case Asked::kFilled:
      return ForgetPreviousMap(now, view, out);
    case Asked::kHeard:
      return GiveUpUploads(now, out);
    case Asked::kBuried:
      return RemoveTombstones(now, out);
    default:
      return;
  }
}

void Leader::ForgetPreviousMap(TimePoint now, const View& view, Outbox& out) {
  const Subject& slots = subjects_.front();
  const MetaStore::KeyValue* const key = view.mirror.Find(slots.key);
  if (!flags_.front() || key == nullptr || key->mod_revision != slots.revision) return;
  MetaStore::Commit commit;
  commit.compares.push_back({slots.key, slots.revision});
  commit.puts.push_back({slots.key, SlotsRecord{view.slots.map, std::nullopt}.Encode()});
  Commit(now, std::move(commit), out);
}

// Uploads that go on are asked about again after another grace.
void Leader::NoteHeard(TimePoint now) {
  for (std::size_t i = 0; i < subjects_.size(); ++i)
    if (flags_[i]) uploads_seen_[subjects_[i].key] = now;
}

void Leader::GiveUpUploads(TimePoint now, Outbox& out) {
  MetaStore::Commit commit;
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    const auto& [key, revision] = subjects_[i];
    const auto upload = UploadOfKey(key);
    if (!upload || flags_[i]) continue;
    TombstoneRecord tombstone;
    tombstone.upload = *upload;
    commit.compares.push_back({key, revision});
    commit.deletes.push_back(key);
    commit.puts.push_back({UploadTombstoneKey(*upload), tombstone.Encode()});
  }
  if (!commit.deletes.empty()) Commit(now, std::move(commit), out);
}

void Leader::RemoveTombstones(TimePoint now, Outbox& out) {
  MetaStore::Commit commit;
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    if (!flags_[i]) continue;
    commit.compares.push_back({subjects_[i].key, subjects_[i].revision});
    commit.deletes.push_back(subjects_[i].key);
  }
  if (!commit.deletes.empty()) Commit(now, std::move(commit), out);
}

}  // namespace ffrecord::server::cluster
