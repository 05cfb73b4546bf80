#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ffrecord/result.h>

#include "server/storage/extent_trailer.h"

namespace ffrecord::server {

// What lies in the folder of a store: FOLDER/<slot>/<id>.
struct FoundExtents {
  std::vector<ExtentTrailer> extents;  // Those that are sound, in no order.
  std::vector<std::string> refused;    // Path and reason of each file that is no sound extent.
};

// Looks at every file: its name and its trailer, side by side, for a disk answers many at a time.
// No link is followed. A folder of a slot that cannot be read costs its own extents only. Fails
// with kIo if `folder` cannot be listed.
Result<FoundExtents> ScanExtents(const std::filesystem::path& folder);

}  // namespace ffrecord::server
