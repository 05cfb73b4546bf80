#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/client/checkpoint.h>
#include <ffrecord/result.h>

#include "client/checkpoint/plan.h"
#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// What ranks tell each other in the three rounds of a save, as bytes of a CheckpointGroup. All
// pure functions but Vote. Ranks of one save run the same version of the library.

// Round 1: what each rank is about to save. The coordinator is rank 0.
struct Intent {
  std::uint64_t step = 0;
  AttemptId attempt{};  // The coordinator's is the one of the save.
  std::vector<PlannedBox> boxes;
  std::vector<std::uint64_t> numbers;  // Shapes, offsets and extents of boxes that were decoded.
};

// A file that a rank wrote, as its target describes it to the coordinator.
struct WrittenFile {
  std::string name;              // Such as "part-00003/seg-0000".
  std::vector<std::byte> entry;  // The target's own.
};

// Round 2: what each rank has made durable.
struct PartReport {
  RootManifest::Part part;
  std::vector<WrittenFile> files;
};

// Of the boxes of a plan, which lends them.
Intent IntentOf(const PartPlan& plan);

std::vector<std::byte> EncodeIntent(const Intent& intent);

// Its boxes are lent by `bytes`, and by its own `numbers`: it may be moved, not copied.
Result<Intent> DecodeIntent(std::span<const std::byte> bytes);
std::vector<std::byte> EncodePartReport(const PartReport& report);
Result<PartReport> DecodePartReport(std::span<const std::byte> bytes);

// One round: each rank brings bytes or an error. Returns the bytes of all, in rank order, or, on
// every rank alike, the error of the lowest rank that brought one. `group` null: a world of one.
Result<std::vector<std::vector<std::byte>>> Vote(CheckpointGroup* group,
                                                 Result<std::vector<std::byte>> mine);

}  // namespace ffrecord::client
