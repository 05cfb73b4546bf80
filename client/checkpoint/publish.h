#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <ffrecord/client/checkpoint.h>
#include <ffrecord/result.h>

#include "client/checkpoint/ballot.h"
#include "client/checkpoint/run_line.h"
#include "client/checkpoint/target.h"
#include "libffrecord/base/text_index.h"
#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// The beginning of a save, the checks of a whole checkpoint and its publication, for
// SaveCheckpoint() and CheckpointShards.

// A save on its way, as its coordinator knows it; other ranks have no line.
struct BegunSave {
  std::unique_ptr<CheckpointAttempt> attempt;
  SaveLine line;
  // Whether an incremental save may share with the step before: not if the target refuses it now
  // (CheckpointTarget::MayShare), nor the one after a save that was
  // refused for what it had shared (kKeptIsLost): as long as a node is down, a cluster would refuse
  // each that shares. The coordinator knows, and tells the other ranks.
  bool shares = true;
};

// CheckpointTarget::Begin(), or BeginInPlace() if `options` say so or if a load passes the
// committed step over: it is damaged, or not on the line of the save. Reads all of a step that is
// committed, to know: a save that would fail may take its time. `address` is the target's.
Result<BegunSave> BeginSave(CheckpointTarget& target, std::string_view address, std::uint64_t step,
                            const AttemptId& attempt, const SaveOptions& options);

// CheckBoxes() for the boxes of all ranks. `intents` are in rank order. The keys are lent by the
// plan or the bytes that lend the intents' boxes.
Result<TextIndex> CheckIntents(std::vector<Intent> intents);

// The keys of the tensors to which `tree` refers, borrowed from it. Fails with kInvalidArgument if
// it is malformed.
Result<std::vector<std::string_view>> ReferencesOf(std::span<const std::byte> tree);

// The result of a save of `reports`, one per rank.
Commit CommitOf(std::uint64_t step, const AttemptId& attempt, std::span<const PartReport> reports);

// Completes `root`, which has neither parts nor a generation yet, with `reports`, in rank order,
// writes it, and makes the attempt visible: then this process goes on from it. Called by the
// coordinator, which remembers a refusal for the next save at `address`.
Result<void> Publish(CheckpointTarget& target, std::string_view address, const BegunSave& save,
                     RootManifest root, std::vector<PartReport> reports);

// Whether a publication failed only for extents that daemons were to have: see kKeptIsLost.
bool IsKeptLost(const Error& error) noexcept;
// The error of an incremental save; if that is why, says what will help.
Error OfIncremental(Error error);

}  // namespace ffrecord::client
