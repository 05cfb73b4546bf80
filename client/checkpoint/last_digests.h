#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

#include <ffrecord/client/checkpoint.h>
#include <ffrecord/result.h>

#include "libffrecord/format/checkpoint_manifest.h"

namespace ffrecord::client {

// A rank's share of each tensor: by XXH3-64 of the key, the XOR of the digests of its boxes.
using RankDigests = std::unordered_map<std::uint64_t, std::uint64_t>;

// Requires that the part has_digests.
RankDigests DigestsOfRank(const PartManifest& part);

// Calls `options.unchanged` if tensors that train are bit-identical to those that this process has
// saved last at `address`, as another step. Fails as it does.
Result<void> CheckChanged(std::string_view address, std::uint64_t step, const RankDigests& digests,
                          const SaveOptions& options);

// This process has saved `step` at `address`. Thread-safe, as CheckChanged().
void NoteDigests(std::string_view address, std::uint64_t step, RankDigests digests,
                 const SaveOptions& options);

}  // namespace ffrecord::client
