// Goal: placement is the same function everywhere, spreads slots evenly, and moves no more than it
// must.
// Method: golden digests of rows, made once by another implementation of the same rules; random
// changes of random clusters, each checked for what the rules promise.

#include "server/cluster/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "libffrecord/base/checksum.h"
#include "libffrecord/base/cursor.h"
#include "seed.h"

namespace ffrecord::server::cluster {
namespace {

std::uint64_t DigestOf(const SlotMap& map) {
  ByteWriter writer;
  for (const std::uint16_t ordinal : map.rows) writer.Put(ordinal);
  return Xxh3(writer.bytes());
}

std::vector<PlacedNode> Nodes(int count) {
  std::vector<PlacedNode> nodes;
  for (int i = 1; i <= count; ++i)
    nodes.push_back({"n" + std::to_string(i), "d" + std::to_string(i), 1});
  return nodes;
}

SlotMap Placed(const SlotMap& previous, std::vector<PlacedNode> nodes, std::uint32_t row_size) {
  auto map = Place(previous, std::move(nodes), {.row_size = row_size});
  EXPECT_TRUE(map) << map.error().message;
  return std::move(map).value();
}

std::vector<std::string> RowOf(const SlotMap& map, std::uint32_t slot) {
  std::vector<std::string> ids;
  for (const std::uint16_t node : map.NodesOf(slot)) ids.push_back(map.nodes[node].id);
  return ids;
}

TEST(PlacementTest, RowsAreThoseOfTheGoldenVectors) {
  const SlotMap five = Placed({}, Nodes(5), 3);
  EXPECT_EQ(RowOf(five, 0), (std::vector<std::string>{"n2", "n5", "n4"}));
  EXPECT_EQ(RowOf(five, 1), (std::vector<std::string>{"n3", "n1", "n4"}));
  EXPECT_EQ(RowOf(five, 2), (std::vector<std::string>{"n2", "n3", "n1"}));
  EXPECT_EQ(DigestOf(five), 0xe875f476951b3819);

  auto without = Nodes(5);
  without.erase(without.begin() + 2);
  const SlotMap four = Placed(five, without, 3);
  EXPECT_EQ(DigestOf(four), 0x01ba3659feb53c13);
  EXPECT_EQ(CountMoves(five, four), 2457U);

  const SlotMap six = Placed(five, Nodes(6), 3);
  EXPECT_EQ(DigestOf(six), 0x5a7214447e72e1b0);
  EXPECT_EQ(CountMoves(five, six), 2048U);

  const SlotMap racks = Placed({},
                               {{"n1", "r1", 4},
                                {"n2", "r1", 4},
                                {"n3", "r2", 4},
                                {"n4", "r2", 4},
                                {"n5", "r3", 8},
                                {"n6", "r3", 8}},
                               2);
  EXPECT_EQ(DigestOf(racks), 0x762c5f13d8ddbd4e);

  SlotMap grown;
  for (const int count : {1, 2, 3, 4, 5})
    grown = Place(grown, Nodes(count), {.row_size = 3, .allow_short = true}).value();
  EXPECT_EQ(DigestOf(grown), 0x94f0eee542c58f8b);
}

// What the rules promise of any map, apart from evenness.
void CheckRules(const SlotMap& map) {
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
    std::set<std::string> domains;
    for (const std::uint16_t node : map.NodesOf(slot)) domains.insert(map.nodes[node].domain);
    ASSERT_EQ(domains.size(), map.row_size) << "slot " << slot;
  }
}

std::map<std::string, std::uint64_t> LoadsOf(const SlotMap& map) {
  std::map<std::string, std::uint64_t> loads;
  for (const PlacedNode& node : map.nodes) loads[node.id] = 0;
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot)
    for (const std::uint16_t node : map.NodesOf(slot)) ++loads[map.nodes[node].id];
  return loads;
}

TEST(PlacementTest, OnlyTheSlotsOfALostNodeMoveAndOnlyItsShareOfThemToANewOne) {
  std::mt19937 random(test::Seed());
  for (int round = 0; round < 10; ++round) {
    const int count = std::uniform_int_distribution(5, 24)(random);
    const SlotMap before = Placed({}, Nodes(count), 3);
    CheckRules(before);

    auto fewer = Nodes(count);
    const auto lost = fewer.begin() + std::uniform_int_distribution(0, count - 1)(random);
    const std::uint64_t held = LoadsOf(before)[lost->id];
    fewer.erase(lost);
    const SlotMap after = Placed(before, fewer, 3);
    CheckRules(after);
    // A few more may even out what filling left uneven.
    EXPECT_GE(CountMoves(before, after), held);
    EXPECT_LE(CountMoves(before, after), held + static_cast<std::uint64_t>(count));

    const SlotMap more = Placed(before, Nodes(count + 1), 3);
    CheckRules(more);
    const std::uint64_t share = 3 * kSlotCount / static_cast<std::uint64_t>(count + 1);
    EXPECT_LE(CountMoves(before, more), share + 1);
    for (const auto& [id, load] : LoadsOf(more)) {
      EXPECT_GE(load, share) << id;
      EXPECT_LE(load, share + 1) << id;
    }
  }
}

TEST(PlacementTest, TheOrderOfNodesGivenDoesNotMatterAndNothingMovesTwice) {
  std::mt19937 random(test::Seed());
  auto nodes = Nodes(9);
  const SlotMap map = Placed({}, nodes, 3);
  std::ranges::shuffle(nodes, random);
  EXPECT_EQ(Placed({}, nodes, 3).rows, map.rows);

  const SlotMap again = Placed(map, nodes, 3);
  EXPECT_EQ(again.rows, map.rows);
  EXPECT_EQ(again.version, map.version + 1);
}

