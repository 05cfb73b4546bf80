#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "libffrecord/format/slot_map.h"
#include "libffrecord/format/stripes.h"

namespace ffrecord::server::cluster {

// An extent's place in a stripe of a manifest.
struct StripePlace {
  std::shared_ptr<const DatasetManifest> manifest;
  std::uint32_t stripe = 0;
  std::uint32_t slot = 0;  // Slot of the stripe, which has so many members.
  std::uint8_t member_count = 0;
  std::uint8_t member = 0;

  std::size_t data_count() const { return member_count - std::size_t{manifest->code.parity}; }
  // Whether two manifests say the same about an extent. Stripes with the same first parity extent
  // are the same ones: publications see to that.
  bool IsLike(const StripePlace& other) const {
    return first_parity() == other.first_parity() && member_count == other.member_count &&
           member == other.member;
  }
  const ExtentId& first_parity() const {
    return manifest->parity[std::size_t{stripe} * manifest->code.parity].id;
  }
};

// Calls `visit` with each member of the stripes of a manifest, and its place there.
template <class Visit>
void ForEachMember(const std::shared_ptr<const DatasetManifest>& manifest, const Visit& visit) {
  StripePlace place{manifest};
  for (const Stripe& stripe : StripesOf(*manifest)) {
    place.slot = stripe.slot();
    place.member_count = static_cast<std::uint8_t>(stripe.members.size());
    for (place.member = 0; place.member < place.member_count; ++place.member)
      visit(stripe.members[place.member], place);
    ++place.stripe;
  }
}

// The owners of stripes by the newest slot map, kept: SlotMap::StripeOwners sorts all nodes.
// For one thread.
class StripeTable {
 public:
  // Ordinal of the node that is to hold this member, or SlotMap::kNoNode.
  std::uint16_t OwnerOf(const SlotMap& map, const StripePlace& place) const {
    if (map.version != version_) owners_.clear();
    version_ = map.version;
    auto& owners = owners_[place.slot * kMembersMax + place.member_count];
    if (owners.empty()) owners = map.StripeOwners(place.slot, place.member_count);
    return owners[place.member];
  }

 private:
  static constexpr std::uint32_t kMembersMax = ErasureCode::kDataMax + ErasureCode::kParityMax + 1;

  mutable std::uint32_t version_ = 0;
  mutable std::unordered_map<std::uint32_t, std::vector<std::uint16_t>> owners_;
};

}  // namespace ffrecord::server::cluster
