// Goal: a batch under way goes by the newest map: what nobody brings is asked at once of those whom
// the new map names, what somebody brings is not asked for twice, and no node writes into memory
// that was given back, however often the map changes.
// Method: the state machine alone, with a virtual clock and maps that are written out, each of
// which is gone once there is a newer one; then many random events, after each of which all is
// checked.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "replica_reads_fixture.h"

namespace ffrecord::net {
namespace {

// The candidates of each extent, all of them owners.
class MovingMap final : public ReplicaMap {
 public:
  using Nodes = std::vector<NodeIndex>;
  explicit MovingMap(std::vector<Nodes> of_extents, bool in_order = false)
      : of_extents_(std::move(of_extents)), in_order_(in_order) {}
  std::span<const NodeIndex> NodesOf(std::uint32_t extent) const override {
    return of_extents_[extent];
  }
  std::size_t OwnerCountOf(std::uint32_t extent) const override {
    return in_order_ ? std::min<std::size_t>(1, of_extents_[extent].size())
                     : of_extents_[extent].size();
  }
  bool MovesExtents() const override { return true; }
  bool AsksInOrder() const override { return in_order_; }

 private:
  const std::vector<Nodes> of_extents_;
  const bool in_order_;
};

class ReplicaMapsTest : public ReplicaReadsTest {
 protected:
  static constexpr std::uint64_t kLarge = 4 << 20;  // Not hedged.

  ReplicaMapsTest() : ReplicaReadsTest(6) {}

  // The map before is gone then, as its owner's is.
  void TakeMap(std::vector<MovingMap::Nodes> of_extents, bool in_order = false) {
    auto newer = std::make_unique<MovingMap>(std::move(of_extents), in_order);
    Step(Reads::NewMap{newer.get()});
    moving_map_ = std::move(newer);
  }
  // One part of each extent.
  Reads::Send BeginOn(std::vector<MovingMap::Nodes> of_extents, std::uint64_t size_bytes = kLarge) {
    const auto count = static_cast<std::uint32_t>(of_extents.size());
    TakeMap(std::move(of_extents));
    std::vector<Reads::PartSize> parts;
    for (std::uint32_t extent = 0; extent < count; ++extent) parts.push_back({extent, size_bytes});
    Step(Reads::Begin{1, std::move(parts), now_ + 30s});
    return All<Reads::Send>().front();
  }
  std::vector<NodeIndex> Asked() const {
    std::vector<NodeIndex> nodes;
    for (const auto& send : All<Reads::Send>()) nodes.push_back(send.node);
    return nodes;
  }
  bool IsSought() const { return !All<Reads::SeekMap>().empty(); }

