// Goal: extents hash to the slots that they always had, and a map that was damaged or forged is
// refused.
// Method: golden slots; every byte of an encoded map changed in turn; each rule broken under a
// checksum that holds.

#include "libffrecord/format/slot_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/endian.h"

namespace ffrecord {
namespace {

ExtentId Filled(int upload, int extent) {
  ExtentId id;
  std::ranges::fill(id, static_cast<std::byte>(upload));
  id[15] = static_cast<std::byte>(extent);
  for (int i = 12; i < 15; ++i) id[static_cast<std::size_t>(i)] = std::byte{0};
  return id;
}

SlotMap SmallMap() {
  SlotMap map;
  map.version = 7;
  map.row_size = 2;
  map.nodes = {{"a", "rack1", 1}, {"b", "rack2", 3}, {"c", "rack2", 2}, {"d", "rack3", 2}};
  map.rows.assign(std::size_t{kSlotCount} * 2, 0);
  for (std::size_t slot = 0; slot < kSlotCount; ++slot)
    map.rows[slot * 2 + 1] = slot == 5 ? SlotMap::kNoNode : 1;
  return map;
}

// With the checksum made good.
std::vector<std::byte> Resealed(std::vector<std::byte> bytes) {
  const std::size_t size = bytes.size() - 8;
  StoreLittleEndian(std::span(bytes), size, Xxh3(std::span(bytes).first(size)));
  return bytes;
}

TEST(SlotMapTest, ExtentsHaveTheSlotsOfTheGoldenVectors) {
  EXPECT_EQ(SlotOf(ExtentId{}), 0x968U);
  ExtentId counting;
  for (std::size_t i = 0; i < counting.size(); ++i) counting[i] = static_cast<std::byte>(i);
  EXPECT_EQ(SlotOf(counting), 0x0dbU);
  EXPECT_EQ(SlotOf(Filled(0x11, 0)), 0x1f8U);
  EXPECT_EQ(SlotOf(Filled(0x11, 1)), 0x4e0U);
}

TEST(SlotMapTest, AMapIsDecodedAsItWasEncoded) {
  const SlotMap map = SmallMap();
  const auto decoded = DecodeSlotMap(EncodeSlotMap(map));
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded.value(), map);
  EXPECT_EQ(map.NodesOf(4).size(), 2U);
  EXPECT_EQ(map.NodesOf(5).size(), 1U);

  const auto none = DecodeSlotMap(EncodeSlotMap(SlotMap{}));
  ASSERT_TRUE(none);
  EXPECT_TRUE(none.value().NodesOf(0).empty());
  EXPECT_TRUE(none.value().OrderOf(0).empty());
}

TEST(SlotMapTest, TheOrderBeginsWithTheRowThenWithOtherDomains) {
  const SlotMap map = SmallMap();
  EXPECT_EQ(map.OrderOf(4), (std::vector<std::uint16_t>{0, 1, 3, 2}));
  const auto order = map.OrderOf(5);
  ASSERT_EQ(order.size(), 4U);
  EXPECT_EQ(order.front(), 0);
  // Of b and c, which share a domain, the one with more affinity comes before the other.
  const bool is_b_first = SlotAffinity(5, "b") > SlotAffinity(5, "c");
  EXPECT_EQ(order.back(), is_b_first ? 2 : 1);
}

// Though the first node of each row is the same one.
TEST(SlotMapTest, FetchesAreSpreadOverAllNodesThatTakeExtents) {
  SlotMap map;
  map.row_size = 3;
  for (const char* const id : {"n1", "n2", "n3", "n4"}) map.nodes.push_back({id, id, 1});
  map.nodes[3].weight = 0;
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot)
    map.rows.insert(map.rows.end(), {0, 1, 2});

  std::array<std::uint32_t, 4> counts{};
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
    const auto order = map.FetchOrderOf(slot);
    ASSERT_EQ(std::set(order.begin(), order.end()).size(), 4U);
    EXPECT_EQ(order.back(), 3);
    ++counts[order.front()];
  }
  for (const std::size_t node : {0U, 1U, 2U})
    EXPECT_NEAR(counts[node], kSlotCount / 3, 150) << node;
}

TEST(SlotMapTest, NoChangedByteIsAccepted) {
  const auto bytes = EncodeSlotMap(SmallMap());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    auto changed = bytes;
    changed[i] ^= std::byte{0x10};
    ASSERT_FALSE(DecodeSlotMap(changed)) << "byte " << i;
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{15}, bytes.size() - 1})
    EXPECT_FALSE(DecodeSlotMap(std::span(bytes).first(size)));
}

TEST(SlotMapTest, BrokenRulesAreRefusedThoughTheChecksumHolds) {
  const auto refuses = [](const std::function<void(SlotMap&)>& change) {
    SlotMap map = SmallMap();
    change(map);
    const auto decoded = DecodeSlotMap(EncodeSlotMap(map));
    return !decoded && decoded.error().code == ErrorCode::kCorruption;
  };
  EXPECT_TRUE(refuses([](SlotMap& map) { map.rows[9] = 4; }));            // No such node.
  EXPECT_TRUE(refuses([](SlotMap& map) { map.rows[9] = map.rows[8]; }));  // Twice in a row.
  EXPECT_TRUE(refuses([](SlotMap& map) {
    map.rows[10] = 0xFFFF;
    map.rows[11] = 1;
  }));  // A gap.
  EXPECT_TRUE(refuses([](SlotMap& map) { std::swap(map.nodes[0], map.nodes[1]); }));
  EXPECT_TRUE(refuses([](SlotMap& map) { map.nodes[1].weight = 1'000'001; }));
  EXPECT_TRUE(refuses([](SlotMap& map) { map.nodes[1].id = "a/b"; }));
  EXPECT_TRUE(refuses([](SlotMap& map) { map.nodes[1].domain = ""; }));
  EXPECT_TRUE(refuses([](SlotMap& map) { map.rows.pop_back(); }));
  EXPECT_TRUE(refuses([](SlotMap& map) { map.row_size = 33; }));

  // A count of nodes that the bytes cannot hold allocates nothing.
  auto forged = EncodeSlotMap(SmallMap());
  StoreLittleEndian(std::span(forged), 16, std::uint32_t{0xFFFFFFFF});
  EXPECT_FALSE(DecodeSlotMap(Resealed(std::move(forged))));
}

}  // namespace
}  // namespace ffrecord
