#include "server/cluster/cluster_node.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ffrecord::server::cluster {
namespace {

constexpr std::chrono::milliseconds kRetry{500};
constexpr std::chrono::seconds kNewestPatience{2};

}  // namespace

ClusterNode::ClusterNode(const Options& options, const LocalExtents& extents)
    : options_(options),
      node_(options.lease.node),
      lease_(options.lease),
      continuity_({.seed = options.lease.record.epoch,
                   .node = options.lease.node,
                   .mark = options.mark,
                   .ancestors = options.ancestors}),
      mirror_(options.mirror, [this](const auto& keys) { OnChange(keys); }),
      known_(options.known),
      view_{node_,  lease_,   mirror_,     names_, tombstones_, extents,
            slots_, stripes_, continuity_, live_,  known_},
      replication_(options.replication),
      burial_(options.burial),
      leader_(options.leader) {}

// --- Knowledge of the metadata ------------------------------------------------------------------

KnownNames ClusterNode::TrustedNames() const {
  if (known_) return *known_;
  KnownNames known;
  for (const auto& [text, name] : names_.names()) known[text] = {name.record, name.revision};
  return known;
}

// While the metadata is not confirmed, the names of before; then those that there are.
void ClusterNode::RememberNames() {
  if (continuity_.is_frozen()) {
    if (!known_) known_ = TrustedNames();
  } else if (mirror_.was_listed()) {
    known_.reset();
  }
}

// Nothing that was begun in another history goes on.
void ClusterNode::Restart(TimePoint now) {
  mirror_.Restart(out_);
  lease_.LookAgain(now);
  commits_.clear();
  newest_call_ = 0;
  ForEachNewest([](NewestNames& newest) {
    newest.is_asked = false;
    newest.revision.reset();
  });
  slots_ = {};
  level_ = 1;
  leader_ = Leader(options_.leader);
  burial_ = Burial(options_.burial);
  replication_ = Replication(options_.replication);
  for (auto& [id, publication] : publications_) publication.Restart(now);
  for (auto& [id, rebuild] : rebuilds_) rebuild.Restart(now);
}

void ClusterNode::NoteCommits(const std::vector<Action>& actions) {
  for (const Action& action : actions)
    if (std::holds_alternative<MetaStore::Commit>(action.call))
      commits_[action.id] = mirror_.revision();
}

void ClusterNode::CheckOutcome(const Answer& answer) {
  const auto commit = commits_.extract(answer.id);
  if (commit.empty()) return;
  const auto& outcome = std::get<Result<MetaStore::Outcome>>(answer.reply);
  if (outcome && outcome.value().fate == MetaStore::Outcome::Fate::kCommitted &&
      outcome.value().revision <= commit.mapped() && mirror_.was_listed())
    continuity_.Refute();
}

void ClusterNode::OnChange(const std::set<std::string>& keys) {
  continuity_.Update(keys, mirror_);
  RememberNames();
  names_.Update(keys, mirror_);
  tombstones_.Update(now_, keys, mirror_);
  if (keys.contains(std::string(kSlotsKey))) TakeSlots();
  if (keys.contains(std::string(kLevelKey))) level_ = LevelIn(mirror_.Find(kLevelKey));
  for (const std::string& key : keys)
    if (const auto node = NameIn(kNodeKeys, key)) {
      if (mirror_.Find(key) != nullptr)
        live_.insert(*node);
      else
        live_.erase(*node);
    }
  leader_.Update(view_);
}

void ClusterNode::TakeSlots() {
  const MetaStore::KeyValue* const key = mirror_.Find(kSlotsKey);
  if (key == nullptr) return;
  auto slots = SlotsRecord::Decode(key->value);
  // One that cannot be read, or that is older: what was known goes on.
  if (slots && slots.value().map.version >= slots_.map.version) slots_ = std::move(slots).value();
}

std::vector<Action> ClusterNode::Step(TimePoint now) {
  now_ = now;
  StepAll(now);
  return Done(now);
}

std::vector<Action> ClusterNode::Done(TimePoint now) {
  if (continuity_.TakeRestart()) {
    RememberNames();
    Restart(now);
    StepAll(now);
  }
  Collect();
  auto actions = out_.Take();
  NoteCommits(actions);
  return actions;
}

