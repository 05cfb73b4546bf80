#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libffrecord/source/block_cache.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// The files of `source`, whose alignment is 1, through a cache: ranges that the cache has are read
// from it, others from the source, and kept. `identities` has, for each file, bytes that identify
// this version of it. A forked child may use it if it may use the source.
std::unique_ptr<RangeReader> OpenCachedFiles(std::shared_ptr<const RangeReader> source,
                                             std::shared_ptr<const BlockCache> cache,
                                             const std::vector<std::string>& identities);

}  // namespace ffrecord
