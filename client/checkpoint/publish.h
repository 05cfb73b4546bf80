#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <ffrecord/client/checkpoint.h>
#include <ffrecord/result.h>

#include "client/checkpoint/ballot.h"
#include "client/checkpoint/target.h"
#include "libffrecord/base/text_index.h"
#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// The beginning of a save, the checks of a whole checkpoint and its publication, for
// SaveCheckpoint() and CheckpointShards.

// CheckpointTarget::Begin(), or BeginInPlace() if `options` say so or if the committed step is
// damaged: then a load passes it over, and so does a save. Reads all of a step that is committed,
// to know: a save that would fail may take its time.
Result<std::unique_ptr<CheckpointAttempt>> BeginSave(CheckpointTarget& target, std::uint64_t step,
                                                     const AttemptId& attempt,
                                                     const SaveOptions& options);

// CheckBoxes() for the boxes of all ranks. `intents` are in rank order. The keys are lent by the
// plan or the bytes that lend the intents' boxes.
Result<TextIndex> CheckIntents(std::vector<Intent> intents);

// The keys of the tensors to which `tree` refers, borrowed from it. Fails with kInvalidArgument if
// it is malformed.
Result<std::vector<std::string_view>> ReferencesOf(std::span<const std::byte> tree);

// The result of a save of `reports`, one per rank.
Commit CommitOf(std::uint64_t step, const AttemptId& attempt, std::span<const PartReport> reports);

// Completes `root`, which has no parts yet, with `reports`, in rank order, writes it, and makes the
// attempt visible. Called by the coordinator.
Result<void> Publish(CheckpointAttempt& attempt, RootManifest root,
                     std::vector<PartReport> reports);

}  // namespace ffrecord::client
