// Goal: a node holds, pulls, computes and drops members of stripes as the names and the slot map
// want them.
// Method: one node whose peers and store are in the test's hands.

#include <gtest/gtest.h>

#include "one_node.h"
#include "server/cluster/move_plan.h"
#include "stripes.h"

namespace ffrecord::server::cluster {
namespace {

using namespace std::chrono_literals;
using test::OneNode;

constexpr ErasureCode kCode{2, 1};
constexpr std::size_t kNone = 99;  // Of the members.

class ClusterStripesTest : public testing::Test {
 protected:
  // A stripe of which n1 is to hold that member.
  Stripe Publish(const std::string& name, std::uint64_t upload, std::size_t member,
                 ErasureCode code = kCode) {
    const auto manifest = test::OneStripe(one_.slots.map, "n1", upload, code, member);
    PublishManifest(name, manifest, upload + 1'000);
    return StripeOf(manifest, 0);
  }
  void PublishManifest(const std::string& name, const DatasetManifest& manifest,
                       std::uint64_t attempt) {
    one_.PublishBody(name, EncodeDatasetManifest(manifest).value(), 2, attempt);
    one_.Run(100ms);
  }
  void Hold(const ManifestExtent& extent) { one_.extents.extents[extent.id] = extent; }
  const NameTable::Wanted* Wanted(const ManifestExtent& extent) const {
    return one_.node->view().names.Find(extent.id);
  }
  // What the node asks to have pulled, if others hold what `holds` names.
  std::vector<PullExtent> Pulls(const std::set<ExtentId>& held) {
    for (int round = 0; round < 4 && one_.Asked<PullExtent>().empty(); ++round) {
      one_.Run(1s);
      one_.Answer<AskHoldings>([&](const AskHoldings& question) {
        Holdings holdings;
        for (const ManifestExtent& extent : question.extents)
          holdings.push_back(held.contains(extent.id) ? Holding::kHeld : Holding::kAbsent);
        return Result<Holdings>(holdings);
      });
    }
    return one_.Asked<PullExtent>();
  }
  void FailPulls(ErrorCode code) {
    one_.Answer<PullExtent>([&](const PullExtent&) { return Result<void>(Error{code, "why"}); });
  }
  // Of the surplus extent: those that have been asked for promises, each of which `promises`.
  std::set<std::string> AskedToPromise(const ManifestExtent& extent,
                                       const std::set<std::string>& promising) {
    std::set<std::string> nodes;
    for (int round = 0; round < 4; ++round) {
      one_.Run(1s);
      one_.Answer<AskHoldings>([&](const AskHoldings& question) {
        if (question.extents == std::vector{extent} && question.promise_version != 0)
          nodes.insert(question.node);
        return Result<Holdings>(Holdings(question.extents.size(), promising.contains(question.node)
                                                                      ? Holding::kPromised
                                                                      : Holding::kHeld));
      });
    }
    return nodes;
  }
  std::string OwnerOf(const Stripe& stripe, std::size_t member) const {
    const auto owners = one_.slots.map.StripeOwners(stripe.slot(), stripe.members.size());
    return one_.slots.map.nodes[owners[member]].id;
  }

  OneNode one_;
};

// --- What is wanted -----------------------------------------------------------------------------

TEST_F(ClusterStripesTest, MembersHaveOneOwnerEachAndTheListOfFilesHasReplicas) {
  const Stripe stripe = Publish("set", 21, 1);
  const View& view = one_.node->view();
  std::set<std::string> owners;
  for (std::size_t member = 0; member < stripe.members.size(); ++member) {
    const NameTable::Wanted* const wanted = Wanted(stripe.members[member]);
    ASSERT_NE(wanted, nullptr);
    EXPECT_EQ(wanted->replicas, 0);
    const OwnerList list = view.OwnersOf(*wanted);
    EXPECT_EQ(list.nodes, std::vector{OwnerOf(stripe, member)});
    EXPECT_TRUE(list.are_all);
    EXPECT_EQ(view.IsOwner(*wanted), member == 1);
    owners.insert(list.nodes.begin(), list.nodes.end());
  }
  EXPECT_EQ(owners.size(), 3U);

  const NameTable::Name& name = *view.names.Find("set");
  EXPECT_EQ(view.OwnersOf(*view.names.Find(name.record.body.front().id)).nodes.size(), 2U);
}

TEST_F(ClusterStripesTest, TwoNamesOfOneStripeWantItOnceUntilTheLastIsGone) {
  const auto manifest = test::OneStripe(one_.slots.map, "n1", 21, kCode, 0);
  const ManifestExtent& own = manifest.files[0].extents[0];
  PublishManifest("one", manifest, 31);
  PublishManifest("two", manifest, 32);
  ASSERT_EQ(Wanted(own)->stripes.size(), 1U);
  EXPECT_EQ(Wanted(own)->name_count, 2U);

  one_.Delete("datasets/one");
  one_.Run(1ms);
  ASSERT_EQ(Wanted(own)->stripes.size(), 1U);
  EXPECT_EQ(Wanted(own)->name_count, 1U);
  EXPECT_TRUE(one_.node->view().IsOwner(*Wanted(own)));

  one_.Delete("datasets/two");
  one_.Run(1ms);
  EXPECT_EQ(Wanted(own), nullptr);
}

// As a cluster that was put together out of backups may have it.
TEST_F(ClusterStripesTest, ANameWithReplicasAndOneWithACodeOfTheSameExtentBothHaveTheirs) {
  const auto manifest = test::OneStripe(one_.slots.map, "n1", 21, kCode, kNone);
  const ManifestExtent& shared = manifest.files[0].extents[0];
  PublishManifest("coded", manifest, 31);
  one_.Publish("plain", {shared}, 2, 32);
  one_.Run(100ms);
  const View& view = one_.node->view();

  auto wished = one_.slots.OwnersOf(shared.id, 2);
  if (const auto owner = OwnerOf(StripeOf(manifest, 0), 0);
      std::ranges::find(wished, owner) == wished.end())
    wished.push_back(owner);
  EXPECT_EQ(view.OwnersOf(*Wanted(shared)).nodes, wished);

  one_.Delete("datasets/coded");
  one_.Run(1ms);
  EXPECT_TRUE(Wanted(shared)->stripes.empty());
  EXPECT_EQ(Wanted(shared)->replicas, 2);
  EXPECT_EQ(Wanted(manifest.parity[0]), nullptr);
  PublishManifest("coded", manifest, 33);
  one_.Delete("datasets/plain");
  one_.Run(1ms);
  EXPECT_EQ(Wanted(shared)->replicas, 0);
  EXPECT_EQ(Wanted(shared)->stripes.size(), 1U);
}

TEST_F(ClusterStripesTest, AStripeLargerThanTheClusterHasMembersWithoutOwners) {
  const auto manifest = test::StripedManifest(21, 3, {3, 2});  // Five members, four nodes.
  PublishManifest("set", manifest, 31);
  std::size_t short_count = 0;
  for (const ManifestExtent& member : StripeOf(manifest, 0).members) {
    const OwnerList owners = one_.node->view().OwnersOf(*Wanted(member));
    EXPECT_EQ(owners.are_all, owners.nodes.size() == 1);
    short_count += owners.are_all ? 0 : 1;
  }
  EXPECT_EQ(short_count, 1U);
}

TEST_F(ClusterStripesTest, OwnersFollowANewSlotMap) {
  const Stripe stripe = Publish("set", 21, 0);
  auto& map = one_.slots.map;
  std::erase_if(map.nodes, [](const PlacedNode& node) { return node.id == "n1"; });
  map = Place({}, map.nodes, {.row_size = 3}).value();
  map.version += 10;
  one_.Put(std::string(kSlotsKey), one_.slots.Encode());
  one_.Run(1ms);

  const View& view = one_.node->view();
  EXPECT_EQ(view.OwnersOf(*Wanted(stripe.members[0])).nodes, std::vector{OwnerOf(stripe, 0)});
  EXPECT_FALSE(view.IsOwner(*Wanted(stripe.members[0])));
}

TEST_F(ClusterStripesTest, AStripeIsInReachWhileEnoughOfItsOwnersAreUp) {
  const Stripe stripe = Publish("set", 21, kNone, {2, 1});
  const View& view = one_.node->view();
  EXPECT_TRUE(view.IsInReach(*Wanted(stripe.members[0])));
  one_.Delete("nodes/" + OwnerOf(stripe, 0));
  one_.Run(1ms);
  EXPECT_TRUE(view.IsInReach(*Wanted(stripe.members[0])));
  one_.Delete("nodes/" + OwnerOf(stripe, 1));
  one_.Run(1ms);
  EXPECT_FALSE(view.IsInReach(*Wanted(stripe.members[0])));
  EXPECT_TRUE(view.IsInReach(*Wanted(stripe.members[2])));
}

// --- Repair -------------------------------------------------------------------------------------

TEST_F(ClusterStripesTest, AMemberThatANodeHasIsPulledAndNotComputed) {
  const Stripe stripe = Publish("set", 21, 1);
  const auto pulls = Pulls({stripe.members[1].id});
  ASSERT_EQ(pulls.size(), 1U);
  EXPECT_EQ(pulls[0].extent, stripe.members[1]);
  EXPECT_FALSE(pulls[0].nodes.empty());
  EXPECT_FALSE(pulls[0].part);
}

TEST_F(ClusterStripesTest, AMemberThatNoNodeHasIsComputedFromItsStripe) {
  const auto manifest = test::OneStripe(one_.slots.map, "n1", 21, kCode, 2);
  PublishManifest("set", manifest, 31);
  const Stripe stripe = StripeOf(manifest, 0);
  const auto pulls = Pulls({});
  ASSERT_EQ(pulls.size(), 1U);
  EXPECT_EQ(pulls[0].extent, stripe.members[2]);
  EXPECT_TRUE(pulls[0].nodes.empty());
  ASSERT_TRUE(pulls[0].part);
  EXPECT_EQ(pulls[0].part->code, kCode);
  EXPECT_EQ(pulls[0].part->stripe.members, stripe.members);
  EXPECT_EQ(pulls[0].part->member, 2U);
}

TEST_F(ClusterStripesTest, WhereTheOthersAreLostTooItCountsAsLostUntilItIsHere) {
  const Stripe stripe = Publish("set", 21, 0);
  const auto& lost = one_.node->replication().unheld();
  ASSERT_EQ(Pulls({}).size(), 1U);
  EXPECT_TRUE(lost.empty());  // It may be had yet.
  FailPulls(ErrorCode::kNotFound);
  EXPECT_EQ(lost, std::set{stripe.members[0].id});

  Hold(stripe.members[0]);
  one_.Run(2s);
  EXPECT_TRUE(lost.empty());
}

TEST_F(ClusterStripesTest, ParityThatFitsNothingMakesItLostAndSilenceDoesNot) {
  const Stripe stripe = Publish("set", 21, 0);
  const auto& lost = one_.node->replication().unheld();
  ASSERT_EQ(Pulls({}).size(), 1U);
  FailPulls(ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(lost.empty());
  ASSERT_EQ(Pulls({}).size(), 1U);
  FailPulls(ErrorCode::kCorruption);
  EXPECT_EQ(lost, std::set{stripe.members[0].id});
}

TEST_F(ClusterStripesTest, ItIsFilledByItsOwnMembersAlone) {
  const Stripe stripe = Publish("set", 21, 1);
  const AskFilled question{"n1", one_.slots.map.version};
  EXPECT_FALSE(one_.node->OnAsk(one_.now, question).front());
  Hold(stripe.members[0]);
  EXPECT_FALSE(one_.node->OnAsk(one_.now, question).front());
  Hold(stripe.members[1]);
  EXPECT_TRUE(one_.node->OnAsk(one_.now, question).front());
}

// What is pulled first, while others hold what `held` names. All that is asked for is answered.
class ClusterStripeOrderTest : public ClusterStripesTest {
 protected:
  static constexpr ErasureCode kWide{2, 2};  // On all four nodes.

  // Six stripes of which n1 lacks a member each, in the order in which it would be taken by ids.
  ClusterStripeOrderTest() {
    for (std::uint64_t upload = 21; upload < 27; ++upload)
      stripes_.push_back(Publish("set" + std::to_string(upload), upload, 0, kWide));
    std::ranges::sort(stripes_, {}, [](const Stripe& one) { return one.members[0].id; });
    Settle();
  }
  // What was begun before all was published comes to nothing.
  void Settle() {
    for (int round = 0; round < 4; ++round) {
      one_.AnswerHoldings(Holding::kAbsent);
      FailPulls(ErrorCode::kUnavailable);
    }
  }
  // Of each stripe so many members but that of n1.
  std::set<ExtentId> Held(const std::vector<std::size_t>& counts) const {
    std::set<ExtentId> held;
    for (std::size_t i = 0; i < counts.size(); ++i)
      for (std::size_t member = 1; member <= counts[i]; ++member)
        held.insert(stripes_[i].members[member].id);
    return held;
  }
  // The order in which they are pulled, one after another.
  std::vector<ExtentId> Order(const std::set<ExtentId>& held) {
    std::vector<ExtentId> order;
    for (int round = 0; round < 40; ++round) {
      for (const PullExtent& pull : Pulls(held)) order.push_back(pull.extent.id);
      one_.Answer<PullExtent>([&](const PullExtent& pull) {
        Hold(pull.extent);
        return Result<void>();
      });
    }
    return order;
  }
  std::size_t At(const std::vector<ExtentId>& order, const ManifestExtent& extent) const {
    return static_cast<std::size_t>(std::ranges::find(order, extent.id) - order.begin());
  }

  std::vector<Stripe> stripes_;
};

TEST_F(ClusterStripeOrderTest, AStripeThatCanLoseNothingMoreIsComputedFirst) {
  const auto order = Order(Held({3, 3, 3, 3, 3, 2}));
  ASSERT_EQ(order.size(), 6U);
  EXPECT_EQ(order.front(), stripes_[5].members[0].id);
}

TEST_F(ClusterStripeOrderTest, WhatSeemsToBeLostHoldsUpNothing) {
  const auto order = Order(Held({1, 0, 1, 3, 2, 3}));
  ASSERT_EQ(order.size(), 6U);
  EXPECT_EQ(order[0], stripes_[4].members[0].id);
  for (const std::size_t lost : {0U, 1U, 2U}) EXPECT_GE(At(order, stripes_[lost].members[0]), 3U);
}

TEST_F(ClusterStripeOrderTest, TheLastReplicaOfAnExtentCountsAsAStripeThatCanLoseNothing) {
  const auto last = one_.ExtentOf(true, 31), other = one_.ExtentOf(true, 32);
  one_.Publish("plain", {last}, 2, 41);
  one_.Publish("other", {other}, 3, 42);
  one_.Run(100ms);
  Settle();
  const std::string holder = one_.slots.OwnersOf(last.id, 2)[0] == "n1"
                                 ? one_.slots.OwnersOf(last.id, 2)[1]
                                 : one_.slots.OwnersOf(last.id, 2)[0];
  const auto held = Held({3, 3, 3, 3, 3, 2});
  for (int round = 0; round < 4 && one_.Asked<PullExtent>().empty(); ++round) {
    one_.Run(1s);
    one_.Answer<AskHoldings>([&](const AskHoldings& question) {
      Holdings holdings;
      for (const ManifestExtent& extent : question.extents) {
        const bool has = held.contains(extent.id) || extent == other ||
                         (extent == last && question.node == holder);
        holdings.push_back(has ? Holding::kHeld : Holding::kAbsent);
      }
      return Result<Holdings>(holdings);
    });
  }
  const auto pulls = one_.Asked<PullExtent>();
  ASSERT_EQ(pulls.size(), 4U);
  const std::set<ExtentId> first{pulls[0].extent.id, pulls[1].extent.id};
  EXPECT_EQ(first, (std::set{last.id, stripes_[5].members[0].id}));
}

TEST_F(ClusterStripeOrderTest, AMemberThatIsOnlyToMoveComesAfterThoseThatAreLost) {
  auto held = Held({3, 3, 3, 3, 3, 3});
  held.insert(stripes_[0].members[0].id);
  const auto order = Order(held);
  ASSERT_EQ(order.size(), 6U);
  EXPECT_EQ(order.back(), stripes_[0].members[0].id);
}

// Also if one node alone has it, as is the rule.
TEST_F(ClusterStripeOrderTest, AMemberWithOneHolderIsNotTakenForTheLastReplica) {
  const ExtentId moving = stripes_[0].members[0].id;
  const auto held = Held({3, 3, 3, 3, 3, 3});
  for (int round = 0; round < 4 && one_.Asked<PullExtent>().empty(); ++round) {
    one_.Run(1s);
    one_.Answer<AskHoldings>([&](const AskHoldings& question) {
      Holdings holdings;
      for (const ManifestExtent& extent : question.extents) {
        const bool has = held.contains(extent.id) || (extent.id == moving && question.node == "n2");
        holdings.push_back(has ? Holding::kHeld : Holding::kAbsent);
      }
      return Result<Holdings>(holdings);
    });
  }
  const auto pulls = one_.Asked<PullExtent>();
  ASSERT_EQ(pulls.size(), 4U);
  for (const PullExtent& pull : pulls) EXPECT_NE(pull.extent.id, moving);
}

TEST_F(ClusterStripeOrderTest, MembersThatThisNodeHasCount) {
  Hold(stripes_[3].members[3]);
  const auto order = Order(Held({3, 3, 3, 1, 3, 3}));
  ASSERT_EQ(order.size(), 6U);
  EXPECT_EQ(order.front(), stripes_[3].members[0].id);
}

TEST_F(ClusterStripeOrderTest, FormerOwnersAreAskedForMembersToo) {
  // n4 leaves, and has the members that it had.
  auto slots = one_.slots;
  slots.previous = slots.map;
  std::erase_if(slots.map.nodes, [](const PlacedNode& node) { return node.id == "n4"; });
  slots.map = Place({}, slots.map.nodes, {.row_size = 3}).value();
  slots.map.version = slots.previous->version + 1;
  one_.Put(std::string(kSlotsKey), slots.Encode());
  std::map<ExtentId, std::set<std::string>> asked;
  for (int round = 0; round < 4; ++round) {
    one_.Run(1s);
    one_.Answer<AskHoldings>([&](const AskHoldings& question) {
      for (const ManifestExtent& extent : question.extents) asked[extent.id].insert(question.node);
      return Result<Holdings>(Holdings(question.extents.size(), Holding::kAbsent));
    });
  }
  for (const Stripe& stripe : stripes_) {
    const auto former = slots.previous->StripeOwners(stripe.slot(), stripe.members.size());
    const auto owners = slots.map.StripeOwners(stripe.slot(), stripe.members.size());
    for (std::size_t i = 1; i < former.size(); ++i) {
      const std::string& node = slots.previous->nodes[former[i]].id;
      if (node == "n1" || owners[i] == SlotMap::kNoNode) continue;
      EXPECT_TRUE(asked[stripe.members[i].id].contains(node)) << i;
    }
  }
}

TEST_F(ClusterStripeOrderTest, WhatHasNoRoomIsCountedUntilThereIsRoom) {
  one_.extents.has_room = false;
  const auto held = Held({3, 3, 3, 3, 3, 3});
  const auto& replication = one_.node->replication();
  (void)Pulls(held);
  EXPECT_EQ(replication.refused_count(), 6U);
  // While others are asked again, it is not forgotten.
  for (int i = 0; i < 30; ++i) {
    one_.Run(100ms);
    EXPECT_EQ(replication.refused_count(), 6U);
  }
  one_.extents.has_room = true;
  EXPECT_EQ(Order(held).size(), 6U);
  EXPECT_EQ(replication.refused_count(), 0U);
}

// --- Plans --------------------------------------------------------------------------------------

TEST_F(ClusterStripesTest, APlanSaysOutOfHowManyMembersWhatIsLostIsComputed) {
  const Stripe stripe = Publish("set", 21, kNone);
  const std::string owner = OwnerOf(stripe, 1);
  one_.Delete("nodes/" + owner);
  one_.Run(1s);
  const auto plan = PlanMoves(one_.node->view(), {.are_down_lost = true, .without = {}});
  ASSERT_TRUE(plan) << plan.error().message;
  std::uint64_t computed = 0, silent = 0;
  for (const MovePlan::Move& move : plan.value().moves) {
    EXPECT_TRUE(move.from.empty() || move.member_count == 0);
    if (move.member_count > 0) {
      EXPECT_EQ(move.from, "");
      EXPECT_EQ(move.member_count, stripe.data_count);
      computed += move.size_bytes;
    } else if (move.from.empty()) {
      silent += move.extent_count;
    }
  }
  EXPECT_EQ(computed, stripe.members[1].size_bytes);
  EXPECT_EQ(silent, 0U);
}

// While a change is under way, data lies where the map before it says.
TEST_F(ClusterStripesTest, APlanHasWhatIsStillToMove) {
  Publish("set", 21, 1);
  auto nodes = one_.slots.map.nodes;
  for (PlacedNode& node : nodes)
    if (node.id == "n1") node.weight = 0;
  SlotsRecord changed;
  changed.map = Place(one_.slots.map, nodes, {.row_size = 3}).value();
  changed.previous = one_.slots.map;
  one_.Put(std::string(kSlotsKey), changed.Encode());
  one_.Run(1ms);

  const auto plan = PlanMoves(one_.node->view(), {.are_down_lost = false, .without = {"n1"}});

  ASSERT_TRUE(plan) << plan.error().message;
  const auto& moves = plan.value().moves;
  EXPECT_TRUE(std::ranges::any_of(moves, [](const auto& move) { return move.from == "n1"; }));
}

TEST_F(ClusterStripesTest, APlanDoesNotComputeOutOfTooFewMembers) {
  const Stripe stripe = Publish("set", 21, kNone);
  one_.Delete("nodes/" + OwnerOf(stripe, 0));
  one_.Delete("nodes/" + OwnerOf(stripe, 1));
  one_.Run(1s);
  const auto plan = PlanMoves(one_.node->view(), {.are_down_lost = true, .without = {}});
  ASSERT_TRUE(plan) << plan.error().message;
  std::uint64_t silent = 0;
  for (const MovePlan::Move& move : plan.value().moves) {
    EXPECT_EQ(move.member_count, 0U);
    silent += move.from.empty() ? move.extent_count : 0;
  }
  EXPECT_GE(silent, 1U);
}

// --- Surplus ------------------------------------------------------------------------------------

TEST_F(ClusterStripesTest, ASurplusMemberIsDroppedByThePromiseOfItsOwnerAlone) {
  const Stripe stripe = Publish("set", 21, kNone);
  Hold(stripe.members[0]);
  const std::string owner = OwnerOf(stripe, 0);
  std::set<std::string> others{"n2", "n3", "n4"};
  others.erase(owner);

  EXPECT_EQ(AskedToPromise(stripe.members[0], others), std::set{owner});
  EXPECT_TRUE(one_.TakeDrops().empty());
  EXPECT_EQ(AskedToPromise(stripe.members[0], {owner}), std::set{owner});
  EXPECT_EQ(one_.TakeDrops(), std::vector{stripe.members[0].id});
}

TEST_F(ClusterStripesTest, ASurplusMemberWhoseOwnerIsAwayStays) {
  const Stripe stripe = Publish("set", 21, kNone);
  Hold(stripe.members[0]);
  one_.Delete("nodes/" + OwnerOf(stripe, 0));
  EXPECT_TRUE(AskedToPromise(stripe.members[0], {"n2", "n3", "n4"}).empty());
  EXPECT_TRUE(one_.TakeDrops().empty());
}

TEST_F(ClusterStripesTest, AMemberWithoutAnOwnerStaysWhereItIs) {
  const auto manifest = test::StripedManifest(21, 3, {3, 2});
  PublishManifest("set", manifest, 31);
  const ManifestExtent ownerless = StripeOf(manifest, 0).members.back();
  ASSERT_TRUE(one_.node->view().OwnersOf(*Wanted(ownerless)).nodes.empty());
  Hold(ownerless);
  EXPECT_TRUE(AskedToPromise(ownerless, {"n2", "n3", "n4"}).empty());
  EXPECT_TRUE(one_.TakeDrops().empty());
}

TEST_F(ClusterStripesTest, TheOwnerOfAMemberPromisesItAndOfOthersNothing) {
  const Stripe stripe = Publish("set", 21, 2);
  for (const ManifestExtent& member : stripe.members) Hold(member);
  Holdings wished{Holding::kHeld, Holding::kHeld, Holding::kPromised};
  EXPECT_EQ(one_.node->OnAsk(one_.now, AskHoldings{"n1", one_.slots.map.version, stripe.members}),
            wished);
}

}  // namespace
}  // namespace ffrecord::server::cluster