std::vector<Action> ClusterNode::Step(TimePoint now, const Answer& answer) {
  now_ = now;
  CheckOutcome(answer);
  const bool had_lease = lease_.lease() != 0, was_watching = mirror_.is_watching();
  bool is_taken = lease_.Take(now, answer, out_) || mirror_.Take(now, answer, out_) ||
                  continuity_.Take(now, slots_.map.version, answer, out_) ||
                  names_.Take(now, answer) || replication_.Take(now, view_, answer, out_) ||
                  burial_.Take(now, view_, answer, out_) ||
                  leader_.Take(now, view_, answer, out_) || TakeNewest(now, answer);
  for (auto at = openings_.begin(); !is_taken && at != openings_.end(); ++at)
    is_taken = at->second.Take(now, answer);
  for (auto at = publications_.begin(); !is_taken && at != publications_.end(); ++at)
    is_taken = at->second.Take(now, view_, answer, out_);
  for (auto at = rebuilds_.begin(); !is_taken && at != rebuilds_.end(); ++at)
    is_taken = at->second.Take(now, view_, answer, out_);
  // The store has begun anew, perhaps from an older state.
  if ((had_lease && lease_.lease() == 0) || (was_watching && !mirror_.is_watching()))
    continuity_.Doubt();
  StepAll(now);
  return Done(now);
}

void ClusterNode::StepAll(TimePoint now) {
  continuity_.Step(now, out_);
  lease_.Allow(continuity_.is_checked() && !is_outdated());
  lease_.Step(now, out_);
  if (continuity_.is_checked()) mirror_.Step(now, out_);
  names_.Step(now, slots_, live_, out_);
  replication_.Step(now, view_, out_);
  burial_.Step(now, view_, out_);
  leader_.Step(now, view_, out_);
  StepOpenings(now);
  StepLooks(now);
  AskNewest(now);
  for (auto& [id, publication] : publications_) publication.Step(now, view_, out_);
  for (auto& [id, rebuild] : rebuilds_) rebuild.Step(now, view_, out_);
}

TimePoint ClusterNode::wake() const {
  TimePoint wake = std::min({lease_.wake(), continuity_.wake(), names_.wake(), replication_.wake(),
                             burial_.wake(), leader_.wake()});
  if (continuity_.is_checked()) wake = std::min(wake, mirror_.wake());
  for (const auto& [id, publication] : publications_) wake = std::min(wake, publication.wake());
  for (const auto& [id, rebuild] : rebuilds_) wake = std::min(wake, rebuild.wake());
  for (const auto& [id, opening] : openings_) wake = std::min(wake, opening.wake());
  for (const auto& [id, look] : looks_) {
    wake = std::min(wake, look.deadline);
    if (!look.newest.is_asked && newest_call_ == 0) wake = std::min(wake, newest_next_);
  }
  return wake;
}

// --- Questions ----------------------------------------------------------------------------------

Holdings ClusterNode::OnAsk(TimePoint now, const AskHoldings& question) const {
  return Replication::OnAskHoldings(now, view_, question);
}

Flags ClusterNode::OnAsk(TimePoint now, const AskHeard& question) const {
  Flags flags;
  for (const std::uint64_t upload : question.uploads) {
    const auto heard = view_.extents.LastHeard(upload);
    flags.push_back(heard && now - *heard < options_.leader.upload_grace);
  }
  return flags;
}

Flags ClusterNode::OnAsk(TimePoint now, const AskBuried& question) const {
  return burial_.OnAskBuried(now, view_, question);
}

Flags ClusterNode::OnAsk(TimePoint, const AskFilled& question) const {
  return {replication_.IsFilled(view_, question.version)};
}

Known ClusterNode::OnAsk(TimePoint, const AskKnown& question) const {
  return {continuity_.mark(), question.with_names ? TrustedNames() : KnownNames()};
}

// --- Requests -----------------------------------------------------------------------------------

bool ClusterNode::TakesUpload(TimePoint now, std::uint64_t upload) const {
  return lease_.MayWrite(now) && mirror_.Find(UploadKey(upload)) != nullptr;
}

ClusterNode::RequestId ClusterNode::Begin(Publication::Request request) {
  publications_.emplace(++last_request_, Publication(std::move(request)));
  return last_request_;
}

ClusterNode::RequestId ClusterNode::Begin(const Rebuild::Request& request) {
  rebuilds_.emplace(++last_request_, Rebuild(request));
  return last_request_;
}

ClusterNode::RequestId ClusterNode::BeginUpload(std::uint64_t upload, TimePoint deadline,
                                                UploadRoom room) {
  openings_.emplace(++last_request_, UploadOpening(upload, deadline, std::move(room)));
  return last_request_;
}