  std::unique_ptr<MovingMap> moving_map_;
};

using Nodes = std::vector<NodeIndex>;

// --- Whom a part is asked of ---------------------------------------------------------------------

TEST_F(ReplicaMapsTest, WhatNobodyBringsIsAskedOfTheNewOwnerAtOnce) {
  EndLeg(BeginOn({{0, 1}}).leg, ErrorCode::kUnavailable);
  EXPECT_FALSE(IsSought());
  EndLeg(Only<Reads::Send>().leg, ErrorCode::kUnavailable);
  EXPECT_TRUE(IsSought());
  TakeMap({{2}});
  const auto send = Only<Reads::Send>();
  EXPECT_EQ(send.node, 2);
  EXPECT_TRUE(send.is_direct);
  // The back-off of the map before asks for nothing twice.
  Pass(90ms);
  EXPECT_EQ(Asked(), Nodes{});
  Arrive(send.leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kOk);
  EndLeg(send.leg);
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
}

TEST_F(ReplicaMapsTest, ANewMapAloneAsksForNothingTwice) {
  BeginOn({{0, 1}, {0, 1}});
  const auto sends = All<Reads::Send>();
  TakeMap({{2, 3}, {0, 2}});
  EXPECT_TRUE(actions_.empty());
  for (const auto& send : sends) {
    Arrive(send.leg, 0);
    EndLeg(send.leg);
  }
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
}

TEST_F(ReplicaMapsTest, WhatAFormerNodeDoesNotBringIsAskedByTheNewMap) {
  for (const ErrorCode status :
       {ErrorCode::kNotFound, ErrorCode::kUnavailable, ErrorCode::kCorruption}) {
    Start(6);
    const auto send = BeginOn({{0}});
    TakeMap({{3}});
    EXPECT_TRUE(actions_.empty());
    EndLeg(send.leg, status);
    EXPECT_EQ(Asked(), Nodes{3});
  }
}

TEST_F(ReplicaMapsTest, OfManyPartsThoseAreAskedAgainThatNobodyBrings) {
  // 0 answers, 1 and 2 are gone.
  BeginOn({{0}, {1}, {2}, {1}});
  const auto sends = All<Reads::Send>();
  ASSERT_EQ(sends.size(), 3U);
  EndLeg(sends[1].leg, ErrorCode::kUnavailable);
  EndLeg(sends[2].leg, ErrorCode::kUnavailable);
  TakeMap({{4}, {5}, {2}, {4}});
  const auto again = All<Reads::Send>();
  ASSERT_EQ(again.size(), 2U);
  EXPECT_EQ(again[0].node, 5);
  EXPECT_EQ(again[0].parts, std::vector<std::uint32_t>{1});
  EXPECT_EQ(again[1].node, 4);
  EXPECT_EQ(again[1].parts, std::vector<std::uint32_t>{3});
}

TEST_F(ReplicaMapsTest, WhatNodesHaveSaidIsRememberedByTheNewMap) {
  Arrive(BeginOn({{0, 1}}).leg, 0, ErrorCode::kCorruption);
  EndLeg(Only<Reads::Send>().leg, ErrorCode::kUnavailable);
  TakeMap({{2, 1, 0}});  // Where 0 has another place.
  EXPECT_EQ(Asked(), Nodes{2});
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  EXPECT_EQ(Asked(), Nodes{});  // 1 may come back; 0 is damaged.
  Pass(20ms);
  for (const NodeIndex node : Asked()) EXPECT_NE(node, 0);
}

TEST_F(ReplicaMapsTest, NodesThatDoNotHaveAPartAreNotAskedAgainInItsRound) {
  Arrive(BeginOn({{0, 1}}).leg, 0, ErrorCode::kNotFound);
  EndLeg(Only<Reads::Send>().leg, ErrorCode::kUnavailable);
  TakeMap({{2, 0}});
  ASSERT_EQ(Asked(), Nodes{2});
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  Pass(Reads::kMovedPause - 1ms);  // Longer than the back-off.
  EXPECT_EQ(Asked(), Nodes{});
  Pass(1ms);
  EXPECT_FALSE(Asked().empty());
}

TEST_F(ReplicaMapsTest, OwnersThatBecomeOthersAreNotHedgedTo) {
  health_->NoteParts(1000);
  const WrittenMap two_owners({0, 1}, 2);
  BeginBy(two_owners, 1);
  const WrittenMap one_owner({0, 1}, 1);
  Step(Reads::NewMap{&one_owner});
  Pass(ReplicaHealth::kHedgeAfterUnlearned + 1ms);
  EXPECT_EQ(Asked(), Nodes{});
}

TEST_F(ReplicaMapsTest, NodesThatAreNewAreAsked) {
  EndLeg(BeginOn({{0}}).leg, ErrorCode::kUnavailable);
  health_->Grow(9);
  reads_->Grow(9);
  TakeMap({{8}});
  EXPECT_EQ(Asked(), Nodes{8});
}

// --- Silence, and memory -------------------------------------------------------------------------

TEST_F(ReplicaMapsTest, ASilentOwnerIsReplacedAndWritesNoMoreBeforeItsPartEnds) {
  const auto first = BeginOn({{0}});
  Pass(100ms);
  EXPECT_TRUE(IsSought());
  EXPECT_EQ(Asked(), Nodes{});
  TakeMap({{3}});
  const auto second = Only<Reads::Send>();
  EXPECT_EQ(second.node, 3);
  EXPECT_FALSE(second.is_direct);
  Arrive(second.leg, 0);
  EXPECT_EQ(Only<Reads::Cancel>().leg, first.leg);
  EXPECT_EQ(Only<Reads::Drop>().node, 0);
  EndLeg(second.leg);
  EXPECT_TRUE(actions_.empty());
  EndLeg(first.leg, ErrorCode::kUnavailable);
  EXPECT_EQ(Only<Reads::EndPart>().leg, second.leg);
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
}

TEST_F(ReplicaMapsTest, AFormerNodeThatFallsSilentIsReplacedAndMayStillBeTheFirst) {
  const auto first = BeginOn({{0}});
  TakeMap({{3}});
  Pass(100ms);
  const auto second = Only<Reads::Send>();
  EXPECT_EQ(second.node, 3);
  Step(Reads::Heard{0, now_});  // It brings it again.
  EndLeg(second.leg, ErrorCode::kUnavailable);
  EXPECT_EQ(Asked(), Nodes{});
  EXPECT_FALSE(IsSought());
  Arrive(first.leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().leg, 0U);
  EndLeg(first.leg);
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
}

TEST_F(ReplicaMapsTest, WhereTheNewOwnerIsSilentTooTheNextMapIsFollowed) {
  const auto first = BeginOn({{0}});
  Pass(100ms);
  TakeMap({{1}});
  const auto second = Only<Reads::Send>();
  Pass(100ms);
  EXPECT_TRUE(IsSought());
  TakeMap({{2}});
  const auto third = Only<Reads::Send>();
  EXPECT_EQ(third.node, 2);
  EXPECT_FALSE(third.is_direct);
  Arrive(third.leg, 0);
  EXPECT_EQ(All<Reads::Cancel>().size(), 2U);
  EndLeg(second.leg, ErrorCode::kUnavailable);
  EXPECT_TRUE(All<Reads::EndPart>().empty());
  EndLeg(first.leg, ErrorCode::kUnavailable);
  EXPECT_EQ(Only<Reads::EndPart>().leg, third.leg);
}

TEST_F(ReplicaMapsTest, AMapThatGoesBackFindsWhatIsUnderWay) {
  const auto first = BeginOn({{0, 1}});
  Pass(100ms);
  const auto second = Only<Reads::Send>();
  TakeMap({{2}});
  EXPECT_EQ(Asked(), Nodes{});  // The second one brings it.
  TakeMap({{1, 0}});
  EXPECT_EQ(Asked(), Nodes{});
  EndLeg(second.leg, ErrorCode::kUnavailable);
  EXPECT_EQ(Asked(), Nodes{});  // The first is still under way.
  Step(Reads::Heard{first.node, now_});
  Arrive(first.leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().leg, 0U);
}

TEST_F(ReplicaMapsTest, AHedgeUnderWayGoesOnAsTheMapChanges) {
  health_->NoteParts(1000);
  const auto first = BeginOn({{0, 1}}, kSize);
  Pass(ReplicaHealth::kHedgeAfterUnlearned);
  const auto hedge = Only<Reads::Send>();
  TakeMap({{4, 5}});
  EXPECT_TRUE(actions_.empty());
  Step(Reads::Heard{first.node, now_});
  Pass(ReplicaHealth::kHedgeAfterUnlearned);  // The hedge is late too.
  EXPECT_EQ(Asked(), Nodes{});                // Two bring it already.
  Arrive(hedge.leg, 0);
  EXPECT_EQ(Only<Reads::Cancel>().leg, first.leg);
  EndLeg(first.leg, ErrorCode::kUnavailable);
  EXPECT_EQ(Only<Reads::EndPart>().leg, hedge.leg);
}

TEST_F(ReplicaMapsTest, WhatAFormerNodeBringsLateIsHedgedByTheNewMap) {
  health_->NoteParts(1000);
  const auto first = BeginOn({{0}}, kSize);
  TakeMap({{4, 5}});
  Pass(ReplicaHealth::kHedgeAfterUnlearned);
  const auto hedge = Only<Reads::Send>();
  EXPECT_FALSE(hedge.is_direct);
  Arrive(first.leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().leg, 0U);
}

// --- Ends ----------------------------------------------------------------------------------------

TEST_F(ReplicaMapsTest, WhatNoNodeOfTheNewMapHasEndsAlthoughFormerNodesMightComeBack) {
  EndLeg(BeginOn({{0, 1}}).leg, ErrorCode::kUnavailable);
  EndLeg(Only<Reads::Send>().leg, ErrorCode::kUnavailable);
  TakeMap({{2, 3}});
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  EXPECT_TRUE(All<Reads::EndPart>().empty());  // It may be on its way.
  Pass(Reads::kMovedPause);
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kNotFound);
}

TEST_F(ReplicaMapsTest, WhatNewOwnersDoNotHaveYetIsSoughtTwiceThereToo) {
  Arrive(BeginOn({{0}}).leg, 0, ErrorCode::kNotFound);
  TakeMap({{1}});
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  EXPECT_TRUE(All<Reads::EndPart>().empty());
  Pass(Reads::kMovedPause);
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kNotFound);
}

