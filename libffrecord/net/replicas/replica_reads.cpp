#include "libffrecord/net/replicas/replica_reads.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "libffrecord/base/assert.h"
#include "libffrecord/net/replicas/replica_steps.h"

namespace ffrecord::net {
namespace {

// Whether an answer is final: the node would not answer otherwise later.
bool IsRefusal(ErrorCode status) {
  return status != ErrorCode::kUnavailable && status != ErrorCode::kDeadlineExceeded;
}

// Damage says more than a device that fails, and that more than an extent that is not there.
int Weight(ErrorCode status) {
  switch (status) {
    case ErrorCode::kCorruption:
      return 5;
    case ErrorCode::kIo:
      return 4;
    case ErrorCode::kDenied:
      return 3;
    case ErrorCode::kNotFound:
      return 2;
    case ErrorCode::kOk:
      return 0;
    default:
      return 1;
  }
}

// How long a node rests that was too busy for some entries and did not say for how long.
constexpr std::chrono::milliseconds kBusyRest{10};
// A node that fetches an extent is asked again at least so often.
constexpr std::chrono::milliseconds kFetchPause{100};

}  // namespace

void ReplicaReads::Step(Time now, const Event& event, Actions& actions) {
  Stepping step(*this, now, actions);
  std::visit([&](const auto& one) { step.On(one); }, event);
  step.SendAll();
}

ReplicaReads::Time ReplicaReads::NextTime() const {
  Time next = Time::max();
  for (const auto& [id, batch] : batches_) {
    if (batch.is_over) continue;
    next = std::min({next, batch.deadline, batch.retry_at, batch.seek_at});
  }
  for (const auto& [id, leg] : legs_)
    if (!leg.is_cancelled && !leg.is_silent && leg.open_count > 0)
      next = std::min(next, leg.hedge_at);
  const Duration limit = health_.SilenceLimit();
  for (const Node& node : nodes_)
    if (node.entry_count > 0 && !node.is_silent) next = std::min(next, node.heard_at + limit);
  return next;
}

// --- Asking --------------------------------------------------------------------------------------

void ReplicaReads::Stepping::Ask(BatchId id, std::uint32_t number, std::size_t candidate,
                                 LegKind kind) {
  Part& part = reads_.batches_.at(id).parts[number];
  const NodeIndex node = part.nodes[candidate];
  part.asked |= Part::Bit(candidate);
  part.under_way |= Part::Bit(candidate);
  if (kind == LegKind::kDirect) part.has_direct = true;
  health_.Sent(node, part.bytes, now_);
  const auto is_same = [&](const Outgoing& other) {
    return other.batch == id && other.node == node && other.kind == kind;
  };
  auto outgoing = std::ranges::find_if(outgoing_, is_same);
  if (outgoing == outgoing_.end())
    outgoing = outgoing_.insert(outgoing_.end(), {id, node, kind, {}});
  outgoing->entries.push_back({part.bytes, number, static_cast<std::uint8_t>(candidate)});
}

void ReplicaReads::Stepping::AskFirst(BatchId id, Batch& batch) {
  std::unordered_set<std::uint32_t> probed;
  for (std::uint32_t number = 0; number < batch.parts.size(); ++number) {
    const Part& part = batch.parts[number];
    AskNext(id, batch, number);
    if (probed.insert(part.extent).second && part.is_wanted()) Probe(id, batch, number);
  }
  health_.NoteParts(batch.parts.size());
}

// Asks the next candidate for a part that no node is bringing.
void ReplicaReads::Stepping::AskNext(BatchId id, Batch& batch, std::uint32_t number) {
  Part& part = batch.parts[number];
  if (batch.is_over || !part.is_wanted() || part.is_brought()) return;
  if (const auto candidate = choice_.Choose(part))
    return Ask(id, number, *candidate, KindFor(part));
  if (choice_.NeedsMap(part)) Seek(batch);
  if (part.moves && part.nodes.empty()) {
    part.trouble = ErrorCode::kUnavailable;  // That says nothing about the extent.
  } else if ((part.refused | part.absent) == Part::All(part.nodes.size())) {
    if (part.absent == 0 || part.is_last_round)
      return End(batch, {id, number,
                         part.refusal == ErrorCode::kOk ? ErrorCode::kNotFound : part.refusal});
    part.sought_at = std::min<Time>(part.sought_at, now_ + kMovedPause);
    part.final_from = std::min<Time>(part.final_from, now_ + kMovedPause);
    return batch.WaitUntil(number, part.sought_at);
  }
  // It may wait already, since before the newest map.
  batch.WaitUntil(number, std::min(part.retry_at, RoundAt(id, batch, part.keeps_order)));
}

// The end of the back-off, the same for all parts of the batch that fail before it: so that a node
// is asked for them at once.
ReplicaReads::Time ReplicaReads::Stepping::RoundAt(BatchId id, Batch& batch, bool keeps_order) {
  if (batch.round_at > now_) return batch.round_at;
  if (!batch.back_off) batch.back_off.emplace(BackOff::kOfDaemons, reads_.seed_ + id);
  const Duration pause = batch.back_off->Next();
  batch.round_at = now_ + (keeps_order ? std::min<Duration>(pause, kFetchPause) : pause);
  return batch.round_at;
}

void ReplicaReads::Stepping::Seek(Batch& batch) {
  if (batch.seek_at != Time::max()) return;
  batch.seek_at = now_ + kSeekEvery;
  actions_.emplace_back(SeekMap{});
}

// Reads a part also from those of its owners that may be well again.
void ReplicaReads::Stepping::Probe(BatchId id, Batch& batch, std::uint32_t number) {
  const Part& part = batch.parts[number];
  for (std::size_t i = 0; i < part.owner_count && part.has_direct; ++i)
    if ((part.asked & Part::Bit(i)) == 0 && health_.TakeProbe(part.nodes[i], now_))
      Ask(id, number, i, LegKind::kProbe);
}

void ReplicaReads::Stepping::SendAll() {
  for (auto& [batch_id, node, kind, entries] : outgoing_) {
    const LegId id = ++reads_.last_leg_;
    Batch& batch = reads_.batches_.at(batch_id);
    batch.legs.push_back(id);
    if (kind == LegKind::kDirect) ++batch.direct_count;
    Node& state = reads_.nodes_[node];
    if (state.entry_count == 0 || state.is_silent) state.heard_at = now_;
    state.is_silent = false;
    state.entry_count += entries.size();
    Send send{id, node, batch_id, kind == LegKind::kDirect, {}};
    for (const Entry& entry : entries) send.parts.push_back(entry.part);
    Leg leg{node, batch_id, kind, std::move(entries)};
    leg.open_count = leg.entries.size();
    leg.sent_at = now_;
    leg.hedge_at = now_ + health_.HedgeAfter();
    reads_.legs_.emplace(id, std::move(leg));
    actions_.emplace_back(std::move(send));
  }
}

// --- Events --------------------------------------------------------------------------------------

void ReplicaReads::Stepping::On(const Begin& begin) {
  const auto [made, is_new] = reads_.batches_.try_emplace(begin.batch);
  FFR_ASSERT(is_new);
  Batch& batch = made->second;
  batch.parts.reserve(begin.parts.size());
  for (const PartSize& part : begin.parts)
    batch.parts.push_back(Part::Make(*reads_.map_, part.extent, part.bytes));
  batch.deadline = begin.deadline;
  batch.open_count = batch.parts.size();
  AskFirst(begin.batch, batch);
  EndBatchIfDone(begin.batch);
}

void ReplicaReads::Stepping::On(const NewMap& newer) {
  reads_.map_ = newer.map;
  // None refers to the map before once the first one is asked for.
  std::map<BatchId, std::vector<std::uint32_t>> changed;
  for (auto& [id, batch] : reads_.batches_) {
    std::vector<std::uint32_t> parts;
    for (std::uint32_t number = 0; number < batch.parts.size(); ++number)
      if (batch.parts[number].GoBy(*newer.map)) parts.push_back(number);
    if (parts.empty()) continue;
    FindCandidates(batch);
    changed.emplace(id, std::move(parts));
  }
  for (const auto& [id, parts] : changed) {
    Batch& batch = reads_.batches_.at(id);
    for (const std::uint32_t number : parts) AskNext(id, batch, number);
    EndBatchIfDone(id);
  }
}

// Where the nodes of the batch's legs are among the candidates of the new map.
void ReplicaReads::Stepping::FindCandidates(Batch& batch) {
  for (Part& part : batch.parts) part.under_way = part.silent = part.former = 0;
  for (const LegId id : batch.legs) {
    Leg& leg = reads_.legs_.at(id);
    for (Entry& entry : leg.entries) {
      if (entry.has_ended) continue;
      Part& part = batch.parts[entry.part];
      entry.candidate = part.PlaceOf(leg.node);
      part.NoteUnderWay(entry.candidate);
      if (leg.is_silent) part.NoteSilent(entry.candidate);
    }
  }
}

void ReplicaReads::Stepping::On(const Arrived& arrived) {
  const auto leg = reads_.legs_.find(arrived.leg);
  FFR_ASSERT(leg != reads_.legs_.end());
  const BatchId batch = leg->second.batch;
  Hear(leg->second.node, now_);
  EndEntry(arrived.leg, leg->second, arrived.entry, arrived.status);
  EndBatchIfDone(batch);
}

void ReplicaReads::Stepping::On(const LegEnded& ended) {
  const auto found = reads_.legs_.find(ended.leg);
  FFR_ASSERT(found != reads_.legs_.end() && !found->second.has_ended);
  Leg& leg = found->second;
  leg.has_ended = true;
  if (ended.busy_until > now_)
    health_.Busy(leg.node, ended.busy_until);
  else if (ended.status != ErrorCode::kOk && IsToBlame(leg))
    health_.Failed(leg.node, now_);
  const ErrorCode missing = ended.status == ErrorCode::kOk ? ErrorCode::kUnavailable : ended.status;
  for (std::uint32_t i = 0; i < leg.entries.size(); ++i) EndEntry(ended.leg, leg, i, missing);
  const BatchId batch_id = leg.batch;
  if (const auto batch = reads_.batches_.find(batch_id); batch != reads_.batches_.end()) {
    std::erase(batch->second.legs, ended.leg);
    if (leg.kind == LegKind::kDirect) --batch->second.direct_count;
  }
  ReleaseIfDone(ended.leg);
  EndBatchIfDone(batch_id);
}

void ReplicaReads::Stepping::On(const GiveUp& given_up) {
  const auto found = reads_.batches_.find(given_up.batch);
  if (found == reads_.batches_.end()) return;
  Batch& batch = found->second;
  batch.is_over = true;
  for (Part& part : batch.parts) {
    if (const LegId won = TakeWon(batch, part); won != 0) ReleaseIfDone(won);
    part.is_done = true;
  }
  batch.open_count = 0;
  CancelUnwanted(batch);
  EndBatchIfDone(given_up.batch);
}

void ReplicaReads::Stepping::On(const Away& away) {
  const auto shift = [&](Time& time) {
    if (time != Time::max()) time += away.time;
  };
  for (auto& [id, batch] : reads_.batches_) {
    shift(batch.deadline);
    shift(batch.retry_at);
    shift(batch.round_at);
    for (Part& part : batch.parts) {
      shift(part.retry_at);
      shift(part.sought_at);
      shift(part.final_from);
    }
  }
  for (auto& [id, leg] : reads_.legs_) {
    shift(leg.sent_at);
    shift(leg.hedge_at);
  }
  for (Node& node : reads_.nodes_) shift(node.heard_at);
}

void ReplicaReads::Stepping::On(const Tick& /*tick*/) {
  std::vector<BatchId> due;
  for (const auto& [id, batch] : reads_.batches_)
    if (!batch.is_over && now_ >= std::min({batch.deadline, batch.retry_at, batch.seek_at}))
      due.push_back(id);
  for (const BatchId id : due) {
    Batch& batch = reads_.batches_.at(id);
    if (now_ >= batch.deadline) {
      Expire(id, batch);
    } else {
      if (now_ >= batch.retry_at) Retry(id, batch);
      if (now_ >= batch.seek_at) SeekAgain(batch);
    }
    EndBatchIfDone(id);
  }
  const Duration limit = health_.SilenceLimit();
  for (std::size_t node = 0; node < reads_.nodes_.size(); ++node) {
    const Node& state = reads_.nodes_[node];
    if (state.entry_count > 0 && !state.is_silent && now_ >= state.heard_at + limit)
      Suspect(static_cast<NodeIndex>(node));
  }
  for (auto& [id, leg] : reads_.legs_)
    if (!leg.is_cancelled && !leg.is_silent && leg.open_count > 0 && now_ >= leg.hedge_at)
      Hedge(leg);
}

// A leg that was cancelled ends with an error in any case. But a node that did not even say that it
// has ended is as silent as one that owes something.
bool ReplicaReads::Stepping::IsToBlame(const Leg& leg) const {
  if (leg.is_silent) return false;  // Its silence was reported already.
  return !leg.is_cancelled || now_ >= reads_.nodes_[leg.node].heard_at + health_.SilenceLimit();
}

// --- Answers -------------------------------------------------------------------------------------

void ReplicaReads::Stepping::Hear(NodeIndex node, Time at) {
  Node& state = reads_.nodes_[node];
  if (at <= state.heard_at && at != now_) return;
  state.heard_at = std::max(state.heard_at, at);
  state.is_silent = false;
  if (!std::exchange(state.has_silent_legs, false)) return;
  for (auto& [id, leg] : reads_.legs_) {
    if (leg.node != node || !std::exchange(leg.is_silent, false)) continue;
    const auto batch = reads_.batches_.find(leg.batch);
    if (batch == reads_.batches_.end()) continue;
    for (const Entry& entry : leg.entries)
      if (!entry.has_ended) batch->second.parts[entry.part].NoteHeard(entry.candidate);
  }
}

void ReplicaReads::Stepping::EndEntry(LegId id, Leg& leg, std::uint32_t index, ErrorCode status) {
  Entry& entry = leg.entries[index];
  if (std::exchange(entry.has_ended, true)) return;
  --leg.open_count;
  health_.Ended(leg.node, entry.bytes);
  if (!leg.is_cancelled) --reads_.nodes_[leg.node].entry_count;
  const auto found = reads_.batches_.find(leg.batch);
  if (status == ErrorCode::kOk) {
    health_.Succeeded(leg.node);
    // Entries that nobody waits for are noticed late.
    const bool is_awaited = found != reads_.batches_.end() && !leg.is_cancelled;
    if (is_awaited && entry.bytes <= kHedgedBytesMax) {
      health_.NoteLatency(now_ - leg.sent_at);
      if (!leg.has_answered) health_.NoteAnswer(leg.node, now_ - leg.sent_at, now_);
    }
    leg.has_answered = true;
  }
  if (found == reads_.batches_.end()) return;
  Batch& batch = found->second;
  Part& part = batch.parts[entry.part];
  part.NoteEnded(entry.candidate, leg.is_silent);
  if (status == ErrorCode::kUnavailable && !leg.has_ended) {
    // It answers. Where it fetches what it lacks, it goes on with all else meanwhile.
    if (part.keeps_order)
      health_.Succeeded(leg.node);
    else
      health_.Busy(leg.node, now_ + kBusyRest);
  }
  if (leg.kind == LegKind::kDirect) part.has_direct = false;
  if (part.is_done) return;
  if (status == ErrorCode::kOk) return Came(leg.batch, batch, entry.part, id, leg, index);
  if (part.won_leg != 0) {
    if (leg.kind == LegKind::kDirect) EndWon(leg.batch, batch, entry.part);
    return;
  }
  Failed(leg.batch, batch, entry.part, entry.candidate, status);
}

void ReplicaReads::Stepping::Came(BatchId id, Batch& batch, std::uint32_t number, LegId leg_id,
                                  Leg& leg, std::uint32_t entry) {
  Part& part = batch.parts[number];
  if (leg.kind == LegKind::kDirect) {
    if (const LegId won = TakeWon(batch, part); won != 0) ReleaseIfDone(won);
    return End(batch, {id, number, ErrorCode::kOk});
  }
  if (part.won_leg != 0) return;
  part.won_leg = leg_id;
  part.won_entry = entry;
  ++leg.won_count;
  ++batch.won_count;
  if (!part.has_direct) return EndWon(id, batch, number);
  CancelUnwanted(batch);
}

void ReplicaReads::Stepping::Failed(BatchId id, Batch& batch, std::uint32_t number,
                                    std::size_t candidate, ErrorCode status) {
  Part& part = batch.parts[number];
  if (IsRefusal(status)) {
    const bool may_come = part.moves && status == ErrorCode::kNotFound;
    (may_come ? part.absent : part.refused) |= Part::Bit(candidate);
    if (Weight(status) > Weight(part.refusal)) part.refusal = status;
  } else if (part.trouble != ErrorCode::kUnavailable) {
    part.trouble = status;
  }
  AskNext(id, batch, number);
}

// --- Ends ----------------------------------------------------------------------------------------

void ReplicaReads::Stepping::End(Batch& batch, const EndPart& end) {
  Part& part = batch.parts[end.part];
  part.is_done = true;
  --batch.open_count;
  actions_.emplace_back(end);
  if (part.under_way != 0 || batch.won_count > 0) CancelUnwanted(batch);
}

// The bytes of the leg that has won may be copied.
void ReplicaReads::Stepping::EndWon(BatchId id, Batch& batch, std::uint32_t number) {
  Part& part = batch.parts[number];
  const LegId won = TakeWon(batch, part);
  End(batch, {id, number, ErrorCode::kOk, won, part.won_entry});
  ReleaseIfDone(won);
}

ReplicaReads::LegId ReplicaReads::Stepping::TakeWon(Batch& batch, Part& part) {
  const LegId won = std::exchange(part.won_leg, 0);
  if (won == 0) return 0;
  --reads_.legs_.at(won).won_count;
  --batch.won_count;
  return won;
}

void ReplicaReads::Stepping::CancelUnwanted(Batch& batch) {
  for (const LegId id : batch.legs) {
    Leg& leg = reads_.legs_.at(id);
    if (leg.kind == LegKind::kProbe) continue;
    const bool is_wanted = std::ranges::any_of(leg.entries, [&](const Entry& entry) {
      return !entry.has_ended && batch.parts[entry.part].is_wanted();
    });
    if (!is_wanted && leg.open_count > 0) CancelLeg(id, leg);
  }
}

void ReplicaReads::Stepping::CancelLeg(LegId id, Leg& leg) {
  if (leg.has_ended || std::exchange(leg.is_cancelled, true)) return;
  reads_.nodes_[leg.node].entry_count -= leg.open_count;
  if (!leg.has_answered && leg.entries.front().bytes <= kHedgedBytesMax)
    health_.NoteNoAnswer(leg.node, now_ - leg.sent_at, now_);
  actions_.emplace_back(Cancel{id});
  if (leg.is_silent) actions_.emplace_back(Drop{leg.node});
}

void ReplicaReads::Stepping::ReleaseIfDone(LegId id) {
  const auto leg = reads_.legs_.find(id);
  if (!leg->second.has_ended || leg->second.won_count > 0 || leg->second.open_count > 0) return;
  actions_.emplace_back(Release{id});
  reads_.legs_.erase(leg);
}

void ReplicaReads::Stepping::EndBatchIfDone(BatchId id) {
  const auto found = reads_.batches_.find(id);
  if (found == reads_.batches_.end()) return;
  Batch& batch = found->second;
  if (batch.open_count > 0 || batch.direct_count > 0) return;
  CancelUnwanted(batch);
  actions_.emplace_back(EndBatch{id});
  reads_.batches_.erase(found);
}

// --- Time ----------------------------------------------------------------------------------------

void ReplicaReads::Stepping::Expire(BatchId id, Batch& batch) {
  batch.is_over = true;
  for (std::uint32_t number = 0; number < batch.parts.size(); ++number) {
    Part& part = batch.parts[number];
    if (!part.is_wanted()) continue;
    part.is_done = true;
    --batch.open_count;
    const bool has_answered = part.trouble == ErrorCode::kUnavailable;
    actions_.emplace_back(
        EndPart{id, number, has_answered ? ErrorCode::kUnavailable : ErrorCode::kDeadlineExceeded});
  }
  CancelUnwanted(batch);
}

// A new round of the parts whose time has come, of all that may have come back.
void ReplicaReads::Stepping::Retry(BatchId id, Batch& batch) {
  batch.retry_at = Time::max();
  for (const std::uint32_t number : std::exchange(batch.waiting, {})) {
    Part& part = batch.parts[number];
    const Time due = std::exchange(part.retry_at, Time::max());
    if (due > now_) {
      batch.WaitUntil(number, due);
      continue;
    }
    part.asked = part.under_way;
    part.absent = 0;
    part.sought_at = Time::max();
    part.is_last_round = now_ >= part.final_from;
    AskNext(id, batch, number);
  }
}

void ReplicaReads::Stepping::SeekAgain(Batch& batch) {
  batch.seek_at = Time::max();
  if (std::ranges::any_of(batch.parts, [&](const Part& part) { return choice_.NeedsMap(part); }))
    Seek(batch);
}

void ReplicaReads::Stepping::Suspect(NodeIndex node) {
  reads_.nodes_[node].is_silent = reads_.nodes_[node].has_silent_legs = true;
  health_.Failed(node, now_);
  for (auto& [id, leg] : reads_.legs_) {
    if (leg.node != node || leg.is_cancelled || leg.open_count == 0 ||
        std::exchange(leg.is_silent, true))
      continue;
    const auto found = reads_.batches_.find(leg.batch);
    if (found == reads_.batches_.end()) {  // A probe.
      CancelLeg(id, leg);
      continue;
    }
    Batch& batch = found->second;
    for (const Entry& entry : leg.entries) {
      if (entry.has_ended) continue;
      batch.parts[entry.part].NoteSilent(entry.candidate);
      AskNext(leg.batch, batch, entry.part);
    }
  }
}

void ReplicaReads::Stepping::Hedge(Leg& leg) {
  leg.hedge_at = Time::max();
  if (leg.kind == LegKind::kProbe) return;
  Batch& batch = reads_.batches_.at(leg.batch);
  for (const Entry& entry : leg.entries) {
    const Part& part = batch.parts[entry.part];
    if (entry.has_ended || batch.is_over || !part.is_wanted() || part.bytes > kHedgedBytesMax ||
        part.under_way != Part::Bit(entry.candidate) ||
        part.former != (entry.candidate == kFormer ? 1 : 0))
      continue;
    const auto candidate = choice_.Pick(part, ReplicaChoice::Among::kOwners);
    if (!candidate) continue;
    if (!health_.TakeHedge()) {
      leg.hedge_at = now_ + health_.HedgeAfter();
      return;
    }
    Ask(leg.batch, entry.part, *candidate, LegKind::kApart);
  }
}

}  // namespace ffrecord::net
