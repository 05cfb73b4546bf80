#include "libffrecord/pace/marks.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ffrecord {
namespace {

// A mark in two bytes: each is one more than the number, or 0 if there is none.
using Packed = std::uint16_t;

constexpr std::size_t kCollectives = kTrafficClassCount;
std::array<std::atomic<Packed>, kTrafficClassCount + 1> g_marks{};

Packed Pack(const TrafficMark& mark) {
  const auto one_more = [](const std::optional<std::uint8_t>& number) {
    return number ? static_cast<unsigned>(*number) + 1 : 0;
  };
  return static_cast<Packed>(one_more(mark.dscp) << 8 | one_more(mark.priority));
}

TrafficMark MarkAt(std::size_t place) noexcept {
  const Packed packed = g_marks[place].load(std::memory_order_relaxed);
  TrafficMark mark;
  if (packed >> 8 != 0) mark.dscp = static_cast<std::uint8_t>((packed >> 8) - 1);
  if ((packed & 0xff) != 0) mark.priority = static_cast<std::uint8_t>((packed & 0xff) - 1);
  return mark;
}

Result<void> Check(const TrafficMark& mark) {
  const auto refused = [](const char* what, unsigned number, unsigned max) {
    return Error{ErrorCode::kInvalidArgument, std::string("set traffic marks: ") + what + " " +
                                                  std::to_string(number) +
                                                  "; it must be from 0 to " + std::to_string(max)};
  };
  if (mark.dscp > TrafficMark::kDscpMax) return refused("DSCP", *mark.dscp, TrafficMark::kDscpMax);
  if (mark.priority > TrafficMark::kPriorityMax)
    return refused("priority", *mark.priority, TrafficMark::kPriorityMax);
  return {};
}

}  // namespace

namespace pace {

TrafficMark MarkOf(TrafficClass traffic) noexcept {
  return MarkAt(static_cast<std::size_t>(traffic));
}

TrafficMark MarkOfCollectives() noexcept { return MarkAt(kCollectives); }

}  // namespace pace

Result<void> SetTrafficMarks(const TrafficMarks& marks) {
  for (const TrafficMark& mark : marks.classes) FFR_TRY(Check(mark));
  FFR_TRY(Check(marks.collectives));
  for (std::size_t i = 0; i < marks.classes.size(); ++i)
    g_marks[i].store(Pack(marks.classes[i]), std::memory_order_relaxed);
  g_marks[kCollectives].store(Pack(marks.collectives), std::memory_order_relaxed);
  return {};
}

}  // namespace ffrecord
