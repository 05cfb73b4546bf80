#pragma once

#include <functional>

#include <ffrecord/verify.h>

#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// VerifyFile for the first file of any RangeReader whose alignment is 1.
Result<VerifyReport> VerifySource(
    const RangeReader& source,
    const std::function<bool(std::uint64_t, std::uint64_t)>& progress = {});

}  // namespace ffrecord
