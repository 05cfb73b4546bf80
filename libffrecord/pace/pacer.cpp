#include "libffrecord/pace/pacer.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "libffrecord/base/assert.h"

namespace ffrecord::pace {
namespace {

// The rate of a link where none was set: 10 Gbit/s. Only predictions go by it.
constexpr double kAssumedBytesPerS = 1.25e9;
// A phase that does not begin when it is predicted is waited for as long as it was late in the last
// steps: one chunk's time at least, and so many at most.
constexpr int kChunksAwaited = 4;
// Times of signals are taken by their threads, and may come a little late. A clock that stands
// further back than that was set.
constexpr std::chrono::milliseconds kClockSlack{10};

// Shorter steps are none, but ends that a program signals twice.
constexpr std::chrono::milliseconds kTwoStepsMin{10};

constexpr std::uint32_t kChunkSizeMin = 16 << 10;
constexpr std::uint32_t kChunkSizeMax = 2 << 20;
constexpr std::chrono::milliseconds kHoldMax{60'000};
constexpr std::chrono::milliseconds kLimitMax{86'400'000};

Error Refused(const std::string& what) {
  return {ErrorCode::kInvalidArgument, "start pacing: " + what};
}

std::chrono::duration<double> SecondsFor(double size_bytes, double bytes_per_s) {
  return std::chrono::duration<double>(size_bytes / bytes_per_s);
}

Result<void> CheckHold(const char* name, std::chrono::milliseconds hold) {
  if (hold.count() >= 1 && hold <= kHoldMax) return {};
  return Refused(std::string(name) + ".longest_hold is " + std::to_string(hold.count()) +
                 " ms; it must be from 1 ms to 60000 ms");
}

Result<void> CheckLimit(const char* name, std::chrono::milliseconds limit) {
  if (limit.count() >= 1 && limit <= kLimitMax) return {};
  return Refused(std::string(name) + " is " + std::to_string(limit.count()) +
                 " ms; it must be from 1 ms to a day");
}

}  // namespace

Result<void> Pacer::Check(const PacingOptions& options) {
  FFR_TRY(CheckHold("prefetch", options.prefetch.longest_hold));
  FFR_TRY(CheckHold("checkpoint", options.checkpoint.longest_hold));
  FFR_TRY(CheckHold("repair", options.repair.longest_hold));
  FFR_TRY(CheckLimit("phase_limit", options.phase_limit));
  FFR_TRY(CheckLimit("stale_after", options.stale_after));
  if (options.chunk_size_bytes < kChunkSizeMin || options.chunk_size_bytes > kChunkSizeMax)
    return Refused("chunks of " + std::to_string(options.chunk_size_bytes) +
                   " bytes; they must be from 16 KiB to 2 MiB");
  return {};
}

Pacer::Pacer(const PacingOptions& options, Clock::time_point now)
    : options_(options),
      link_bytes_per_s_(options.link_bytes_per_s == 0
                            ? kAssumedBytesPerS
                            : static_cast<double>(options.link_bytes_per_s)),
      now_(now),
      last_signal_(now),
      timeline_(now) {
  links_.fill({now, now});
  const auto set = [&](TrafficClass traffic, const PacingOptions::Class& given) {
    Class& held = ClassOf(traffic);
    held.floor_bytes_per_s = static_cast<double>(given.floor_bytes_per_s);
    held.longest_hold = given.longest_hold;
    held.counted = now;
  };
  set(TrafficClass::kPrefetch, options.prefetch);
  set(TrafficClass::kCheckpoint, options.checkpoint);
  set(TrafficClass::kRepair, options.repair);
}

// --- Signals -------------------------------------------------------------------------------------

void Pacer::BeginPhase(PhaseKind kind, std::uint64_t size_bytes, Clock::time_point now) {
  Signalled(now);
  ++counters_.phases;
  counters_.phase_size_bytes += size_bytes;
  if (!open_[static_cast<std::size_t>(kind)].Begin(now_)) {
    ++counters_.lost_signals;
    return;
  }
  if (++open_count_ > 1) return;
  timeline_.BeginPhase(now_);
  for (Link& link : links_) {
    if (link.is_busy_until > now_) ++counters_.overlapped_chunks;
    link = {now_, now_};
  }
}

void Pacer::EndPhase(PhaseKind kind, Clock::time_point now) {
  Signalled(now);
  if (open_[static_cast<std::size_t>(kind)].End())
    EndPhases(1);
  else
    ++counters_.unmatched_ends;
}

void Pacer::EndPhases(std::size_t count) {
  FFR_ASSERT(count <= open_count_);
  open_count_ -= count;
  if (open_count_ == 0 && count > 0) timeline_.EndPhase(now_);
}

void Pacer::EndStep(Clock::time_point now) {
  Signalled(now);
  ++counters_.steps;
  timeline_.EndStep(now_);
}

// Which phases are open is not known any more, so none is.
void Pacer::LoseSignals(std::uint64_t count, Clock::time_point now) {
  Signalled(now);
  counters_.lost_signals += count;
  open_ = {};
  open_count_ = 0;
  timeline_.Forget(now_);
}

void Pacer::Signalled(Clock::time_point now) {
  now_ = std::max(now_, now);
  last_signal_ = now_;
  ExpirePhases();
}

// --- Time ----------------------------------------------------------------------------------------

void Pacer::Advance(Clock::time_point now) {
  if (now + kClockSlack < now_) StartAnew(now);
  now_ = std::max(now_, now);
  ExpirePhases();
}

// The clock was set back: no time of before says anything.
void Pacer::StartAnew(Clock::time_point now) {
  now_ = now;
  last_signal_ = now;
  links_.fill({now, now});
  open_ = {};
  open_count_ = 0;
  timeline_.Forget(now);
  for (Class& held : classes_) held.counted = now;
}

void Pacer::ExpirePhases() {
  if (open_count_ == 0) return;
  const auto limit = std::min<Clock::duration>(options_.phase_limit, TwoSteps(kLimitMax));
  std::size_t expired = 0;
  for (OpenPhases& open : open_) expired += open.Expire(now_ - limit);
  counters_.expired_phases += expired;
  EndPhases(expired);
}

Clock::duration Pacer::TwoSteps(Clock::duration otherwise) const {
  const auto step = timeline_.step_time();
  return step ? std::clamp<Clock::duration>(2 * *step, kTwoStepsMin, kLimitMax) : otherwise;
}

bool Pacer::AreSignalsStale() const { return now_ - last_signal_ > TwoSteps(options_.stale_after); }

std::uint64_t Pacer::BytesIn(Clock::duration time) const {
  return static_cast<std::uint64_t>(std::chrono::duration<double>(time).count() *
                                    link_bytes_per_s_);
}

Clock::duration Pacer::TimeOf(double size_bytes) const {
  return std::chrono::ceil<Clock::duration>(SecondsFor(size_bytes, link_bytes_per_s_));
}

// --- Traffic -------------------------------------------------------------------------------------

Pacer::Answer Pacer::Ask(Request& request, Clock::time_point now) {
  Advance(now);
  request.asked = std::min(request.asked, now_);
  if (request.traffic == TrafficClass::kUrgent)
    return Pass(request, request.size_bytes, Why::kUrgent);
  if (request.traffic == TrafficClass::kPrefetch && low_queues_ > 0)
    return Pass(request, request.size_bytes, Why::kPromoted);
  if (AreSignalsStale()) return Pass(request, PartOf(request), Why::kStale);
  const auto due = std::min(request.asked + ClassOf(request.traffic).longest_hold, request.limit);
  if (now_ >= due) return Pass(request, PartOf(request), Why::kExpired);
  if (open_count_ > 0) return AskFloor(request, due);
  return AskInGap(request, due);
}

void Pacer::Abandon(Request& request) {
  if (request.is_held) --ClassOf(request.traffic).waiting;
  request.is_held = false;
}

PacingCounters Pacer::counters() const {
  PacingCounters counters = counters_;
  for (std::size_t traffic = 0; traffic < classes_.size(); ++traffic)
    counters.classes[traffic].held_now = classes_[traffic].waiting;
  return counters;
}

Pacer::Answer Pacer::AskInGap(Request& request, Clock::time_point due) {
  if (options_.link_bytes_per_s > 0) {
    const auto is_free = LinkOf(request.traffic).is_free;
    if (is_free > now_) return AskFloor(request, std::min(due, is_free));
    if (IsHigherWaiting(request.traffic))
      return AskFloor(request, std::min(due, now_ + TimeOf(options_.chunk_size_bytes)));
  }
  const std::uint64_t part = PartOf(request);
  const auto forecast = timeline_.NextPhase();
  if (!forecast) return Pass(request, part, Why::kGap);
  const auto chunk = TimeOf(options_.chunk_size_bytes);
  const auto given_up = forecast->earliest + std::clamp(forecast->latest - forecast->earliest,
                                                        chunk, kChunksAwaited * chunk);
  if (now_ < forecast->earliest) {
    const std::uint64_t fitting = BytesIn(forecast->earliest - now_);
    // The first chunk has to fit, if the request is larger than a chunk and has no parts.
    if (fitting >= std::min<std::uint64_t>(request.least_size_bytes, options_.chunk_size_bytes))
      return Pass(request, std::max(request.least_size_bytes, std::min(part, fitting)), Why::kGap);
  }
  // It is later than in any step before, or than is worth waiting for.
  if (now_ >= given_up) return Pass(request, part, Why::kGap);
  return AskFloor(request, std::min(due, given_up));
}

// Passes what the floor of the class owes it; else holds until then, at most until `until`.
Pacer::Answer Pacer::AskFloor(Request& request, Clock::time_point until) {
  Class& held = ClassOf(request.traffic);
  if (held.floor_bytes_per_s > 0) {
    RefillFloor(held);
    const std::uint64_t part = PartOf(request);
    const double missing =
        static_cast<double>(std::min<std::uint64_t>(part, options_.chunk_size_bytes)) - held.tokens;
    if (missing <= 0) return Pass(request, part, Why::kFloor);
    const auto wait = SecondsFor(missing, held.floor_bytes_per_s);
    if (wait < held.longest_hold)
      until = std::min(
          until, now_ + std::chrono::ceil<Clock::duration>(wait) + std::chrono::nanoseconds(1));
  }
  return Hold(request, until);
}

void Pacer::RefillFloor(Class& held) {
  const std::chrono::duration<double> time = now_ - held.counted;
  held.counted = now_;
  held.tokens = std::min(held.tokens + time.count() * held.floor_bytes_per_s,
                         static_cast<double>(options_.chunk_size_bytes));
}

// A chunk, or all if there are no parts.
std::uint64_t Pacer::PartOf(const Request& request) const {
  return std::max(request.least_size_bytes,
                  std::min<std::uint64_t>(request.size_bytes, options_.chunk_size_bytes));
}

bool Pacer::IsHigherWaiting(TrafficClass traffic) const {
  return traffic == TrafficClass::kRepair &&
         classes_[static_cast<std::size_t>(TrafficClass::kCheckpoint)].waiting > 0;
}

Pacer::Answer Pacer::Hold(Request& request, Clock::time_point until) {
  FFR_ASSERT(until > now_);
  if (!request.is_held) ++ClassOf(request.traffic).waiting;
  request.is_held = true;
  return {0, until, Why::kGap};
}

Pacer::Answer Pacer::Pass(Request& request, std::uint64_t size_bytes, Why why) {
  PacingCounters::Class& counters = CountersOf(request.traffic);
  ++counters.chunks;
  counters.size_bytes += size_bytes;
  if (request.is_held) {
    ++counters.held_chunks;
    counters.held_size_bytes += size_bytes;
    counters.held_s += std::chrono::duration<double>(now_ - request.asked).count();
  }
  counters.expired_holds += why == Why::kExpired;
  counters.floor_chunks += why == Why::kFloor;
  counters.stale_chunks += why == Why::kStale;
  counters_.promotions += why == Why::kPromoted;
  Abandon(request);
  ChargeFloor(ClassOf(request.traffic), size_bytes);
  if (why == Why::kGap) ChargeLink(LinkOf(request.traffic), size_bytes);
  return {size_bytes, now_, why};
}

// Bytes that went in gaps count too, but a class that had much is not made to wait for long.
void Pacer::ChargeFloor(Class& held, std::uint64_t size_bytes) {
  if (held.floor_bytes_per_s <= 0) return;
  RefillFloor(held);
  const std::chrono::duration<double> hold = held.longest_hold;
  const double debt_max = std::max(static_cast<double>(options_.chunk_size_bytes),
                                   held.floor_bytes_per_s * hold.count());
  held.tokens = std::max(held.tokens - static_cast<double>(size_bytes), -debt_max);
}

// A chunk that comes a little late, because its thread woke up late, follows the one before as if
// it had been in time, or the link would idle between any two.
void Pacer::ChargeLink(Link& link, std::uint64_t size_bytes) {
  const auto time = TimeOf(static_cast<double>(size_bytes));
  link.is_free = (now_ - link.is_free <= time / 2 ? link.is_free : now_) + time;
  link.is_busy_until = std::max(link.is_busy_until, now_) + time;
}

}  // namespace ffrecord::pace
