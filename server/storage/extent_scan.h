#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/dataset_manifest.h"
#include "server/storage/extent_trailer.h"

namespace ffrecord::server {

// The trailer of an open file, called `name` in messages. Fails with kCorruption, kIo.
Result<ExtentTrailer> ReadTrailer(int file, const std::filesystem::path& name);

// The files in the folder of a store: FOLDER/<slot>/<id>.
struct FoundExtents {
  std::vector<const ManifestExtent*> known;  // Those of the known ones that are there.
  std::vector<ExtentTrailer> extents;        // The others that are sound. Both in no order.
  std::vector<std::string> refused;  // Path and reason of each file that is not a valid extent.
};

// Looks at every file, side by side, for a disk answers many at a time: at its name, and at its
// trailer unless it is one of `known`, which are in order of their ids: of those it is enough that
// they are there, for a disk with millions of them takes minutes to show its trailers. No link is
// followed. It is durable then that they are there, and no others. A slot's folder that cannot be
// read or synced costs its own extents only. Fails with kIo if `folder` cannot be listed.
Result<FoundExtents> ScanExtents(const std::filesystem::path& folder,
                                 std::span<const ManifestExtent> known);

}  // namespace ffrecord::server
