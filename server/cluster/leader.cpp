#include "server/cluster/leader.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "libffrecord/base/hex.h"
#include "server/cluster/placement.h"

namespace ffrecord::server::cluster {
namespace {

constexpr std::size_t kSubjectsMax = 64;  // Two operations each, of the 128 of a commit.

// Of this start of this node: an earlier one's is not ours.
std::vector<std::byte> OwnValue(const View& view) {
  const std::string text = view.node + " " + Hex(view.lease.epoch());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// The members that operators have let in, by id.
std::map<std::string, MemberRecord> MembersOf(const View& view) {
  std::map<std::string, MemberRecord> members;
  const auto& entries = view.mirror.entries();
  for (auto at = entries.lower_bound(kMemberKeys);
       at != entries.end() && at->first.starts_with(kMemberKeys); ++at)
    if (auto member = MemberRecord::Decode(at->second.value))
      members.emplace(*NameIn(kMemberKeys, at->first), std::move(member).value());
  return members;
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
  if (!view.lease.IsLeased(now)) return;
  if (!is_leading()) return Campaign(now, view, out);
  NoteDown(now, view);
  if (ChangeMap(now, view, out)) return;
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
  asked_ = Asked::kLead;
  commit_ = out.Ask(std::move(commit), now + options_.patience);
}

void Leader::Commit(TimePoint now, MetaStore::Commit commit, Outbox& out) {
  commit.compares.push_back({std::string(kLeaderKey), fence_});
  asked_ = Asked::kCommit;
  commit_ = out.Ask(std::move(commit), now + options_.patience);
}

// --- The slot map -------------------------------------------------------------------------------

void Leader::NoteDown(TimePoint now, const View& view) {
  std::erase_if(down_since_, [&](const auto& entry) { return view.IsLive(entry.first); });
  for (const auto& [id, member] : MembersOf(view))
    if (!view.IsLive(id)) down_since_.try_emplace(id, now);
}

// All that may hold extents. Those that are draining, or down for long, without weight.
std::vector<PlacedNode> Leader::Placeable(TimePoint now, const View& view) const {
  std::vector<PlacedNode> nodes;
  for (const auto& [id, member] : MembersOf(view)) {
    if (member.state == MemberRecord::State::kOut) continue;
    const auto down = down_since_.find(id);
    const std::uint16_t placed = view.slots.map.Find(id);
    if (down != down_since_.end() && placed == SlotMap::kNoNode) continue;  // Never seen yet.
    const bool was_lost = placed != SlotMap::kNoNode && view.slots.map.nodes[placed].weight == 0;
    const bool is_lost =
        down != down_since_.end() && (was_lost || now - down->second >= options_.down_grace);
    const bool takes = member.state == MemberRecord::State::kIn && !is_lost;
    nodes.push_back({id, member.domain, takes ? member.weight : 0});
  }
  return nodes;
}

bool Leader::ChangeMap(TimePoint now, const View& view, Outbox& out) {
  auto nodes = Placeable(now, view);
  if (nodes.empty() ||
      (nodes == view.slots.map.nodes && view.slots.map.row_size == options_.row_size))
    return false;
  std::set<std::string> domains;
  for (const PlacedNode& node : nodes)
    if (node.weight > 0) domains.insert(node.domain);
  auto map =
      Place(view.slots.map, std::move(nodes), {.row_size = options_.row_size, .allow_short = true});
  if (!map) {
    trouble_ = map.error().message;
    return false;
  }
  trouble_ = domains.size() < options_.row_size
                 ? std::to_string(domains.size()) + " failure domains are up and " +
                       std::to_string(options_.row_size) +
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
void Leader::AskAll(TimePoint now, const View& view, const Question& question, Outbox& out) {
  flags_.clear();
  for (const auto& [id, member] : MembersOf(view)) {
    if (member.state == MemberRecord::State::kOut) continue;
    Question asked = question;
    asked.node = id;
    questions_.emplace(out.Ask(std::move(asked), now + options_.patience), id);
  }
}

bool Leader::AskFilledNodes(TimePoint now, const View& view, Outbox& out) {
  if (!view.slots.previous) return false;
  asked_ = Asked::kFilled;
  subjects_ = {{std::string(kSlotsKey), view.mirror.Find(kSlotsKey)->mod_revision}};
  AskAll(now, view, AskFilled{"", view.map_version()}, out);
  return true;
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

bool Leader::AskAboutTombstones(TimePoint now, const View& view, Outbox& out) {
  AskBuried question;
  subjects_.clear();
  const auto& entries = view.mirror.entries();
  for (auto at = entries.lower_bound(kTombstoneKeys);
       at != entries.end() && at->first.starts_with(kTombstoneKeys) &&
       question.keys.size() < kSubjectsMax;
       ++at) {
    question.keys.push_back(at->first);
    subjects_.push_back({at->first, at->second.mod_revision});
  }
  if (question.keys.empty()) return false;
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
  questions_.erase(question);
  // Uploads: heard of by anybody. The others: yes from everybody, and silence is no.
  const bool any = asked_ == Asked::kHeard;
  const auto& flags = std::get<Result<Flags>>(answer.reply);
  Flags said = flags && flags.value().size() == subjects_.size() ? flags.value()
                                                                 : Flags(subjects_.size(), false);
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
  if (!is_leading()) return;
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

void Leader::GiveUpUploads(TimePoint now, Outbox& out) {
  MetaStore::Commit commit;
  for (std::size_t i = 0; i < subjects_.size(); ++i) {
    const auto& [key, revision] = subjects_[i];
    const auto upload = UploadOfKey(key);
    if (!upload) continue;
    if (flags_[i]) {  // Asked about again after another grace, for who has heard of it may be
                      // silent.
      uploads_seen_[key] = now;
      continue;
    }
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
