#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "libffrecord/base/hedge_budget.h"
#include "libffrecord/net/replicas/latency_quantile.h"
#include "libffrecord/net/replicas/median_latency.h"
#include "libffrecord/net/replicas/replica_map.h"
#include "libffrecord/net/transport/endpoint.h"

namespace ffrecord::net {

// How the nodes of one source are doing, as all readers of the source in this process see it: which
// ones may be asked, which one is the best, and how much may be read twice.
//
// A node that fails is in trouble: readers ask the others, and once per kProbeEvery one part is
// read from the node as well, beside another node. After kErrorsMax errors within kErrorsWithin
// that pause is kPauseMin, and doubles up to kPauseMax with each further error. One success ends
// the trouble.
//
// A node that answers, but far later than the fastest one, is slow: the others are better. It is
// tried with a read of its own after a pause of kTrialMin, which doubles up to kTrialMax while its
// answers stay late; an answer in time is followed by the next trial at once. So nodes do not
// change sides for a single answer, and a slow one costs less and less.
//
// Without a clock: callers say what time it is. Guarded by its owner.
class ReplicaHealth {
 public:
  using Time = Deadline;
  using Duration = Deadline::duration;

  static constexpr std::size_t kErrorsMax = 3;
  static constexpr std::chrono::seconds kErrorsWithin{10};
  static constexpr std::chrono::seconds kProbeEvery{1};
  static constexpr std::chrono::seconds kPauseMin{30};
  static constexpr std::chrono::seconds kPauseMax{300};
  // Errors that several readers notice within this time are one error.
  static constexpr std::chrono::milliseconds kErrorGap{200};

  static constexpr std::chrono::minutes kDamageKept{10};
  static constexpr std::size_t kDamagesMax = 4096;  // More are not noted.

  // A node that has said nothing for so long, though it was asked, is suspected: so many times the
  // median, within these bounds. Not the p99: among few reads a single one that was late, such as
  // one that had to connect, decides that.
  static constexpr int kSilenceTimes = 4;
  static constexpr std::chrono::milliseconds kSilenceMin{100};
  static constexpr std::chrono::milliseconds kSilenceMax{1'000};
  // A part that has taken longer than p99 is asked for at another node too.
  static constexpr std::chrono::milliseconds kHedgeAfterMin{2};
  static constexpr std::chrono::milliseconds kHedgeAfterUnlearned{50};
  static constexpr std::uint32_t kHedgesMax = 32;  // Saved up.

  // A slow node's median latency is so many times that of the fastest one, and so much more; it is
  // not slow any more once it is below half of either.
  static constexpr int kSlowTimes = 4;
  static constexpr std::chrono::milliseconds kSlowMore{10};
  static constexpr std::chrono::seconds kTrialMin{1};
  static constexpr std::chrono::seconds kTrialMax{32};

  explicit ReplicaHealth(std::size_t node_count) : nodes_(node_count) {}

  // There are so many from now on, not fewer than before.
  void Grow(std::size_t node_count) {
    if (node_count > nodes_.size()) nodes_.resize(node_count);
  }

  // Whether the node may be asked like any other.
  bool MayAsk(NodeIndex node, Time now) const noexcept {
    return !nodes_[node].is_in_trouble && !IsBusy(node, now);
  }
  bool IsBusy(NodeIndex node, Time now) const noexcept { return now < nodes_[node].busy_until; }
  // It did not answer when it was asked last.
  bool IsInTrouble(NodeIndex node) const noexcept { return nodes_[node].is_in_trouble; }
  // Whether `one` is to be asked rather than `other`, which an extent's order has first: the one
  // that is not slow, else the kept one, else the nearer one, else the one with fewer bytes on
  // their way, else the one that was asked longer ago. Where the order is kept to, it comes before
  // how near they are.
  bool IsBetter(NodeIndex one, NodeIndex other, Time now) const noexcept;
  // Whether the node is slow, and it is not time to try it.
  bool IsSlow(NodeIndex node, Time now) const noexcept {
    return nodes_[node].is_slow && now < nodes_[node].trial_at;
  }
  // True: the node is in trouble, and it is time to see whether it still is. Said once per pause.
  bool TakeProbe(NodeIndex node, Time now) noexcept;

  void Sent(NodeIndex node, std::uint64_t bytes, Time now) noexcept;
  void Ended(NodeIndex node, std::uint64_t bytes) noexcept {
    nodes_[node].bytes_in_flight -= bytes;
  }
  void Succeeded(NodeIndex node) noexcept;
  void Failed(NodeIndex node, Time now) noexcept;
  // It answers, and wants to be left alone.
  void Busy(NodeIndex node, Time until) noexcept;

  // 0 for this machine, else kFar: so is a node that was not connected to yet, or else those that
  // were would be asked for ever.
  static constexpr std::uint8_t kFar = 1;
  void SetDistance(NodeIndex node, std::uint8_t distance) noexcept {
    nodes_[node].distance = distance;
  }
  // Whether the first owner of each extent that is well is asked: it reads that extent ahead.
  void KeepToOrder(bool keeps) noexcept { keeps_order_ = keeps; }

  // Notes that the node's copy of the extent is damaged. Forgotten after kDamageKept: it may be
  // mended.
  void NoteDamage(std::uint32_t extent, NodeIndex node, Time now);
  bool IsDamaged(std::uint32_t extent, NodeIndex node, Time now) const;

  void NoteLatency(Duration latency) noexcept { latency_.Note(latency); }
  // The node's first answer to a request took so long.
  void NoteAnswer(NodeIndex node, Duration latency, Time now) noexcept;
  // It has taken so long by now, and nobody waits for it any more.
  void NoteNoAnswer(NodeIndex node, Duration latency, Time now) noexcept;
  Duration HedgeAfter() const noexcept;
  Duration SilenceLimit() const noexcept;
  // So many parts are asked for, each for the first time: that earns hedges.
  void NoteParts(std::uint64_t count) noexcept { hedges_.Earn(count); }
  bool TakeHedge() noexcept { return hedges_.Take(); }

 private:
  // The least median latency of all other nodes; none if none is known.
  std::optional<Duration> FastestBut(NodeIndex node) const noexcept;
  void JudgeSlow(NodeIndex node, Time now) noexcept;

  struct Node {
    std::uint64_t bytes_in_flight = 0;
    std::uint64_t turn = 0;  // In which it was asked last.
    std::uint8_t distance = kFar;
    Time busy_until{};
    bool is_in_trouble = false;
    Time probe_at{};                        // While it is in trouble.
    bool is_probed = false;                 // Since the last error.
    Duration pause{};                       // Pause of the open breaker; zero: it is closed.
    std::array<Time, kErrorsMax> errors{};  // The last ones, the latest first.
    MedianLatency latency;
    bool is_slow = false;
    Time trial_at{};         // While it is slow.
    Duration trial_pause{};  // After the next trial.
  };

  std::vector<Node> nodes_;
  std::uint64_t last_turn_ = 0;
  bool keeps_order_ = false;
  std::map<std::pair<std::uint32_t, NodeIndex>, Time> damages_;  // When they were noted.
  LatencyQuantile latency_;
  HedgeBudget hedges_{kHedgesMax};
};

}  // namespace ffrecord::net
