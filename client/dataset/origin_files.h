#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>
#include <ffrecord/session_options.h>

#include "libffrecord/format/dataset_manifest.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord::client {

// Files that stay where they are, and that the nodes of a cluster fetch from there.
struct OriginFiles {
  std::shared_ptr<const RangeReader> files;
  std::vector<FileOrigin> origins;  // The origin of each file.
};

// The files at `locations`: all of them addresses of objects, s3://, or all of them paths in a
// folder that the nodes have at the same path. Fails with kInvalidArgument for others, and as
// FindObjects or OpenLocalFiles.
Result<OriginFiles> OpenOriginFiles(std::span<const std::string> locations,
                                    const SessionOptions& options);

// Bytes of a file, all of them there. Fails as the range that failed.
Result<void> ReadWhole(const RangeReader& files, std::uint32_t file, std::uint64_t offset_bytes,
                       std::span<std::byte> bytes);

// The entry of one file in a manifest. Reads all of it, for the checksums of its extents; their ids
// are those of the file `number` of `upload`. Calls `tell` with the number of bytes that were read.
// Fails as the range that failed.
Result<ManifestFile> DescribeOriginFile(const OriginFiles& files, std::uint32_t number,
                                        std::string name, std::uint64_t upload,
                                        const std::function<void(std::uint64_t)>& tell);

}  // namespace ffrecord::client
