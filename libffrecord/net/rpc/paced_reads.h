#pragma once

#include <algorithm>
#include <cstdint>

#include "libffrecord/net/rpc/remote_call.h"
#include "libffrecord/pace/gate.h"
#include "libffrecord/source/range_queue.h"

namespace ffrecord::net {

// Waits for the turn of a group that is to be read from daemons, or of its first `size_bytes_max`,
// as what this thread reads; at once if that is what the program waits for, or if pacing is off.
inline void AwaitTurn(RangeGroup& group, std::uint64_t size_bytes_max = UINT64_MAX) {
  if (!pace::IsOn()) return;
  std::uint64_t size_bytes = 0;
  for (const RangeRead& range : group.ranges()) size_bytes += range.destination.size();
  pace::AwaitWhole(pace::TrafficScope::OfReads(), std::min(size_bytes, size_bytes_max));
}

// How much of its batches a daemon may send at a time, and when what is read ahead may be granted
// more while pacing is on. Thread-bound.
class GrantPace {
 public:
  // It may be one read of 1 MiB ahead: so 4 MiB are in sockets, or held by the daemon, when nobody
  // takes them.
  static constexpr std::uint64_t kCreditBytes = std::uint64_t{3} << 20;
  // The credit of paced traffic: so much, and the rest of a read, is on its way when a phase
  // begins.
  static constexpr std::uint64_t kPacedCreditBytes = std::uint64_t{256} << 10;
  // A batch is granted more in steps of this, or of half of the credit.
  static constexpr std::uint64_t kStepBytes = std::uint64_t{1} << 20;

  // False: a queue that has other daemons to turn to would take one that is held for one that does
  // not answer.
  explicit GrantPace(bool paces) noexcept : paces_(paces) {}

  std::uint64_t CreditOf(const RemoteCall* call) const noexcept {
    return IsPaced(call) ? kPacedCreditBytes : kCreditBytes;
  }
  // Its credit that is left while batches are owed `owed_bytes`.
  std::uint64_t RoomOf(const RemoteCall* call, std::uint64_t owed_bytes) const noexcept {
    const std::uint64_t credit = CreditOf(call);
    return credit - std::min(credit, owed_bytes);
  }
  // How much more to grant now, if `wanted_bytes` are not granted and all batches are owed
  // `owed_bytes`; 0: nothing.
  std::uint64_t Next(const RemoteCall* call, std::uint64_t wanted_bytes, std::uint64_t owed_bytes) {
    const std::uint64_t credit = CreditOf(call);
    const std::uint64_t room = std::min(wanted_bytes, RoomOf(call, owed_bytes));
    if (room < std::min({kStepBytes, credit / 2, wanted_bytes})) return 0;
    if (IsPaced(call)) is_held_ = !turn_.Come(room);
    return is_held_ ? 0 : room;
  }
  // Next() has said 0 because it is not its turn, and is to be asked again then.
  bool is_held() const noexcept { return is_held_; }
  Clock::time_point held_until() const noexcept { return turn_.until(); }
  // All batches are looked at anew: Next() for each, until it is held.
  void Begin() noexcept { is_held_ = false; }
  // All were looked at. If none is held, what was held before has ended or needs no more.
  void End() {
    if (!is_held_) turn_.Abandon();
  }

 private:
  bool IsPaced(const RemoteCall* call) const noexcept {
    return pace::IsOn() && paces_ && call != nullptr && call->traffic == TrafficClass::kPrefetch;
  }

  const bool paces_;
  pace::Turn turn_{TrafficClass::kPrefetch};
  bool is_held_ = false;
};

}  // namespace ffrecord::net
