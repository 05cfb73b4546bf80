#include "client/collective/operations.h"

#include <algorithm>
#include <iterator>

#include "client/collective/reduce.h"
#include "libffrecord/base/assert.h"

namespace ffrecord::client {
namespace {

using namespace std::chrono_literals;

// Operations that have queued all they send but still receive, and the one that sends.
constexpr std::size_t kActiveMax = 64;

}  // namespace

std::byte* Operation::At(std::uint64_t element) const { return data + element * SizeOf(type); }

std::string Operation::Describe() const {
  const std::string of =
      " of " + std::to_string(plan.count) + " " + std::string(FindTraits(type)->label);
  const std::string number = std::to_string(sequence);
  const std::string reduced = number + " (" + std::string(FindTraits(op)->label) + of + ")";
  const std::string moved = number + " (" + of.substr(4) + ")";
  switch (plan.collective) {
    case Collective::kAllReduce:
      return "all-reduce " + reduced;
    case Collective::kReduceScatter:
      return "reduce-scatter " + reduced;
    case Collective::kAllGather:
      return "all-gather " + moved;
    case Collective::kBroadcast:
      break;
  }
  return "broadcast from rank " + std::to_string(plan.root) + " " + moved;
}

std::chrono::milliseconds ExchangeGroup::tick() const {
  return std::clamp<std::chrono::milliseconds>(timeout / 16, 5ms, 500ms);
}

bool ExchangeGroup::IsRounded(const Operation& operation) const {
  return wire != WireType::kExact && operation.type == ReduceType::kF32 &&
         operation.plan.collective == Collective::kAllReduce;
}

std::uint64_t ExchangeGroup::WireSize(const Operation& operation) const {
  return IsRounded(operation) ? SizeOf(ReduceType::kBf16) : SizeOf(operation.type);
}

// --- Progress ------------------------------------------------------------------------------------

bool Progress::Covers(Range range) const {
  if (range.end <= next) return true;
  range.begin = std::max(range.begin, next);
  return std::ranges::any_of(ahead, [&](const Range& placed) {
    return placed.begin <= range.begin && range.end <= placed.end;
  });
}

// `piece` of `all` is placed.
void Progress::Note(Range piece, const Range& all) {
  if (piece.begin == next) {
    next = piece.end;
    if (!ahead.empty() && ahead.front().begin == next) {
      next = ahead.front().end;
      ahead.erase(ahead.begin());
    }
  } else {
    auto after =
        std::ranges::find_if(ahead, [&](const Range& placed) { return placed.begin >= piece.end; });
    if (after != ahead.begin() && std::prev(after)->end == piece.begin) {
      after = std::prev(after);
      after->end = piece.end;
    } else {
      after = ahead.insert(after, piece);
    }
    if (const auto beyond = std::next(after);
        beyond != ahead.end() && beyond->begin == after->end) {
      after->end = beyond->end;
      ahead.erase(beyond);
    }
  }
  is_done = next >= all.end;
}

bool ActiveOperation::HasArrived(std::uint32_t step, const Range& piece) const {
  for (std::size_t i = arrivals_from; i < arrivals.size(); ++i) {
    const Arrival& arrival = schedule.arrivals[i];
    if (arrival.step >= step) return true;
    if (arrivals[i].is_done || !arrival.range.Touches(piece)) continue;
    if (piece.begin == piece.end) return false;
    const Range needed{std::max(piece.begin, arrival.range.begin),
                       std::min(piece.end, arrival.range.end)};
    if (!arrivals[i].Covers(needed)) return false;
  }
  return true;
}

bool ActiveOperation::WasGiven(std::uint32_t step, const Range& piece) const {
  for (std::size_t i = sends_from; i < sends.size(); ++i) {
    const Transfer& send = schedule.sends[i];
    if (send.step > step) break;
    if (sends[i].is_done || !send.range.Touches(piece)) continue;
    if (sends[i].next < std::min(piece.end, send.range.end) || piece.begin == piece.end)
      return false;
  }
  return true;
}

void ActiveOperation::NoteGiven(std::size_t send, const Range& piece) {
  sends[send].Note(piece, schedule.sends[send].range);
  if (!sends[send].is_done) return;
  --sends_open;
  while (sends_from < sends.size() && sends[sends_from].is_done) ++sends_from;
}

void ActiveOperation::NoteArrived(std::size_t arrival, const Range& piece) {
  arrivals[arrival].Note(piece, schedule.arrivals[arrival].range);
  if (!arrivals[arrival].is_done) return;
  --arrivals_open;
  while (arrivals_from < arrivals.size() && arrivals[arrivals_from].is_done) ++arrivals_from;
}

std::optional<std::uint64_t> ActiveOperation::KnownCheck(const Transfer& send,
                                                         std::uint64_t piece_index) const {
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    const Arrival& arrival = schedule.arrivals[i];
    if (arrival.step >= send.step) break;
    const auto& checks = arrivals[i].checks;  // None of what came through shared memory.
    if (!arrival.reduces && arrival.range == send.range && piece_index < checks.size())
      return checks[piece_index];  // None if that one has not come yet.
  }
  return std::nullopt;
}

