#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include <ffrecord/io_policy.h>
#include <ffrecord/result.h>

#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// How local files are read.
struct SourceOptions {
  IoPolicy io = IoPolicy::kAuto;
  std::uint32_t queue_depth = 64;  // Reads in flight for one call; 1 to 4096.
};

// A RangeReader over local files. Fails with kNotFound, kIo and kInvalidArgument for missing and
// refused files. kAuto compares `page_cache_room_bytes` with the size of the list.
Result<std::unique_ptr<RangeReader>> OpenLocalFiles(std::span<const std::filesystem::path> paths,
                                                    const SourceOptions& options,
                                                    std::uint64_t page_cache_room_bytes);
// The same, with the room that the page cache has now.
Result<std::unique_ptr<RangeReader>> OpenLocalFiles(std::span<const std::filesystem::path> paths,
                                                    const SourceOptions& options = {});

}  // namespace ffrecord
