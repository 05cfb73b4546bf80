#pragma once

#include "libffrecord/format/slot_map.h"

namespace ffrecord::server::cluster {

// Evens the first places of the rows: names with fewer replicas than a row has nodes lie on these
// alone. A row that is filled up gets new nodes at its end, so without this a cluster that grew
// node by node would keep nearly everything on its first ones.
//
// For each number of replicas, those of a node, for its weight, are at most an eighth more than
// those of any other, as far as the rows allow; nothing moves that is so already. Rows keep their
// nodes. A pure function of integers, like Place, of which it is the last step.
void EvenOrder(SlotMap& map);

}  // namespace ffrecord::server::cluster
