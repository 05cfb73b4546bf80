#pragma once

#include <cstdint>
#include <vector>

#include <ffrecord/result.h>

#include "libffrecord/format/slot_map.h"

namespace ffrecord::server::cluster {

// Places every slot on `row_size` of `nodes`, each in another failure domain: evenly by weight,
// with the replicas of any node spread over all others, and moving as little of `previous` as that
// allows. A pure function of integers: the same arguments give the same rows everywhere, forever.
//
// `nodes` in any order, ids unique; those of weight 0 get no slots. The version is that of
// `previous` plus one. Fails with kInvalidArgument if there are fewer domains than row_size, unless
// `allow_short`: then rows are short; if a node breaks the rules of a slot map; or if it would be
// too large.
struct PlaceOptions {
  std::uint32_t row_size = 3;
  bool allow_short = false;
};
Result<SlotMap> Place(const SlotMap& previous, std::vector<PlacedNode> nodes,
                      const PlaceOptions& options);

// How many (slot, node) pairs of `after` are not in `before`: what has to be copied.
std::uint64_t CountMoves(const SlotMap& before, const SlotMap& after);

}  // namespace ffrecord::server::cluster