TEST_F(ReplicaMapsTest, AMapThatNamesNobodySaysNothingOfAnExtent) {
  EndLeg(BeginOn({{0}}).leg, ErrorCode::kUnavailable);
  TakeMap({{}});
  EXPECT_TRUE(All<Reads::EndPart>().empty());
  Pass(1s);
  EXPECT_TRUE(All<Reads::EndPart>().empty());
  EXPECT_TRUE(IsSought());
  TakeMap({{1}});
  EXPECT_EQ(Asked(), Nodes{1});
  Arrive(Only<Reads::Send>().leg, 0);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kOk);
}

TEST_F(ReplicaMapsTest, WhatNobodyIsKnownToHaveIsUnavailableAtTheDeadline) {
  TakeMap({{}});
  Step(Reads::Begin{1, {{0, kSize}}, now_ + 2s});
  EXPECT_TRUE(IsSought());
  Pass(2s);
  EXPECT_EQ(Only<Reads::EndPart>().status, ErrorCode::kUnavailable);
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
}

TEST_F(ReplicaMapsTest, ABatchThatIsOverAsksNobodyNew) {
  const auto first = BeginOn({{0}});
  Step(Reads::GiveUp{1});
  TakeMap({{1}});
  EXPECT_TRUE(actions_.empty());
  EndLeg(first.leg, ErrorCode::kUnavailable);
  EXPECT_EQ(Asked(), Nodes{});
  EXPECT_EQ(All<Reads::EndBatch>().size(), 1U);
}

