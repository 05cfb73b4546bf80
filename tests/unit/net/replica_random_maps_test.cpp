// Goal: whatever happens while the map changes, each part of a batch ends once, and no node writes
// into memory that was given back.
// Method: the state machine alone, with a virtual clock; many random events, after each of which
// all is checked.

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

#include "replica_maps_fixture.h"

namespace ffrecord::net {
namespace {

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
