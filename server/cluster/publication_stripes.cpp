// What a publication demands of the stripes of its manifest.

#include <map>
#include <string>
#include <utility>

#include "libffrecord/base/hex.h"
#include "server/cluster/publication.h"

namespace ffrecord::server::cluster {

// A publisher could otherwise give the stripe of another name other members, which it could not be
// computed from.
bool Publication::CheckWholeStripes(const View& view) {
  std::map<std::uint32_t, ExtentId> published, others;  // By stripe.
  for (const auto& [id, place] : places_)
    (view.names.Find(id) != nullptr ? published : others).emplace(place.stripe, id);
  for (const auto& [stripe, id] : others) {
    const auto found = published.find(stripe);
    if (found == published.end()) continue;
    Fail(ErrorCode::kConflict, request_.name + ": of one stripe extent " + Hex(found->second) +
                                   " is published and extent " + Hex(id) +
                                   " is not; upload all of it again");
    return false;
  }
  return true;
}

bool Publication::CheckStripes() {
  std::map<std::pair<std::uint32_t, std::string>, ExtentId> taken;  // By stripe and domain.
  std::map<std::uint32_t, std::size_t> counts;                      // Of members that are held.
  for (const auto& [id, place] : places_) {
    const auto& domains = sought_.at(id).domains;
    // What is published already lies as its name has it.
    if (domains.empty()) continue;
    ++counts[place.stripe];
    const auto [other, is_free] = taken.emplace(std::pair(place.stripe, *domains.begin()), id);
    if (is_free || IsRepaired()) continue;
    Fail(ErrorCode::kConflict, request_.name + ": extents " + Hex(other->second) + " and " +
                                   Hex(id) + " of one stripe are held in failure domain " +
                                   *domains.begin() + " alone; upload them again");
    return false;
  }
  if (!IsRepaired()) return true;
  for (const auto& [id, place] : places_) {
    if (counts[place.stripe] >= place.data_count()) continue;
    Fail(ErrorCode::kConflict, request_.name + ": of the stripe of extent " + Hex(id) + " " +
                                   std::to_string(counts[place.stripe]) + " members of " +
                                   std::to_string(place.data_count()) +
                                   " are held; start the nodes that have the others");
    return false;
  }
  return true;
}

}  // namespace ffrecord::server::cluster
