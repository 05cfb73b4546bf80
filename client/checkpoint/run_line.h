#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ffrecord/client/checkpoint.h>
#include <ffrecord/result.h>

#include "client/checkpoint/target.h"
#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// The line of a run: its newest save, the one that this goes on from, and so on. Where training
// goes back to an earlier step and saves again, the steps behind that one are on the line no more:
// they have been given up, whatever their numbers. format.md, "Lines".
//
// A root manifest names the generation of its save; going back begins a new one. The newest record
// of the target says which generations are on the line, and up to which step each.
struct RunLine {
  struct Part {
    std::uint64_t generation;
    std::uint64_t last_step;

    bool operator==(const Part&) const = default;
  };
  std::uint64_t number = 0;      // The record; 0: none, and all steps are on the line.
  std::vector<Part> parts;       // Parts of earlier generations, oldest first.
  std::uint64_t generation = 0;  // Generation of a save that goes on from the newest step.

  // The generation of a save of `step`: an earlier step than that behind which the line goes on is
  // of an earlier generation.
  std::uint64_t GenerationAt(std::uint64_t step) const noexcept;
  bool Has(std::uint64_t of_generation, std::uint64_t step) const noexcept;
};

// Fails with kCorruption if the newest record is damaged: nothing says then which step is the
// newest.
Result<RunLine> LineOf(const CheckpointTarget& target);

// Whether `step` is on `line`, which is the target's. One whose root manifest is damaged is.
Result<bool> IsOnLine(const CheckpointTarget& target, const RunLine& line, std::uint64_t step);

// Whether a step of `first` or more is on `line`, which is the target's. Fails if a place that may
// have one does not answer.
Result<bool> HasFrom(const CheckpointTarget& target, const RunLine& line, std::uint64_t first);

// The line of a save that is about to begin.
struct SaveLine {
  RunLine line;
  bool is_new = false;       // `line` has no record yet.
  std::uint64_t number = 0;  // Number of the newest record at that time.
  std::uint64_t turn = 0;    // When its state was taken.
  bool was_last = false;     // As in Position, of the step that the save goes on from.
};

// Where a save of `step` stands, by what this process had loaded or saved last at `target`, whose
// address is `address`, at `turn` (SaveOptions): it goes on from there. If that was an older step
// when it was loaded, and the target has `step` or later ones, training has gone back, and the save
// gives those up. Fails with kConflict if another process has gone back meanwhile, behind what this
// one has saved, or if the result depends on a load whose caller has not said what it is for. A
// save that `replaces` a step gives up others only if a caller has said that the run goes back.
Result<SaveLine> LineOfSave(const CheckpointTarget& target, std::string_view address,
                            std::uint64_t step, std::uint64_t turn, bool replaces);

// Whether a save of `step` that is to replace the whole step which is there may do so. Fails with
// kConflict if another process has saved that step behind the one that this process goes on from:
// of the two, this one may be a job that was taken for dead.
Result<void> CheckReplaces(const CheckpointTarget& target, std::string_view address,
                           std::uint64_t step, const SaveLine& save);

// Makes the save's line the target's, just before it becomes visible: a first place whose line is
// known from a farther one has a record of its own from then on. Fails with kConflict if another
// process has gone back since LineOfSave(), or does so at the same moment and was first.
Result<void> TakeLine(CheckpointTarget& target, const SaveLine& save);

// Whether `step` of `generation`, which has just become visible, is on the line still. Fails with
// kConflict if another process has gone back since TakeLine(). Success if nobody can say.
Result<void> CheckOnLine(const CheckpointTarget& target, std::uint64_t generation,
                         std::uint64_t step);

// The line that `to` will have when it has a copy of a save of `generation` at `from`: that of
// `from`, and `is_new`, if the save is of the newest generation there and `to` has not heard of it.
// Where neither `is_of_run` nor a save that is at both says that `to` holds copies of the run, its
// line stays: it may hold steps of others.
Result<SaveLine> LineOfCopy(const CheckpointTarget& from, std::uint64_t generation,
                            const CheckpointTarget& to, bool is_of_run);

// This process has saved, or loaded, a step, and goes on from it, if it has loaded none since the
// state of the save was taken. A loaded step `is_newest` if no step behind it was on the line; it
// `is_certain` that the process goes on from it if the caller has said so. Without the line the
// first save finds out what is there.
void NoteSaved(std::string_view address, const SaveLine& save, std::uint64_t step,
               const AttemptId& attempt);
void NoteLoaded(std::string_view address, const Result<RunLine>& line, const RootManifest& root,
                bool is_newest, bool is_certain);

}  // namespace ffrecord::client
