#include <ffrecord/runtime.h>

#include <chrono>

#include "capi/handles.h"

namespace ffrecord::capi {
namespace {

static_assert(FFR_PHASE_COLLECTIVE == static_cast<int>(PhaseKind::kCollective));
static_assert(FFR_PHASE_POINT_TO_POINT == static_cast<int>(PhaseKind::kPointToPoint));
static_assert(FFR_PHASE_OTHER == static_cast<int>(PhaseKind::kOther));

PhaseKind KindOf(std::uint32_t kind) {
  return kind < kPhaseKindCount ? static_cast<PhaseKind>(kind) : PhaseKind::kOther;
}

void TakeClass(const ffr_pacing_class& given, PacingOptions::Class& taken) {
  if (given.floor_bytes_per_s != 0) taken.floor_bytes_per_s = given.floor_bytes_per_s;
  if (given.longest_hold_ms != 0)
    taken.longest_hold = std::chrono::milliseconds(given.longest_hold_ms);
}

Result<void> Start(const ffr_pacing_options* given) {
  const ffr_pacing_options options = FFR_TRY(TakeOptions(given, "ffr_pacing_options"));
  PacingOptions taken;
  TakeClass(options.prefetch, taken.prefetch);
  TakeClass(options.checkpoint, taken.checkpoint);
  TakeClass(options.repair, taken.repair);
  taken.link_bytes_per_s = options.link_bytes_per_s;
  if (options.chunk_size_bytes != 0) taken.chunk_size_bytes = options.chunk_size_bytes;
  return StartPacing(taken);
}

}  // namespace
}  // namespace ffrecord::capi

using ffrecord::capi::Guarded;

void ffr_phase_begin(uint32_t kind, uint64_t size_bytes) {
  ffrecord::BeginPhase(ffrecord::capi::KindOf(kind), size_bytes);
}

void ffr_phase_end(uint32_t kind) { ffrecord::EndPhase(ffrecord::capi::KindOf(kind)); }

void ffr_step_end() { ffrecord::EndStep(); }

ffr_code ffr_pacing_start(const ffr_pacing_options* options, ffr_error** error) {
  return Guarded(error, [&] { return ffrecord::capi::Start(options); });
}

void ffr_pacing_stop() { ffrecord::StopPacing(); }
