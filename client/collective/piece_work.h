#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "client/collective/exchange_counters.h"
#include "client/collective/operations.h"
#include "client/collective/schedule.h"
#include "libffrecord/base/clock.h"

namespace ffrecord::client {

// The arithmetic of pieces: adds, divides, and rounds for the wire. Measures what adding costs by
// the machine's clock; nothing is decided by that.
class PieceWork {
 public:
  PieceWork(const ExchangeGroup& group, ExchangeCounters& counters)
      : group_(group), counters_(counters) {}

  // Divides this rank's part of an average before it is sent or added to.
  void DivideOwn(const Operation& operation) const;
  // By which power of two a piece is scaled when it crosses as halves; else 0.
  std::int32_t Shift(const Operation& operation, Range piece) const;
  // Writes a piece to `place` as it crosses. Values that are rounded for the wire are rounded in
  // the array too, so that all ranks go on with the same bits.
  void Encode(const Operation& operation, std::int32_t shift, Range piece, std::byte* place) const;
  // Adds or copies `bytes` to where they belong, if they are not there.
  void Place(const Operation& operation, const Arrival& arrival, Range piece, std::int32_t shift,
             std::span<const std::byte> bytes) const;

 private:
  void Add(const Operation& operation, const Arrival& arrival, Range piece, std::int32_t shift,
           std::span<const std::byte> bytes) const;
  void CountSince(Clock::time_point before) const;

  const ExchangeGroup& group_;
  ExchangeCounters& counters_;
};

}  // namespace ffrecord::client
