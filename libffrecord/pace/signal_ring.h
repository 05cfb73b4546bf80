#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <ffrecord/runtime.h>

#include "libffrecord/base/clock.h"

namespace ffrecord::pace {

// A signal of a program.
struct Signal {
  enum class What : std::uint8_t { kBegin, kEnd, kStep, kQueue };
  What what = What::kStep;
  PhaseKind kind = PhaseKind::kOther;
  std::uint64_t size_bytes = 0;
  Clock::time_point time;
};

// Signals on their way from any thread to the one that takes them. Never waits: Push() fails if the
// ring is full. A signal whose thread stands still in Push() holds up those behind it.
//
// Thread-safe; one thread at a time may call Pop().
class SignalRing {
 public:
  static constexpr std::uint64_t kSlotCount = 1024;

  SignalRing() {
    for (std::uint64_t i = 0; i < kSlotCount; ++i)
      slots_[i].turn.store(i, std::memory_order_relaxed);
  }

  // How many were pushed before; none if it is full.
  std::optional<std::uint64_t> Push(const Signal& signal) noexcept {
    std::uint64_t place = end_.load(std::memory_order_relaxed);
    for (;;) {
      Slot& slot = slots_[place % kSlotCount];
      const std::uint64_t turn = slot.turn.load(std::memory_order_acquire);
      if (turn < place) return std::nullopt;  // It still has the signal of a round before.
      if (turn > place) {
        place = end_.load(std::memory_order_relaxed);
      } else if (end_.compare_exchange_weak(place, place + 1, std::memory_order_relaxed)) {
        slot.signal = signal;
        slot.turn.store(place + 1, std::memory_order_release);
        return place;
      }
    }
  }

  std::optional<Signal> Pop() noexcept {
    Slot& slot = slots_[begin_ % kSlotCount];
    if (slot.turn.load(std::memory_order_acquire) != begin_ + 1) return std::nullopt;
    const Signal signal = slot.signal;
    slot.turn.store(begin_ + kSlotCount, std::memory_order_release);
    ++begin_;
    return signal;
  }

 private:
  struct Slot {
    std::atomic<std::uint64_t> turn{0};  // Its place: to be written; one more: to be read.
    Signal signal;
  };

  std::array<Slot, kSlotCount> slots_;
  std::atomic<std::uint64_t> end_{0};
  std::uint64_t begin_ = 0;
};

}  // namespace ffrecord::pace