void ClusterNode::StepOpenings(TimePoint now) {
  for (auto at = openings_.begin(); at != openings_.end();) {
    auto result = at->second.Step(now, view_, out_);
    if (result) finished_.push_back({at->first, *std::move(result)});
    at = result ? openings_.erase(at) : std::next(at);
  }
}

// --- The newest names ---------------------------------------------------------------------------

ClusterNode::RequestId ClusterNode::BeginLook(std::string name, TimePoint deadline) {
  Look& look = looks_[++last_request_];
  look.name = std::move(name);
  look.deadline = deadline;
  look.newest.is_wanted = true;
  return last_request_;
}

bool ClusterNode::Shows(std::uint64_t revision, std::string_view name) const {
  if (!mirror_.was_listed() || mirror_.revision() < revision) return false;
  const NameTable::Name* const found = names_.Find(name);
  return found == nullptr || found->manifest != nullptr;
}

void ClusterNode::StepLooks(TimePoint now) {
  for (auto at = looks_.begin(); at != looks_.end();) {
    auto result = StepLook(now, at->second);
    if (result) finished_.push_back({at->first, *std::move(result)});
    at = result ? looks_.erase(at) : std::next(at);
  }
}

std::optional<Result<std::uint64_t>> ClusterNode::StepLook(TimePoint now, const Look& look) const {
  const NewestNames& newest = look.newest;
  if (newest.revision && Shows(*newest.revision, look.name)) return *newest.revision;
  if (!newest.is_asked && !lease_.IsLeased(now))
    return Error{ErrorCode::kUnavailable,
                 "its lease in the cluster is not renewed; see the coordinator"};
  if (now >= look.deadline)
    return Error{ErrorCode::kDeadlineExceeded,
                 newest.revision ? "this node does not show it yet; try again"
                                 : "the coordinator has not answered in time; try again"};
  return std::nullopt;
}

template <class Visit>
void ClusterNode::ForEachNewest(const Visit& visit) {
  for (auto& [id, look] : looks_) visit(look.newest);
  for (auto& [id, opening] : openings_) visit(opening.newest());
}

// All who want to know it while the store is asked share the next question: of many clients at the
// same time it hears little.
void ClusterNode::AskNewest(TimePoint now) {
  if (newest_call_ != 0 || now < newest_next_) return;
  bool is_wanted = false;
  ForEachNewest([&](NewestNames& newest) {
    if (newest.is_wanted && !std::exchange(newest.is_asked, true)) is_wanted = true;
  });
  if (is_wanted)
    newest_call_ = out_.Ask(GetKey{std::string(kGenerationKey)}, now + kNewestPatience);
}

bool ClusterNode::TakeNewest(TimePoint now, const Answer& answer) {
  if (newest_call_ == 0 || answer.id != newest_call_) return false;
  newest_call_ = 0;
  const auto& found = std::get<Result<std::optional<MetaStore::KeyValue>>>(answer.reply);
  if (!found) {
    newest_next_ = now + kRetry;
    for (const auto& [id, look] : looks_)
      if (look.newest.is_asked && !look.newest.revision) finished_.push_back({id, found.error()});
    std::erase_if(looks_, [](const auto& one) {
      return one.second.newest.is_asked && !one.second.newest.revision;
    });
  }
  ForEachNewest([&](NewestNames& newest) {
    if (!newest.is_asked || newest.revision) return;
    if (found)
      newest.revision = found.value() ? found.value()->mod_revision : 0;
    else
      newest.is_asked = false;
  });
  return true;
}

void ClusterNode::Collect() {
  for (auto at = publications_.begin(); at != publications_.end();) {
    if (!at->second.result()) {
      ++at;
      continue;
    }
    finished_.push_back({at->first, *at->second.result()});
    at = publications_.erase(at);
  }
  for (auto at = rebuilds_.begin(); at != rebuilds_.end();) {
    if (!at->second.result()) {
      ++at;
      continue;
    }
    rebuilt_.push_back({at->first, *at->second.result()});
    at = rebuilds_.erase(at);
  }
}

std::vector<ClusterNode::Rebuilt> ClusterNode::TakeRebuilt() { return std::exchange(rebuilt_, {}); }

void ClusterNode::GiveUp(const Error& why) {
  for (auto& [id, publication] : publications_) publication.GiveUp(why);
  for (const auto& [id, opening] : std::exchange(openings_, {})) finished_.push_back({id, why});
  for (const auto& [id, look] : std::exchange(looks_, {})) finished_.push_back({id, why});
  Collect();
}

std::vector<ClusterNode::Finished> ClusterNode::TakeFinished() {
  return std::exchange(finished_, {});
}

}  // namespace ffrecord::server::cluster
