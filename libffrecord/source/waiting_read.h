#pragma once

#include <span>

#include "libffrecord/base/patience.h"
#include "libffrecord/source/range_queue.h"
#include "libffrecord/source/range_reader.h"

namespace ffrecord {

// RangeReader::ReadEach through a queue that has no other groups: submits `ranges` and polls until
// they have ended.
Result<void> ReadThrough(RangeQueue& queue, std::span<RangeRead> ranges,
                         const RangeReader::Arrived& arrived, Patience& patience);

}  // namespace ffrecord
