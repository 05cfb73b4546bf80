#pragma once

#include <filesystem>

#include <ffrecord/repair.h>

#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// RepairFile for the first file of any RangeReader whose alignment is 1.
Result<RepairReport> RepairSource(const RangeReader& source,
                                  const std::filesystem::path& destination,
                                  const RepairOptions& options = {});

}  // namespace ffrecord
