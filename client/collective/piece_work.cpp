#include "client/collective/piece_work.h"

#include <chrono>
#include <cstring>

#include "client/collective/reduce.h"
#include "client/collective/wire.h"

namespace ffrecord::client {

void PieceWork::DivideOwn(const Operation& operation) const {
  if (operation.op != ReduceOp::kAverage) return;
  const auto before = Clock::now();
  Divide(operation.type, group_.world_size, operation.plan.count, operation.data);
  CountSince(before);
}

std::int32_t PieceWork::Shift(const Operation& operation, Range piece) const {
  if (!group_.IsRounded(operation)) return 0;
  return WireShift(group_.wire, piece.size(), operation.At(piece.begin));
}

void PieceWork::Encode(const Operation& operation, std::int32_t shift, Range piece,
                       std::byte* place) const {
  std::byte* const bytes = operation.At(piece.begin);
  if (group_.IsRounded(operation))
    EncodeWire(group_.wire, shift, piece.size(), bytes, place);
  else if (piece.size() > 0)
    std::memcpy(place, bytes, piece.size() * group_.WireSize(operation));
}

void PieceWork::Place(const Operation& operation, const Arrival& arrival, Range piece,
                      std::int32_t shift, std::span<const std::byte> bytes) const {
  std::byte* const place = operation.At(piece.begin);
  if (arrival.reduces && piece.size() > 0)
    Add(operation, arrival, piece, shift, bytes);
  else if (group_.IsRounded(operation))
    DecodeWire(group_.wire, shift, piece.size(), bytes.data(), place);
  else if (!bytes.empty() && bytes.data() != place)
    std::memcpy(place, bytes.data(), bytes.size());
}

void PieceWork::Add(const Operation& operation, const Arrival& arrival, Range piece,
                    std::int32_t shift, std::span<const std::byte> bytes) const {
  std::byte* const place = operation.At(piece.begin);
  const auto before = Clock::now();
  if (group_.IsRounded(operation)) {
    ReduceFromWire(group_.wire, shift, operation.op, piece.size(), bytes.data(), place);
    // As all get it who are sent it.
    if (arrival.completes) RoundAsSent(group_.wire, piece.size(), place);
  } else {
    Reduce(operation.type, operation.op, piece.size(), bytes.data(), place);
  }
  CountSince(before);
}

void PieceWork::CountSince(Clock::time_point before) const {
  const std::chrono::nanoseconds took = Clock::now() - before;
  counters_.reduce_ns.fetch_add(static_cast<std::uint64_t>(took.count()),
                                std::memory_order_relaxed);
}

}  // namespace ffrecord::client
