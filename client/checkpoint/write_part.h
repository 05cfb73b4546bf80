#pragma once

#include <span>
#include <string_view>

#include <ffrecord/client/checkpoint.h>
#include <ffrecord/result.h>

#include "client/checkpoint/last_digests.h"
#include "client/checkpoint/plan.h"
#include "client/checkpoint/publish.h"
#include "client/checkpoint/target.h"

namespace ffrecord::client {

// Writes all new segments of `plan` to the attempt of `save`, then the part's manifest. An
// incremental save keeps what it can of the newest step at `target`, if it shares; its tensors are
// cut into rows. Returns what the coordinator needs; `digests` are what the rank has saved of each
// tensor.
Result<PartReport> WritePart(const CheckpointTarget& target, const BegunSave& save, PartPlan plan,
                             std::span<const TensorView> tensors, const SaveOptions& options,
                             RankDigests& digests);

// Writes a whole small file.
Result<WrittenFile> WriteSmallFile(CheckpointAttempt& attempt, std::string_view name,
                                   std::span<const std::byte> bytes);

}  // namespace ffrecord::client
