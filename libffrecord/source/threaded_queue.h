#pragma once

#include <memory>

#include "libffrecord/source/range_queue.h"

namespace ffrecord {

// A queue for any reader: it runs one ReadEach for each group, on its own threads. At most
// kThreadedGroupsMax groups are read at a time; the others wait in the order of Submit().
inline constexpr std::size_t kThreadedGroupsMax = 8;
Result<std::unique_ptr<RangeQueue>> MakeThreadedQueue(const RangeReader& reader);

}  // namespace ffrecord