// --- When a map is sought ------------------------------------------------------------------------

TEST_F(ReplicaMapsTest, AMapIsSoughtAgainWhileNobodyAnswersAndNoLonger) {
  EndLeg(BeginOn({{0}}).leg, ErrorCode::kUnavailable);
  ASSERT_TRUE(IsSought());
  std::size_t count = 0;
  for (int i = 0; i < 20; ++i) {  // For a second.
    Pass(Reads::kSeekEvery);
    count += All<Reads::SeekMap>().size();
    for (const auto& send : All<Reads::Send>()) EndLeg(send.leg, ErrorCode::kUnavailable);
  }
  EXPECT_GE(count, 10U);
  EXPECT_LE(count, 20U);
  TakeMap({{1}});
  ASSERT_EQ(Asked(), Nodes{1});
  Step(Reads::Heard{1, now_});
  Pass(90ms);
  EXPECT_FALSE(IsSought());
}

TEST_F(ReplicaMapsTest, NoMapIsSoughtWhileANodeBringsAPartOrIsBusyWithIt) {
  TakeMap({{0, 1}}, true);
  Step(Reads::Begin{1, {{0, kLarge}}, now_ + 30s});
  EXPECT_FALSE(IsSought());
  for (int i = 0; i < 10; ++i) {
    const auto send = Only<Reads::Send>();
    EXPECT_EQ(send.node, 0);
    Arrive(send.leg, 0, ErrorCode::kUnavailable);
    EXPECT_FALSE(IsSought());
    EndLeg(send.leg);
    do {
      now_ = std::max(now_, reads_->NextTime());
      Step(Reads::Tick{});
      EXPECT_FALSE(IsSought());
    } while (All<Reads::Send>().empty());
  }
}

TEST_F(ReplicaMapsTest, NoMapIsSoughtWhereNothingMoves) {
  Begin(1, 1);
  std::vector<Reads::LegId> legs{Only<Reads::Send>().leg};
  for (int i = 0; i < 8 && !legs.empty(); ++i) {
    EndLeg(legs.front(), ErrorCode::kUnavailable);
    legs.clear();
    for (const auto& send : All<Reads::Send>()) legs.push_back(send.leg);
    EXPECT_FALSE(IsSought());
  }
  Pass(1s);
  EXPECT_FALSE(IsSought());
}

// Nodes that fetch what they lack: the new order counts, but the one that fetches it is waited for.
TEST_F(ReplicaMapsTest, WhereNodesFetchTheFirstOfTheNewOrderIsAskedNext) {
  TakeMap({{0, 1}}, true);
  Step(Reads::Begin{1, {{0, kLarge}}, now_ + 30s});
  const auto send = Only<Reads::Send>();
  TakeMap({{2, 0}}, true);
  EXPECT_EQ(Asked(), Nodes{});
  Arrive(send.leg, 0, ErrorCode::kUnavailable);  // Not yet.
  EXPECT_EQ(Asked(), Nodes{2});
}

