#include "server/cluster/cluster_node.h"

#include <algorithm>
#include <utility>

namespace ffrecord::server::cluster {
namespace {

constexpr std::chrono::seconds kPatience{5};
constexpr std::chrono::milliseconds kRetry{500};

}  // namespace

ClusterNode::ClusterNode(const Options& options, const LocalExtents& extents)
    : options_(options),
      node_(options.lease.node),
      lease_(options.lease),
      mirror_(options.mirror, [this](const auto& keys) { OnChange(keys); }),
      view_{node_, lease_, mirror_, names_, tombstones_, extents, slots_, live_},
      replication_(options.replication),
      burial_(options.burial),
      leader_(options.leader) {}

void ClusterNode::OnChange(const std::set<std::string>& keys) {
  names_.Update(keys, mirror_);
  tombstones_.Update(now_, keys, mirror_);
  if (keys.contains(std::string(kSlotsKey))) TakeSlots();
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
  Collect();
  return out_.Take();
}

std::vector<Action> ClusterNode::Step(TimePoint now, const Answer& answer) {
  now_ = now;
  bool is_taken = lease_.Take(now, answer, out_) || mirror_.Take(now, answer, out_) ||
                  names_.Take(now, answer) || replication_.Take(now, view_, answer, out_) ||
                  burial_.Take(now, view_, answer, out_) ||
                  leader_.Take(now, view_, answer, out_) || TakeOpening(now, answer);
  for (auto at = publications_.begin(); !is_taken && at != publications_.end(); ++at)
    is_taken = at->second.Take(now, view_, answer, out_);
  StepAll(now);
  Collect();
  return out_.Take();
}

void ClusterNode::StepAll(TimePoint now) {
  lease_.Step(now, out_);
  mirror_.Step(now, out_);
  names_.Step(now, slots_, out_);
  replication_.Step(now, view_, out_);
  burial_.Step(now, view_, out_);
  leader_.Step(now, view_, out_);
  StepOpenings(now);
  for (auto& [id, publication] : publications_) publication.Step(now, view_, out_);
}

TimePoint ClusterNode::wake() const {
  TimePoint wake = std::min({lease_.wake(), mirror_.wake(), names_.wake(), replication_.wake(),
                             burial_.wake(), leader_.wake()});
  for (const auto& [id, publication] : publications_) wake = std::min(wake, publication.wake());
  for (const auto& [id, opening] : openings_) wake = std::min(wake, opening.next);
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

// --- Requests -----------------------------------------------------------------------------------

bool ClusterNode::TakesUpload(TimePoint now, std::uint64_t upload) const {
  return lease_.MayWrite(now) && mirror_.Find(UploadKey(upload)) != nullptr;
}

ClusterNode::RequestId ClusterNode::Begin(Publication::Request request) {
  publications_.emplace(++last_request_, Publication(std::move(request)));
  return last_request_;
}

ClusterNode::RequestId ClusterNode::BeginUpload(std::uint64_t upload, TimePoint deadline) {
  openings_.emplace(++last_request_, Opening{upload, deadline});
  return last_request_;
}

void ClusterNode::StepOpenings(TimePoint now) {
  for (auto at = openings_.begin(); at != openings_.end();) {
    auto& [id, opening] = *at;
    const MetaStore::KeyValue* const key = mirror_.Find(UploadKey(opening.upload));
    if (key != nullptr) {
      finished_.push_back({id, key->mod_revision});
    } else if (mirror_.Find(UploadTombstoneKey(opening.upload)) != nullptr) {
      finished_.push_back({id, Error{ErrorCode::kConflict,
                                     "the upload was silent for long and was given up; begin "
                                     "another"}});
    } else if (now >= opening.deadline) {
      finished_.push_back({id, Error{ErrorCode::kDeadlineExceeded,
                                     "the upload could not be recorded in time; try again"}});
    } else {
      if (opening.call == 0 && now >= opening.next) {
        MetaStore::Commit commit;
        commit.compares.push_back({UploadKey(opening.upload), 0});
        commit.compares.push_back({UploadTombstoneKey(opening.upload), 0});
        commit.puts.push_back({UploadKey(opening.upload), {}});
        opening.call = out_.Ask(std::move(commit), now + kPatience);
        opening.next = opening.deadline;
      }
      ++at;
      continue;
    }
    at = openings_.erase(at);
  }
}

// Whatever came of it, the mirror will show the key, or it is tried again.
bool ClusterNode::TakeOpening(TimePoint now, const Answer& answer) {
  for (auto& [id, opening] : openings_) {
    if (opening.call == 0 || opening.call != answer.id) continue;
    opening.call = 0;
    opening.next = std::min(opening.deadline, now + kRetry);
    return true;
  }
  return false;
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
}

std::vector<ClusterNode::Finished> ClusterNode::TakeFinished() {
  return std::exchange(finished_, {});
}

}  // namespace ffrecord::server::cluster
