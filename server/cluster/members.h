#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "libffrecord/format/slot_map.h"
#include "server/cluster/records.h"
#include "server/cluster/view.h"

namespace ffrecord::server::cluster {

// All that have ever asked to join, by id. A record that cannot be read is left out.
std::map<std::string, MemberRecord> MembersOf(const View& view);

// The nodes that a slot map is to have: all that count, but for those that have never been up.
// Those that drain are without weight, and those that are down and lost: for so long, as
// `is_long_down` says, or since an earlier map.
std::vector<PlacedNode> PlaceableNodes(
    const View& view, const std::function<bool(const std::string& id)>& is_long_down);

}  // namespace ffrecord::server::cluster
