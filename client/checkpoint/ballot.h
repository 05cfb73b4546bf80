#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/client/checkpoint.h>
#include <ffrecord/result.h>

#include "client/checkpoint/plan.h"
#include "client/checkpoint/tally.h"
#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// The results that ranks all-gather in the rounds of a save. All pure functions but Agree. Ranks of
// one save run the same version of the library.

// The plan round: a word about what each rank is about to save. The coordinator is rank 0.
struct PlanWord {
  std::uint64_t step = 0;
  AttemptId attempt{};  // The coordinator's is the one of the save.
  BoxTally tally;
  bool shares = true;  // The coordinator's is the one of the save: see BegunSave.
};

// The boxes that a rank is about to save, or some of them: sent only if the words do not add up,
// and to the coordinator of CheckpointShards.
struct Intent {
  std::uint64_t step = 0;
  AttemptId attempt{};
  std::vector<PlannedBox> boxes;
  std::vector<std::uint64_t> numbers;  // Shapes, offsets and extents of boxes that were decoded.
};

// A file that a rank wrote, as its target describes it to the coordinator.
struct WrittenFile {
  std::string name;              // Such as "part-00003/seg-0000".
  std::vector<std::byte> entry;  // The target's own.
};

// The write round: what each rank has made durable.
struct PartReport {
  RootManifest::Part part;
  std::vector<WrittenFile> files;
};

// The intent of the boxes of a plan, which lends them.
Intent IntentOf(const PartPlan& plan);

std::vector<std::byte> EncodePlanWord(const PlanWord& word);
Result<PlanWord> DecodePlanWord(std::span<const std::byte> bytes);

// If the words do not add up: what each rank has of each bucket.
std::vector<std::byte> EncodeTallies(const BoxTallies& tallies);
Result<BoxTallies> DecodeTallies(std::span<const std::byte> bytes);

std::vector<std::byte> EncodeIntent(const Intent& intent);

// Its boxes are lent by `bytes`, and by its own `numbers`: it may be moved, not copied.
Result<Intent> DecodeIntent(std::span<const std::byte> bytes);
std::vector<std::byte> EncodePartReport(const PartReport& report);
Result<PartReport> DecodePartReport(std::span<const std::byte> bytes);

// One round of AllGatherResults(). Returns the results of all ranks, in rank order, or, on every
// rank alike, the error of the lowest rank that failed. `group` null: a world of one.
Result<std::vector<std::vector<std::byte>>> Agree(CheckpointGroup* group,
                                                  Result<std::vector<std::byte>> mine);

}  // namespace ffrecord::client
