// Goal: the stripes of a manifest are those of its extents in order, and lie on the nodes on which
// they have always lain; when nodes change, little moves.
// Method: small manifests; golden owners; maps with nodes added and taken away.

#include "libffrecord/format/stripes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "libffrecord/base/checksum.h"
#include "libffrecord/format/slot_map.h"

namespace ffrecord {
namespace {

ManifestExtent Extent(std::uint32_t file, std::uint32_t number, std::uint64_t size_bytes) {
  return {MakeExtentId(7, file, number), size_bytes, number};
}

// Files of 3, 0, 1 and 3 extents.
DatasetManifest Manifest(ErasureCode code) {
  DatasetManifest manifest;
  for (const std::uint32_t count : {3U, 0U, 1U, 3U}) {
    const auto file = static_cast<std::uint32_t>(manifest.files.size());
    ManifestFile& entry = manifest.files.emplace_back();
    entry.name = std::to_string(file);
    for (std::uint32_t i = 0; i < count; ++i) {
      entry.extents.push_back(Extent(file, i, i + 1 == count ? 9 + file : kExtentSizeMax));
      entry.size_bytes += entry.extents.back().size_bytes;
    }
  }
  manifest.code = code;
  const std::size_t stripe_count = (7U + code.data - 1) / code.data;
  for (std::uint32_t i = 0; i < stripe_count * code.parity; ++i)
    manifest.parity.push_back(Extent(100, i, kExtentSizeMax));
  return manifest;
}

std::vector<ExtentId> IdsOf(const Stripe& stripe) {
  std::vector<ExtentId> ids;
  for (const ManifestExtent& member : stripe.members) ids.push_back(member.id);
  return ids;
}

// Of nodes n0, n1, ..., each in a domain of its own; rows of three.
SlotMap Map(const std::vector<int>& numbers) {
  SlotMap map;
  map.version = 1;
  map.row_size = 3;
  for (const int number : numbers)
    map.nodes.push_back({"n" + std::to_string(number), "d" + std::to_string(number), 1});
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
    const auto order = map.FetchOrderOf(slot);
    map.rows.insert(map.rows.end(), order.begin(), order.begin() + 3);
  }
  return map;
}

std::vector<std::string> OwnersOf(const SlotMap& map, std::uint32_t slot, std::size_t count) {
  std::vector<std::string> ids;
  for (const std::uint16_t node : map.StripeOwners(slot, count))
    ids.push_back(node == SlotMap::kNoNode ? "" : map.nodes[node].id);
  return ids;
}

TEST(StripesTest, TheyFollowTheExtentsOverTheEndsOfFiles) {
  const DatasetManifest manifest = Manifest({3, 2});
  const auto stripes = StripesOf(manifest);
  ASSERT_EQ(stripes.size(), 3U);
  EXPECT_EQ(StripeCountOf(manifest), 3U);
  const auto id = [](std::uint32_t file, std::uint32_t number) {
    return MakeExtentId(7, file, number);
  };
  EXPECT_EQ(IdsOf(stripes[0]), (std::vector{id(0, 0), id(0, 1), id(0, 2), id(100, 0), id(100, 1)}));
  EXPECT_EQ(IdsOf(stripes[1]), (std::vector{id(2, 0), id(3, 0), id(3, 1), id(100, 2), id(100, 3)}));
  EXPECT_EQ(IdsOf(stripes[2]), (std::vector{id(3, 2), id(100, 4), id(100, 5)}));
  EXPECT_EQ(stripes[1].data_count, 3U);
  EXPECT_EQ(stripes[2].data_count, 1U);
  EXPECT_EQ(stripes[1].slot(), SlotOf(id(100, 2)));
  EXPECT_EQ(stripes[1].size_bytes(), kExtentSizeMax);
  for (std::size_t i = 0; i < stripes.size(); ++i)
    EXPECT_EQ(IdsOf(StripeOf(manifest, i)), IdsOf(stripes[i]));
}

TEST(StripesTest, OneMayHoldEverythingAndNoCodeHasNone) {
  const auto stripes = StripesOf(Manifest({16, 1}));
  ASSERT_EQ(stripes.size(), 1U);
  EXPECT_EQ(stripes[0].data_count, 7U);
  DatasetManifest plain = Manifest({3, 1});
  plain.code = {};
  plain.parity.clear();
  EXPECT_TRUE(StripesOf(plain).empty());
  DatasetManifest empty;
  empty.code = {4, 2};
  EXPECT_TRUE(StripesOf(empty).empty());
}

// Whoever has other owners looks for extents in the wrong place.
TEST(StripeOwnersTest, TheyAreThoseOfTheGoldenVectors) {
  const SlotMap map = Map({0, 1, 2, 3, 4, 5, 6, 7});
  std::string all;
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot)
    for (const std::string& owner : OwnersOf(map, slot, 6)) all += owner;
  EXPECT_EQ(OwnersOf(map, 0, 6), (std::vector<std::string>{"n4", "n0", "n7", "n5", "n6", "n2"}));
  EXPECT_EQ(Xxh3(std::as_bytes(std::span(all))), 14699905117543108468U);
}