// Of names with so many replicas, by node.
std::map<std::string, std::uint64_t> LoadsOf(const SlotMap& map, std::size_t replicas) {
  std::map<std::string, std::uint64_t> loads;
  for (const PlacedNode& node : map.nodes) loads[node.id] = 0;
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot)
    for (const std::uint16_t node : map.NodesOf(slot).first(replicas)) ++loads[map.nodes[node].id];
  return loads;
}

TEST(PlacementTest, NodesThatJoinOneByOneGetTheirShareOfNamesWithFewReplicas) {
  SlotMap map;
  for (const int count : {1, 2, 3, 4, 5, 6, 7, 6, 5, 4, 3, 4, 5}) {
    map = Place(map, Nodes(count), {.row_size = 3, .allow_short = true}).value();
    for (const std::size_t replicas : {1U, 2U}) {
      if (replicas > map.NodesOf(0).size()) continue;
      std::vector<std::uint64_t> loads;
      for (const auto& [id, load] : LoadsOf(map, replicas)) loads.push_back(load);
      const auto [least, most] = std::ranges::minmax(loads);
      EXPECT_LE(most * 8, (least + 1) * 9) << replicas << " replicas on " << count << " nodes";
    }
  }
  const SlotMap again = Placed(map, Nodes(5), 3);
  EXPECT_EQ(again.rows, map.rows);
}

TEST(PlacementTest, ANodeOfTwiceTheWeightHasTwiceAsManyFirstReplicas) {
  SlotMap map = Placed({}, {{"n1", "d1", 1}, {"n2", "d2", 1}, {"n3", "d3", 1}}, 3);
  map = Placed(map, {{"n1", "d1", 1}, {"n2", "d2", 1}, {"n3", "d3", 1}, {"n4", "d4", 2}}, 3);
  const auto loads = LoadsOf(map, 1);
  for (const char* const light : {"n1", "n2", "n3"}) {
    EXPECT_LE(loads.at(light) * 2 * 8, (loads.at("n4") + 2) * 9) << light;
    EXPECT_LE(loads.at("n4") * 8, (loads.at(light) + 1) * 2 * 9) << light;
  }
}

TEST(PlacementTest, WeightsAreFollowedAsFarAsDomainsAllow) {
  std::vector<PlacedNode> nodes;
  for (int i = 0; i < 12; ++i)
    nodes.push_back({"node" + std::to_string(i), "rack" + std::to_string(i / 2),
                     static_cast<std::uint32_t>(1 + i % 3)});
  auto loads = LoadsOf(Placed({}, nodes, 2));
  for (const PlacedNode& node : nodes) {
    const double fair = 2.0 * kSlotCount * node.weight / 24;
    EXPECT_NEAR(static_cast<double>(loads[node.id]), fair, fair * 0.02) << node.id;
  }
}

TEST(PlacementTest, ANodeWithoutWeightIsListedAndHasNoSlots) {
  auto nodes = Nodes(5);
  const SlotMap before = Placed({}, nodes, 3);
  nodes[1].weight = 0;
  const SlotMap after = Placed(before, nodes, 3);
  EXPECT_NE(after.Find("n2"), SlotMap::kNoNode);
  EXPECT_EQ(LoadsOf(after)["n2"], 0U);
  nodes.erase(nodes.begin() + 1);
  const SlotMap without = Placed(before, nodes, 3);
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot)
    ASSERT_EQ(RowOf(after, slot), RowOf(without, slot));
  // It is a candidate, the last of all.
  EXPECT_EQ(after.OrderOf(7).size(), 5U);

  for (PlacedNode& node : nodes) node.weight = 0;
  const auto none = Place({}, nodes, {.row_size = 3, .allow_short = true});
  ASSERT_TRUE(none);
  EXPECT_TRUE(none.value().NodesOf(0).empty());
}

TEST(PlacementTest, TooFewDomainsAreRefusedUnlessForced) {
  const auto refused = Place({}, Nodes(2), {.row_size = 3});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(refused.error().message.find("2 failure domains"), std::string::npos);

  const auto forced = Place({}, Nodes(2), {.row_size = 3, .allow_short = true});
  ASSERT_TRUE(forced);
  EXPECT_EQ(forced.value().NodesOf(17).size(), 2U);
  const auto empty = Place({}, {}, {.row_size = 3, .allow_short = true});
  ASSERT_TRUE(empty);
  EXPECT_TRUE(empty.value().NodesOf(0).empty());

  auto twice = Nodes(3);
  twice[1] = twice[0];
  EXPECT_FALSE(Place({}, twice, {}));
  auto heavy = Nodes(3);
  heavy[2].weight = PlacedNode::kWeightMax + 1;
  EXPECT_FALSE(Place({}, heavy, {}));
  auto nameless = Nodes(3);
  nameless[0].id = "no spaces";
  EXPECT_FALSE(Place({}, nameless, {}));
  EXPECT_FALSE(Place({}, Nodes(40), {.row_size = 33}));
}

TEST(PlacementTest, ALostNodeOfManyIsMadeUpForByAllOthers) {
  const SlotMap before = Placed({}, Nodes(200), 3);
  auto nodes = Nodes(200);
  nodes.erase(nodes.begin() + 77);
  const SlotMap after = Placed(before, nodes, 3);
  std::map<std::string, int> gained;
  for (std::uint32_t slot = 0; slot < kSlotCount; ++slot) {
    const auto old = RowOf(before, slot);
    for (const std::string& id : RowOf(after, slot))
      if (std::ranges::find(old, id) == old.end()) ++gained[id];
  }
  for (const auto& [id, count] : gained) EXPECT_LE(count, 2) << id;
}

}  // namespace
}  // namespace ffrecord::server::cluster
