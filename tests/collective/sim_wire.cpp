#include "sim_wire.h"

#include <algorithm>

namespace ffrecord::test {

std::uint64_t SimPipe::Leave(std::uint64_t most_bytes) {
  if (is_dropped) return 0;
  std::uint64_t count = 0;
  for (SimFrame& frame : frames) {
    const std::uint64_t part = std::min(most_bytes - count, frame.size_bytes() - frame.left_bytes);
    if (part == 0 && count == most_bytes) break;
    // A placed payload goes before its head, any other behind it.
    const bool is_placed = frame.kind == SimFrame::Kind::kPlaced;
    const std::uint64_t before = is_placed ? 0 : frame.head_size_bytes;
    const auto payload_of = [&](std::uint64_t bytes) {
      return bytes <= before ? 0 : std::min<std::uint64_t>(bytes - before, frame.source.size());
    };
    const std::uint64_t begin = payload_of(frame.left_bytes);
    const std::uint64_t end = payload_of(frame.left_bytes + part);
    frame.payload.insert(frame.payload.end(),
                         frame.source.begin() + static_cast<std::ptrdiff_t>(begin),
                         frame.source.begin() + static_cast<std::ptrdiff_t>(end));
    frame.left_bytes += part;
    count += part;
  }
  queued_bytes -= count;
  under_way_bytes += count;
  unacked_bytes += count;
  return count;
}

void SimPipe::Arrive(std::uint64_t count_bytes,
                     const std::function<void(std::uint64_t, std::span<const std::byte>)>& placed) {
  unacked_bytes -= count_bytes;
  for (SimFrame& frame : frames) {
    const std::uint64_t part = std::min(count_bytes, frame.left_bytes - frame.arrived_bytes);
    if (frame.kind == SimFrame::Kind::kPlaced && frame.arrived_bytes < frame.payload.size()) {
      const std::uint64_t bytes =
          std::min<std::uint64_t>(part, frame.payload.size() - frame.arrived_bytes);
      placed(frame.offset_bytes + frame.arrived_bytes,
             std::span(frame.payload).subspan(frame.arrived_bytes, bytes));
      under_way_bytes -= bytes;  // It needs no room in the kernel.
    }
    frame.arrived_bytes += part;
    count_bytes -= part;
    if (count_bytes == 0) break;
  }
}

}  // namespace ffrecord::test