// --- When the map changes all the time -----------------------------------------------------------

// All owners are busy. Each map names another second one, which is busy too.
TEST_F(ReplicaMapsTest, ABusyCandidateIsAskedAgainHoweverOftenTheMapChanges) {
  for (const bool in_order : {false, true}) {
    Start(6);
    TakeMap({{0, 1}}, in_order);
    Step(Reads::Begin{1, {{0, kLarge}}, now_ + 30s});
    std::size_t asked_count = 0;
    const auto refuse_all = [&](std::vector<Reads::Send> sends) {
      while (!sends.empty()) {
        const auto send = sends.back();
        sends.pop_back();
        asked_count += send.node == 0 ? 1 : 0;
        Arrive(send.leg, 0, ErrorCode::kUnavailable);
        for (const auto& next : All<Reads::Send>()) sends.push_back(next);
        EndLeg(send.leg);
        for (const auto& next : All<Reads::Send>()) sends.push_back(next);
      }
    };
    refuse_all(All<Reads::Send>());
    for (NodeIndex i = 0; i < 100; ++i) {
      TakeMap({{0, static_cast<NodeIndex>(1 + i % 4)}}, in_order);
      refuse_all(All<Reads::Send>());
      const auto end = now_ + 99ms;
      while (reads_->NextTime() <= end) {
        now_ = std::max(now_, reads_->NextTime());
        Step(Reads::Tick{});
        refuse_all(All<Reads::Send>());
      }
      now_ = end;
    }
    EXPECT_GE(asked_count, 10U) << in_order;  // In ten seconds.
    EXPECT_LE(asked_count, 200U) << in_order;
  }
}

// What was on its way has come to a node that is in every map.
TEST_F(ReplicaMapsTest, AnAbsentExtentIsSoughtAgainHoweverOftenTheMapChanges) {
  Arrive(BeginOn({{0, 1}}).leg, 0, ErrorCode::kNotFound);
  Arrive(Only<Reads::Send>().leg, 0, ErrorCode::kNotFound);
  bool is_asked_again = false;
  for (NodeIndex i = 0; i < 20 && !is_asked_again; ++i) {
    TakeMap({{0, static_cast<NodeIndex>(2 + i % 3)}});
    for (const auto& send : All<Reads::Send>())
      if (send.node != 0) Arrive(send.leg, 0, ErrorCode::kNotFound);
    Pass(100ms);
    for (const auto& send : All<Reads::Send>()) is_asked_again |= send.node == 0;
  }
  EXPECT_TRUE(is_asked_again);
}

// A part that is retried early takes no time from one that waits for longer.
TEST_F(ReplicaMapsTest, AnAbsentExtentIsNotGivenUpAsAnotherPartIsRetried) {
  BeginOn({{0}, {1}});
  const auto sends = All<Reads::Send>();
  ASSERT_EQ(sends.size(), 2U);
  EndLeg(sends[1].leg, ErrorCode::kUnavailable);
  Arrive(sends[0].leg, 0, ErrorCode::kNotFound);
  EndLeg(sends[0].leg);
  for (Reads::Duration waited{}; waited < Reads::kMovedPause - 10ms; waited += 10ms) {
    Pass(10ms);
    for (const auto& send : All<Reads::Send>()) {
      EXPECT_EQ(send.node, 1) << waited.count();
      EndLeg(send.leg, ErrorCode::kUnavailable);
    }
  }
  Pass(10ms);
  EXPECT_EQ(std::ranges::count(Asked(), NodeIndex{0}), 1);
}

// And one that waits for long does not hold up the others.
TEST_F(ReplicaMapsTest, APartIsRetriedSoonAlthoughAnotherOneIsAbsent) {
  BeginOn({{0}, {1}});
  const auto sends = All<Reads::Send>();
  ASSERT_EQ(sends.size(), 2U);
  Arrive(sends[0].leg, 0, ErrorCode::kNotFound);
  EndLeg(sends[0].leg);
  EndLeg(sends[1].leg, ErrorCode::kUnavailable);
  Pass(50ms);
  EXPECT_EQ(Asked(), Nodes{1});
}

// --- Anything may happen -------------------------------------------------------------------------

