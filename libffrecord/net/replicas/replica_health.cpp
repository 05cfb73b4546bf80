#include "libffrecord/net/replicas/replica_health.h"

#include <algorithm>
#include <utility>

namespace ffrecord::net {

namespace {

// Whether a node with this latency is on the slow side of a bound beside the fastest one. A share
// of 1 is the bound at which nodes become slow, 2 that at which they are so no more.
bool IsFarAbove(ReplicaHealth::Duration latency, ReplicaHealth::Duration fastest, int share) {
  return latency > fastest * ReplicaHealth::kSlowTimes / share &&
         latency > fastest + ReplicaHealth::kSlowMore / share;
}

}  // namespace

bool ReplicaHealth::IsBetter(NodeIndex one, NodeIndex other, Time now) const noexcept {
  const bool is_slow = IsSlow(one, now);
  if (is_slow != IsSlow(other, now)) return !is_slow;
  if (keeps_order_) return false;
  const Node& a = nodes_[one];
  const Node& b = nodes_[other];
  if (a.distance != b.distance) return a.distance < b.distance;
  if (a.bytes_in_flight != b.bytes_in_flight) return a.bytes_in_flight < b.bytes_in_flight;
  return a.turn < b.turn;
}

bool ReplicaHealth::TakeProbe(NodeIndex node, Time now) noexcept {
  Node& probed = nodes_[node];
  if (!probed.is_in_trouble || now < probed.probe_at || IsBusy(node, now)) return false;
  probed.probe_at = now + kProbeEvery;  // Until it is known what came of it.
  probed.is_probed = true;
  return true;
}

void ReplicaHealth::Succeeded(NodeIndex node) noexcept {
  Node& good = nodes_[node];
  if (!good.is_in_trouble) return;
  good.is_in_trouble = good.is_probed = false;
  good.pause = {};
  good.errors = {};
}

void ReplicaHealth::Failed(NodeIndex node, Time now) noexcept {
  Node& bad = nodes_[node];
  auto& errors = bad.errors;
  if (errors.front() != Time{} && now < errors.front() + kErrorGap) return;
  const bool was_open = bad.pause != Duration{};
  // Errors of requests from before the breaker opened say nothing new.
  if (was_open && !std::exchange(bad.is_probed, false)) return;
  std::rotate(errors.begin(), errors.end() - 1, errors.end());
  errors.front() = now;
  const bool is_full = errors.back() != Time{} && now <= errors.back() + kErrorsWithin;
  if (was_open)
    bad.pause = std::min<Duration>(bad.pause * 2, kPauseMax);
  else if (is_full)
    bad.pause = kPauseMin;
  bad.is_in_trouble = true;
  bad.probe_at = now + std::max<Duration>(bad.pause, kProbeEvery);
}

void ReplicaHealth::Sent(NodeIndex node, std::uint64_t bytes, Time now) noexcept {
  Node& asked = nodes_[node];
  asked.bytes_in_flight += bytes;
  asked.turn = ++last_turn_;
  if (!asked.is_slow || now < asked.trial_at) return;
  asked.trial_at = now + asked.trial_pause;
  asked.trial_pause = std::min<Duration>(asked.trial_pause * 2, kTrialMax);
}

void ReplicaHealth::NoteAnswer(NodeIndex node, Duration latency, Time now) noexcept {
  Node& one = nodes_[node];
  one.latency.Note(latency);
  JudgeSlow(node, now);
  const auto fastest = FastestBut(node);
  if (!one.is_slow || !fastest || IsFarAbove(latency, *fastest, 2)) return;
  one.trial_at = now;
  one.trial_pause = kTrialMin;
}

void ReplicaHealth::NoteNoAnswer(NodeIndex node, Duration latency, Time now) noexcept {
  nodes_[node].latency.NoteAtLeast(latency);
  JudgeSlow(node, now);
}

std::optional<ReplicaHealth::Duration> ReplicaHealth::FastestBut(NodeIndex node) const noexcept {
  std::optional<Duration> fastest;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const auto latency = nodes_[i].latency.Value();
    if (i != node && latency && (!fastest || *latency < *fastest)) fastest = latency;
  }
  return fastest;
}

void ReplicaHealth::JudgeSlow(NodeIndex node, Time now) noexcept {
  Node& one = nodes_[node];
  const auto latency = one.latency.Value();
  const auto fastest = FastestBut(node);
  if (!latency || !fastest) return;
  const bool was_slow =
      std::exchange(one.is_slow, IsFarAbove(*latency, *fastest, one.is_slow ? 2 : 1));
  if (was_slow || !one.is_slow) return;
  one.trial_at = now + kTrialMin;
  one.trial_pause = 2 * kTrialMin;
}

void ReplicaHealth::Busy(NodeIndex node, Time until) noexcept {
  nodes_[node].busy_until = std::max(nodes_[node].busy_until, until);
}

void ReplicaHealth::NoteDamage(std::uint32_t extent, NodeIndex node, Time now) {
  if (damages_.size() >= kDamagesMax)
    std::erase_if(damages_, [&](const auto& noted) { return now >= noted.second + kDamageKept; });
  if (damages_.size() < kDamagesMax) damages_.insert_or_assign({extent, node}, now);
}

bool ReplicaHealth::IsDamaged(std::uint32_t extent, NodeIndex node, Time now) const {
  const auto noted = damages_.find({extent, node});
  return noted != damages_.end() && now < noted->second + kDamageKept;
}

ReplicaHealth::Duration ReplicaHealth::HedgeAfter() const noexcept {
  const auto p99 = latency_.P99();
  return p99 ? std::max<Duration>(*p99, kHedgeAfterMin) : kHedgeAfterUnlearned;
}

ReplicaHealth::Duration ReplicaHealth::SilenceLimit() const noexcept {
  const Duration median = latency_.Median().value_or(Duration{});
  return std::clamp<Duration>(median * kSilenceTimes, kSilenceMin, kSilenceMax);
}

}  // namespace ffrecord::net
