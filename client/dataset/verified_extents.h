#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ffrecord/result.h>

#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::client {

// `bytes` were read at `offset_bytes` of that file of `source`. Checks the extents of `file` that
// lie in them as a whole, and puts the bytes of another copy in the place of those that are
// damaged. Fails with kCorruption if no copy is whole, and as FileCopies.
Result<void> VerifyExtents(const RangeReader& source, std::uint32_t number,
                           const ManifestFile& file, std::uint64_t offset_bytes,
                           std::span<std::byte> bytes);

}  // namespace ffrecord::client