// What the actions promise, checked one by one.
class RandomMapsTest : public ReplicaMapsTest, public testing::WithParamInterface<unsigned> {
 protected:
  static constexpr std::uint32_t kExtentCount = 4;
  struct PartSeen {
    std::uint32_t extent;
    int ends = 0;
    int direct_count = 0;                    // Entries of direct legs that may still be written,
    bool has_place = false;                  // and whether one of them has brought it.
    std::map<NodeIndex, Reads::LegId> legs;  // That have not ended for it.
  };
  struct LegSeen {
    Reads::Send send;
    std::vector<bool> has_ended;
    std::vector<bool> has_come;
    bool is_over = false;
    bool is_released = false;
  };

  void Look() {
    for (const auto& action : actions_) std::visit([&](const auto& one) { See(one); }, action);
  }
  void See(const Reads::Send& send) {
    for (const std::uint32_t number : send.parts) {
      PartSeen& part = batches_.at(send.batch)[number];
      ASSERT_EQ(part.ends, 0);
      ASSERT_FALSE(given_up_.contains(send.batch));
      const auto nodes = moving_map_->NodesOf(part.extent);
      ASSERT_NE(std::ranges::find(nodes, send.node), nodes.end()) << "not in the newest map";
      ASSERT_TRUE(part.legs.emplace(send.node, send.leg).second) << "asked twice";
      part.direct_count += send.is_direct ? 1 : 0;
      ASSERT_LE(part.direct_count, 1);
    }
    const std::vector<bool> none(send.parts.size());
    legs_.emplace(send.leg, LegSeen{send, none, none});
  }
  void See(const Reads::EndPart& end) {
    PartSeen& part = batches_.at(end.batch)[end.part];
    ASSERT_EQ(++part.ends, 1);
    ASSERT_FALSE(given_up_.contains(end.batch));
    if (end.status != ErrorCode::kOk) return;
    if (end.leg == 0) {
      ASSERT_TRUE(part.has_place);
      return;
    }
    ASSERT_EQ(part.direct_count, 0) << "copied while a node may write there";
    const LegSeen& leg = legs_.at(end.leg);
    ASSERT_FALSE(leg.is_released);
    ASSERT_TRUE(leg.has_come[end.entry]);
    ASSERT_EQ(leg.send.parts[end.entry], end.part);
  }
  void See(const Reads::Release& release) {
    LegSeen& leg = legs_.at(release.leg);
    ASSERT_TRUE(leg.is_over) << "a node may still write there";
    ASSERT_FALSE(std::exchange(leg.is_released, true));
  }
  void See(const Reads::EndBatch& end) {
    const bool is_given_up = given_up_.contains(end.batch);
    for (const PartSeen& part : batches_.at(end.batch)) {
      ASSERT_EQ(part.direct_count, 0);
      ASSERT_TRUE(part.ends == 1 || is_given_up);
    }
    ASSERT_TRUE(ended_.insert(end.batch).second);
  }
  void See(const Reads::Cancel& cancel) { ASSERT_FALSE(legs_.at(cancel.leg).is_over); }
  void See(const Reads::Drop& /*drop*/) {}
  void See(const Reads::SeekMap& /*seek*/) {}

  void Do(const Reads::Event& event) {
    Step(event);
    Look();
  }
  std::uint32_t Below(std::uint32_t end) { return static_cast<std::uint32_t>(random_() % end); }
  bool Chance(std::uint32_t in) { return Below(in) == 0; }
  // Of the legs that have not ended; 0: there is none.
  Reads::LegId AnyLeg() {
    std::vector<Reads::LegId> open;
    for (const auto& [id, leg] : legs_)
      if (!leg.is_over) open.push_back(id);
    return open.empty() ? 0 : open[Below(static_cast<std::uint32_t>(open.size()))];
  }
  void EndEntry(LegSeen& leg, std::uint32_t entry, bool has_come) {
    leg.has_ended[entry] = true;
    leg.has_come[entry] = has_come;
    PartSeen& part = batches_.at(leg.send.batch)[leg.send.parts[entry]];
    part.legs.erase(leg.send.node);
    if (!leg.send.is_direct) return;
    --part.direct_count;
    if (has_come) part.has_place = true;
  }

