#include <ffrecord/runtime.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "python/src/bind.h"
#include "python/src/errors.h"
#include "python/src/phases.h"
#include "python/src/signals.h"

namespace ffrecord::python {
namespace {

constexpr std::array<const char*, kTrafficClassCount> kClasses{"urgent", "prefetch", "checkpoint",
                                                               "repair"};

TrafficClass ClassOf(std::string_view name) {
  for (std::size_t traffic = 0; traffic < kClasses.size(); ++traffic)
    if (kClasses[traffic] == name) return static_cast<TrafficClass>(traffic);
  Raise(
      {ErrorCode::kInvalidArgument, "no traffic class '" + std::string(name) +
                                        "': take 'urgent', 'prefetch', 'checkpoint' or 'repair'"});
}

// A value that is out of range, or no number, becomes 0, which the library refuses with the
// option's name.
std::chrono::milliseconds MillisecondsFrom(double seconds) {
  constexpr double kMaxS = 1e9;
  if (!(seconds > 0 && seconds < kMaxS)) return {};
  return std::chrono::milliseconds(std::llround(seconds * 1000));
}

using Limits = std::pair<std::uint64_t, double>;  // Floor in bytes/s, longest hold in seconds.

PacingOptions::Class ClassFrom(const Limits& limits) {
  return {limits.first, MillisecondsFrom(limits.second)};
}

Limits LimitsOf(const PacingOptions::Class& limits) {
  return {limits.floor_bytes_per_s, static_cast<double>(limits.longest_hold.count()) / 1000};
}

py::dict CountersOf(const PacingCounters::Class& counters) {
  py::dict named;
  named["chunks"] = counters.chunks;
  named["size_bytes"] = counters.size_bytes;
  named["held_chunks"] = counters.held_chunks;
  named["held_size_bytes"] = counters.held_size_bytes;
  named["held_s"] = counters.held_s;
  named["held_now"] = counters.held_now;
  named["expired_holds"] = counters.expired_holds;
  named["floor_chunks"] = counters.floor_chunks;
  named["stale_chunks"] = counters.stale_chunks;
  return named;
}

py::dict Counters() {
  const PacingCounters counters = GetPacingCounters();
  py::dict named;
  py::dict classes;
  for (std::size_t traffic = 0; traffic < kClasses.size(); ++traffic)
    classes[kClasses[traffic]] = CountersOf(counters.classes[traffic]);
  named["classes"] = classes;
  named["phases"] = counters.phases;
  named["phase_size_bytes"] = counters.phase_size_bytes;
  named["steps"] = counters.steps;
  named["expired_phases"] = counters.expired_phases;
  named["unmatched_ends"] = counters.unmatched_ends;
  named["lost_signals"] = counters.lost_signals;
  named["promotions"] = counters.promotions;
  named["overlapped_chunks"] = counters.overlapped_chunks;
  return named;
}

using Numbers = std::map<std::string, std::uint32_t>;

// Marks of one kind, by the names of the classes, or "collectives".
void TakeMarks(const Numbers& numbers, std::optional<std::uint8_t> TrafficMark::*member,
               TrafficMarks& into) {
  for (const auto& [name, number] : numbers) {
    TrafficMark& mark = name == "collectives"
                            ? into.collectives
                            : into.classes[static_cast<std::size_t>(ClassOf(name))];
    // Numbers that are too large stay too large, and are refused.
    mark.*member = static_cast<std::uint8_t>(std::min<std::uint32_t>(number, UINT8_MAX));
  }
}

void MarkTraffic(const Numbers& dscp, const Numbers& socket_priority) {
  TrafficMarks marks;
  TakeMarks(dscp, &TrafficMark::dscp, marks);
  TakeMarks(socket_priority, &TrafficMark::priority, marks);
  OkOrRaise(SetTrafficMarks(marks));
}

}  // namespace

void BindRuntime(py::module_& module) {
  const PacingOptions defaults;
  const auto seconds = [](std::chrono::milliseconds time) {
    return static_cast<double>(time.count()) / 1000;
  };

  AddPhases(module);
  module.def("report_loader_queue", &ReportLoaderQueue, py::arg("is_low"));
  module.def(
      "start_pacing",
      [](const Limits& prefetch, const Limits& checkpoint, const Limits& repair,
         std::uint64_t link_bytes_per_s, std::uint32_t chunk_size_bytes, double phase_limit_s,
         double stale_after_s) {
        OkOrRaise(StartPacing({.prefetch = ClassFrom(prefetch),
                               .checkpoint = ClassFrom(checkpoint),
                               .repair = ClassFrom(repair),
                               .link_bytes_per_s = link_bytes_per_s,
                               .chunk_size_bytes = chunk_size_bytes,
                               .phase_limit = MillisecondsFrom(phase_limit_s),
                               .stale_after = MillisecondsFrom(stale_after_s)}));
      },
      py::kw_only(), py::arg("prefetch") = LimitsOf(defaults.prefetch),
      py::arg("checkpoint") = LimitsOf(defaults.checkpoint),
      py::arg("repair") = LimitsOf(defaults.repair),
      py::arg("link_bytes_per_s") = defaults.link_bytes_per_s,
      py::arg("chunk_size_bytes") = defaults.chunk_size_bytes,
      py::arg("phase_limit_s") = seconds(defaults.phase_limit),
      py::arg("stale_after_s") = seconds(defaults.stale_after));
  module.def("stop_pacing", [] { WithoutGil([] { return StopPacing(), true; }); });
  module.def("is_pacing", &IsPacing);
  module.def(
      "await_turn",
      [](std::string_view traffic, std::uint64_t size_bytes) {
        const TrafficClass what = ClassOf(traffic);
        if (!IsPacing()) return;
        Interruptible([&](const auto& give_up) { return AwaitTurn(what, size_bytes, give_up); });
      },
      py::arg("traffic"), py::arg("size_bytes"));
  module.def("pacing_counters", &Counters);
  module.def("mark_traffic", &MarkTraffic, py::kw_only(), py::arg("dscp") = Numbers(),
             py::arg("socket_priority") = Numbers());
}

}  // namespace ffrecord::python
