// Goal: the owners of stripes that a table keeps are those of the map that it is asked about.
// Method: every member of stripes of two sizes in some slots, by two maps in turn, against the
// map's own answer.

#include "server/cluster/stripe_table.h"

#include <gtest/gtest.h>

#include <string>

#include "server/cluster/placement.h"

namespace ffrecord::server::cluster {
namespace {

SlotMap MapOf(int count, const SlotMap& before) {
  std::vector<PlacedNode> nodes;
  for (int i = 1; i <= count; ++i)
    nodes.push_back({"n" + std::to_string(i), "d" + std::to_string(i), 1});
  return Place(before, std::move(nodes), {.row_size = 3}).value();
}

void ExpectAllOwners(const StripeTable& table, const SlotMap& map) {
  for (const std::uint32_t slot : {0U, 1U, 17U, kSlotCount - 1}) {
    for (const auto count : {std::uint8_t{3}, std::uint8_t{6}}) {
      StripePlace place{nullptr, 0, slot, count, 0};
      const auto owners = map.StripeOwners(slot, count);
      for (; place.member < count; ++place.member)
        EXPECT_EQ(table.OwnerOf(map, place), owners[place.member])
            << "slot " << slot << ", member " << int{place.member} << " of " << int{count};
    }
  }
}

TEST(StripeTableTest, OwnersAreThoseOfTheMapAndOfTheStripesSize) {
  const SlotMap six = MapOf(6, {});
  const SlotMap nine = MapOf(9, six);
  const StripeTable table;
  for (const SlotMap* const map : {&six, &nine, &six}) ExpectAllOwners(table, *map);
}

}  // namespace
}  // namespace ffrecord::server::cluster
