#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include <ffrecord/client/checkpoint.h>
#include <ffrecord/result.h>

#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// A rank's share of each tensor: by XXH3-64 of the key, the XOR of the digests of its boxes.
// In any order: a save of tensors that train sorts them.
using RankDigests = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

// Requires that the part has_digests.
RankDigests DigestsOfRank(const PartManifest& part);

// Calls `options.unchanged` if tensors that train are bit-identical to those that this process has
// saved last at `address`, as another step. Fails as it does.
Result<void> CheckChanged(std::string_view address, std::uint64_t step, RankDigests& digests,
                          const SaveOptions& options);

// This process has saved `step` at `address`. Thread-safe, as CheckChanged().
void NoteDigests(std::string_view address, std::uint64_t step, RankDigests digests,
                 const SaveOptions& options);

}  // namespace ffrecord::client