TEST(StripeOwnersTest, EachMemberHasANodeOfItsOwnAndAllNodesHaveAboutAsMany) {
  const SlotMap map = Map({0, 1, 2, 3, 4, 5, 6, 7});
  std::vector<std::vector<int>> counts(8, std::vector<int>(6, 0));
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
    const auto owners = map.StripeOwners(slot, 6);
    EXPECT_EQ(std::set(owners.begin(), owners.end()).size(), 6U);
    for (std::size_t member = 0; member < 6; ++member) ++counts[owners[member]][member];
  }
  // 512 is the mean; data and parity alike.
  for (const auto& node : counts)
    for (const int count : node) EXPECT_NEAR(count, 512, 90);
}

TEST(StripeOwnersTest, WhereANodeIsLostFewOthersMove) {
  const SlotMap before = Map({0, 1, 2, 3, 4, 5, 6, 7});
  const SlotMap after = Map({0, 1, 2, 3, 4, 6, 7});
  int lost = 0, moved = 0;
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
    const auto old = OwnersOf(before, slot, 6), now = OwnersOf(after, slot, 6);
    for (std::size_t member = 0; member < 6; ++member) {
      if (old[member] == "n5")
        ++lost;
      else if (old[member] != now[member])
        ++moved;
    }
  }
  EXPECT_NEAR(lost, 4096 * 6 / 8, 200);
  EXPECT_LT(moved, lost * 3 / 2);
}

TEST(StripeOwnersTest, TheLastMembersHaveNoOwnerWhereThereAreTooFewNodes) {
  SlotMap map = Map({0, 1, 2, 3, 4});
  map.nodes[1].weight = 0;
  for (const std::uint32_t slot : {0U, 1U, 4095U}) {
    const auto owners = map.StripeOwners(slot, 6);
    EXPECT_EQ(std::set(owners.begin(), owners.begin() + 4).size(), 4U);
    EXPECT_EQ(std::ranges::count(owners, std::uint16_t{1}), 0);
    EXPECT_EQ(owners[4], SlotMap::kNoNode);
    EXPECT_EQ(owners[5], SlotMap::kNoNode);
  }
  EXPECT_EQ(SlotMap{}.StripeOwners(0, 2), (std::vector(2, SlotMap::kNoNode)));
}

TEST(StripeOwnersTest, DomainsAreUsedBeforeOneIsUsedTwice) {
  SlotMap map = Map({0, 1, 2, 3, 4, 5, 6, 7});
  for (std::size_t i = 0; i < 8; ++i) map.nodes[i].domain = "d" + std::to_string(i / 2);
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
    std::uint32_t at = slot * 3;
    const auto order = map.FetchOrderOf(slot);
    std::set<std::string> used;
    for (const std::uint16_t node : order)
      if (at < slot * 3 + 3 && used.insert(map.nodes[node].domain).second) map.rows[at++] = node;
  }
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
    std::set<std::string> domains;
    for (const std::uint16_t node : map.StripeOwners(slot, 4))
      domains.insert(map.nodes[node].domain);
    ASSERT_EQ(domains.size(), 4U) << slot;
  }
}

}  // namespace
}  // namespace ffrecord
