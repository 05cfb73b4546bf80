#pragma once

#include <vector>

#include "server/service/read/disk_reader.h"

namespace ffrecord::test {

// For a DiskReader that opens files in its own thread.
inline server::DiskReader::OpenElsewhere OpenAtOnce(server::DiskReader& reader) {
  return [&reader](const std::vector<server::ExtentPtr>& extents, bool is_mapped) {
    for (const server::ExtentPtr& extent : extents)
      reader.TakeOpened(extent, server::OpenExtents::Open(extent, is_mapped));
  };
}

}  // namespace ffrecord::test