  void BeginSome() {
    std::vector<Reads::PartSize> parts;
    const std::uint64_t bytes = Chance(3) ? kLarge : kSize;
    auto& seen = batches_[++last_batch_];
    for (std::uint32_t i = 0, count = Below(6); i < count; ++i) {
      parts.push_back({Below(kExtentCount), bytes});
      seen.push_back({parts.back().extent, 0, 0, false, {}});
    }
    Do(Reads::Begin{last_batch_, std::move(parts), now_ + 3s});
  }
  void TakeAnyMap() {
    std::vector<MovingMap::Nodes> of_extents(kExtentCount);
    for (auto& nodes : of_extents) {
      nodes = {0, 1, 2, 3, 4, 5};
      std::ranges::shuffle(nodes, random_);
      nodes.resize(Below(4));
    }
    TakeMap(std::move(of_extents), in_order_);
    Look();
  }
  void EndSomeEntry() {
    const Reads::LegId id = AnyLeg();
    if (id == 0) return;
    LegSeen& leg = legs_.at(id);
    const std::uint32_t entry = Below(static_cast<std::uint32_t>(leg.send.parts.size()));
    if (leg.has_ended[entry]) return;
    constexpr std::array kStatuses{ErrorCode::kOk, ErrorCode::kOk, ErrorCode::kUnavailable,
                                   ErrorCode::kNotFound, ErrorCode::kCorruption};
    const ErrorCode status = kStatuses[Below(kStatuses.size())];
    EndEntry(leg, entry, status == ErrorCode::kOk);
    Do(Reads::Arrived{id, entry, status});
  }
  void EndSomeLeg(Reads::LegId id) {
    if (id == 0) return;
    LegSeen& leg = legs_.at(id);
    leg.is_over = true;
    for (std::uint32_t i = 0; i < leg.send.parts.size(); ++i)
      if (!leg.has_ended[i]) EndEntry(leg, i, false);
    Do(Reads::LegEnded{id, ErrorCode::kUnavailable});
  }
  void GiveSomeUp() {
    if (last_batch_ == 0) return;
    const Reads::BatchId batch = 1 + Below(static_cast<std::uint32_t>(last_batch_));
    if (ended_.contains(batch)) return;
    given_up_.insert(batch);
    Do(Reads::GiveUp{batch});
  }
  void LetTimePass(Reads::Duration time) {
    const auto end = now_ + time;
    for (int i = 0; reads_->NextTime() <= end; ++i) {
      ASSERT_LT(i, 1000) << "it wants to be called all the time";
      now_ = std::max(now_, reads_->NextTime());
      Do(Reads::Tick{});
    }
    now_ = end;
  }
  void DoAnything() {
    switch (Below(12)) {
      case 0:
      case 1:
        return BeginSome();
      case 2:
      case 3:
        return TakeAnyMap();
      case 4:
      case 5:
      case 6:
        return EndSomeEntry();
      case 7:
        return EndSomeLeg(AnyLeg());
      case 8:
        return Do(Reads::Heard{static_cast<NodeIndex>(Below(6)), now_});
      case 9:
        return Chance(4) ? GiveSomeUp() : void();
      default:
        return LetTimePass(std::chrono::milliseconds(Below(120)));
    }
  }

  std::mt19937 random_{GetParam()};
  bool in_order_ = GetParam() % 2 == 1;
  Reads::BatchId last_batch_ = 0;
  std::map<Reads::BatchId, std::vector<PartSeen>> batches_;
  std::map<Reads::LegId, LegSeen> legs_;
  std::set<Reads::BatchId> given_up_;
  std::set<Reads::BatchId> ended_;
};

TEST_P(RandomMapsTest, EachPartEndsOnceAndNoMemoryIsReused) {
  TakeAnyMap();
  for (int i = 0; i < 300 && !HasFatalFailure(); ++i) DoAnything();
  // Nodes end everything sooner or later.
  for (int i = 0; i < 20 && !HasFatalFailure(); ++i) {
    while (const Reads::LegId leg = AnyLeg()) EndSomeLeg(leg);
    LetTimePass(1s);
  }
  while (const Reads::LegId leg = AnyLeg()) EndSomeLeg(leg);
  if (HasFatalFailure()) return;
  EXPECT_EQ(ended_.size(), batches_.size());
  for (const auto& [id, leg] : legs_) EXPECT_TRUE(leg.is_released) << id;
  for (NodeIndex node = 0; node < 6; ++node) EXPECT_FALSE(reads_->IsAsked(node));
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomMapsTest, testing::Range(1U, 41U));

}  // namespace
}  // namespace ffrecord::net
