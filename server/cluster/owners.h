#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/cluster/name_table.h"
#include "server/cluster/records.h"
#include "server/cluster/stripe_table.h"

namespace ffrecord::server::cluster {

// The nodes that are to hold an extent.
struct OwnerList {
  std::vector<std::string> nodes;  // Each once.
  // As many as are wanted, so that others need not hold it. False where the row of its slot is
  // short, or a stripe has more members than there are nodes.
  bool are_all = false;
};

// By one slot map: the first nodes of the row of the extent's slot, as many as it is to have
// replicas, and an owner for each of its stripes.
OwnerList OwnersOf(const SlotsRecord& slots, const StripeTable& stripes,
                   const NameTable::Wanted& wanted);
// Whether `node` is one of them.
bool IsOwner(const SlotsRecord& slots, const StripeTable& stripes, std::string_view node,
             const NameTable::Wanted& wanted);

// How many members of the stripe have an owner that is in `live`.
std::size_t LiveMembers(const SlotsRecord& slots, const StripeTable& stripes,
                        const StripePlace& place, const std::set<std::string>& live);

}  // namespace ffrecord::server::cluster