// --- The operations of a rank --------------------------------------------------------------------

ActiveOperation* Operations::Start(Clock::time_point now) {
  if (submitted_.empty() || active_.size() >= kActiveMax ||
      (!active_.empty() && active_.back().sends_open > 0))
    return nullptr;
  const Operation& operation = submitted_.front();
  FFR_ASSERT(operation.sequence == next_sequence_);
  ++next_sequence_;
  ActiveOperation& active = active_.emplace_back(ActiveOperation{
      .operation = operation,
      .schedule = MakeSchedule(operation.plan, group_.rank, group_.world_size, group_.machines),
      .sends = {},
      .arrivals = {},
      .began = now,
      .deadline = now + group_.timeout});
  submitted_.pop_front();
  for (const Transfer& send : active.schedule.sends)
    active.sends.push_back({.next = send.range.begin});
  for (const Arrival& arrival : active.schedule.arrivals)
    active.arrivals.push_back({.next = arrival.range.begin});
  active.sends_open = active.sends.size();
  active.arrivals_open = active.arrivals.size();
  return &active;
}

Operations::Ended Operations::TakeOldest(Clock::time_point now) {
  const Ended ended{active_.front().operation.sequence, active_.front().began};
  active_.pop_front();
  if (!active_.empty()) active_.front().deadline = now + group_.timeout;
  return ended;
}

ActiveOperation* Operations::Of(std::uint64_t sequence) {
  if (active_.empty() || sequence < active_.front().operation.sequence) return nullptr;
  const std::uint64_t index = sequence - active_.front().operation.sequence;
  return index < active_.size() ? &active_[index] : nullptr;
}

Operations::Next Operations::NextSend(std::uint32_t rank) {
  for (ActiveOperation& active : active_) {
    if (active.sends_open == 0) continue;
    for (std::size_t i = active.sends_from; i < active.sends.size(); ++i)
      if (!active.sends[i].is_done && active.schedule.sends[i].peer == rank) return {&active, i};
  }
  return {};
}

Operations::Next Operations::NextArrival(std::uint32_t rank) {
  for (ActiveOperation& active : active_) {
    if (active.arrivals_open == 0) continue;
    for (std::size_t i = active.arrivals_from; i < active.arrivals.size(); ++i)
      if (!active.arrivals[i].is_done && active.schedule.arrivals[i].peer == rank)
        return {&active, i};
  }
  return {};
}

std::uint64_t Operations::PieceMax(const ActiveOperation& active,
                                   std::uint64_t size_bytes_max) const {
  std::uint64_t size_bytes = active.operation.chunk_size_bytes;
  if (size_bytes_max != 0) size_bytes = std::min(size_bytes, size_bytes_max);
  return size_bytes / group_.WireSize(active.operation);
}

Range Operations::PieceAt(const ActiveOperation& active, std::uint64_t size_bytes_max,
                          const Transfer& transfer, std::uint64_t begin) const {
  return {begin, begin + std::min(PieceMax(active, size_bytes_max), transfer.range.end - begin)};
}

}  // namespace ffrecord::client
