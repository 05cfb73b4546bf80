#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <ffrecord/client/checkpoint.h>
#include <ffrecord/result.h>

#include "client/checkpoint/target.h"
#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// All manifests of one committed step, each verified, and against each other: same step and
// attempt, the sizes and digests of the root, boxes that cover every tensor once, a tree that
// refers only to tensors that are there.
struct StepManifests {
  RootManifest root;
  std::vector<PartManifest> parts;  // In rank order.
};

// Fails with kCorruption (names the file), kNotFound if a file is missing, kInvalidArgument if a
// newer version wrote it.
Result<RootManifest> ReadRootManifest(const CommittedStep& files, std::uint64_t step);
// As CheckpointReader::Open(), at a target that is open.
Result<CheckpointReader> OpenStep(const CheckpointTarget& target, std::uint64_t step);
// Whether the step that is visible at `target` now is that of `attempt`. Fails if that cannot be
// said: nothing is there, its root manifest is damaged, or out of reach.
Result<bool> IsAttemptVisible(const CheckpointTarget& target, std::uint64_t step,
                              const AttemptId& attempt);
// The save that `step` is; nothing if there is none, or its root manifest is damaged.
Result<std::optional<AttemptId>> AttemptAt(const CheckpointTarget& target, std::uint64_t step);
Result<PartManifest> ReadPartManifest(const CommittedStep& files, const RootManifest& root,
                                      std::uint32_t rank);
// Parses its 32 hex digits; kInvalidArgument for anything else.
Result<AttemptId> AttemptOf(std::string_view hex);
Commit CommitOf(const RootManifest& root);
// Damage to one step: an earlier one may still be whole. Anything else would hit that one as well.
bool IsDamage(const Error& error) noexcept;
Result<StepManifests> ReadStepManifests(const CommittedStep& files, std::uint64_t step);

}  // namespace ffrecord::client
