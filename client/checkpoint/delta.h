#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ffrecord/client/checkpoint.h>
#include <ffrecord/result.h>

#include "client/checkpoint/plan.h"
#include "client/checkpoint/target.h"

namespace ffrecord::client {

// An incremental save keeps what the step before it already holds: a segment that still has enough
// bytes of use gets a second name in the new step (in a folder a hard link, at a daemon a second
// name of the same extents), and the new part manifest points into it. So every step is complete:
// it can be read, verified and removed without the others, and the file system or the daemon frees
// bytes when no step has them any more.
// 12-steps-share-segments.md.

// Rows of a tensor that change or stay together, in bytes: what an incremental save compares.
inline constexpr std::uint64_t kDeltaBoxSize = std::uint64_t{1} << 20;

// Smaller than a whole save's, so that a segment is written anew when half of it is out of use, and
// not all of the state.
inline constexpr std::uint64_t kDeltaSegmentTarget = std::uint64_t{256} << 20;

// The same bytes as boxes of kDeltaBoxSize at most, where that is more than a row.
std::vector<TensorView> CutIntoRows(std::span<const TensorView> tensors);

// Contents of each tensor's bytes, by several threads; `digest` only if it is asked for.
Result<std::vector<BoxContent>> ContentsOf(std::span<const TensorView> tensors, bool with_digests);

// The part of `rank` in the newest committed step with undamaged manifests: nothing if there is
// none, if it cannot be read, or if it does not know its contents. All is written then.
std::optional<PartManifest> FindBase(const CheckpointTarget& target, std::uint32_t rank);

// Which tensors lie unchanged in segments of `base` of which half or more is of use.
KeptBoxes UnchangedBoxes(const PartManifest& base, std::span<const TensorView> tensors,
                         std::span<const BoxContent> contents);

// The plan of an incremental save. `files` are the segments that it keeps, as the coordinator is to
// publish them, in the order of the first segments of `part`.
struct DeltaPlan {
  PartPlan part;
  std::vector<WrittenFile> files;
};

// Plans the part `whole` again, after giving to `attempt` what it can keep of `base`.
Result<DeltaPlan> PlanDelta(CheckpointAttempt& attempt, const std::optional<PartManifest>& base,
                            const PartPlan& whole, std::span<const TensorView> tensors);

}  // namespace ffrecord::client
