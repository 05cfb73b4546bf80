// Goal: a node drops a replica only on what the rules name: all promises, or a tombstone.
// Method: one node whose peers and store are in the test's hands.

#include <gtest/gtest.h>

#include "one_node.h"

namespace ffrecord::server::cluster {
namespace {

using namespace std::chrono_literals;
using test::OneNode;

constexpr auto kTombstone = "deletes/name-1-0";

Holding Ask(const OneNode& one, const ManifestExtent& extent, std::uint32_t version) {
  return one.node->OnAsk(one.now, AskHoldings{"n1", version, {extent}}).front();
}

TEST(ClusterPromisesTest, AnOwnerPromisesByTheSameSlotMapUnderItsLease) {
  OneNode one;
  const auto owned = one.ExtentOf(true, 21), other = one.ExtentOf(false, 22);
  one.Publish("set", {owned, other}, 2, 31);
  for (const auto& extent : {owned, other}) one.extents.extents[extent.id] = extent;
  one.Run(1s);
  const std::uint32_t version = one.slots.map.version;

  EXPECT_EQ(Ask(one, owned, version), Holding::kPromised);
  EXPECT_EQ(Ask(one, owned, 0), Holding::kHeld);
  EXPECT_EQ(Ask(one, owned, version + 1), Holding::kHeld);
  EXPECT_EQ(Ask(one, other, version), Holding::kHeld);
  auto changed = owned;
  ++changed.xxh3;
  EXPECT_EQ(Ask(one, changed, version), Holding::kAbsent);

  one.is_store_silent = true;
  one.now += 10s;
  EXPECT_EQ(Ask(one, owned, version), Holding::kHeld);
}

TEST(ClusterPromisesTest, AReplicaIsDroppedOnceAllOwnersHavePromised) {
  OneNode one;
  const auto extra = one.ExtentOf(false, 22);
  one.Publish("set", {extra}, 2, 31);
  one.extents.extents[extra.id] = extra;

  int promises = 0;
  one.Run(2s);
  one.Answer<AskHoldings>([&](const AskHoldings& question) {
    EXPECT_EQ(question.promise_version, one.slots.map.version);
    return Result<Holdings>(Holdings{promises++ == 0 ? Holding::kPromised : Holding::kHeld});
  });
  EXPECT_EQ(promises, 2);
  EXPECT_TRUE(one.TakeDrops().empty());

  one.Run(2s);
  one.AnswerHoldings(Holding::kPromised);
  EXPECT_EQ(one.TakeDrops(), std::vector{extra.id});
}

TEST(ClusterPromisesTest, PromisesByAnOlderSlotMapAreWorthNothing) {
  OneNode one;
  const auto extra = one.ExtentOf(false, 22);
  one.Publish("set", {extra}, 2, 31);
  one.extents.extents[extra.id] = extra;
  one.Run(2s);
  ASSERT_FALSE(one.Asked<AskHoldings>().empty());

  auto changed = one.slots;
  ++changed.map.version;
  one.Put(std::string(kSlotsKey), changed.Encode());
  one.AnswerHoldings(Holding::kPromised);

  EXPECT_TRUE(one.TakeDrops().empty());
}

TEST(ClusterPromisesTest, OtherBytesThanPublishedAreDroppedAndPulled) {
  OneNode one;
  const auto owned = one.ExtentOf(true, 21);
  auto draft = owned;
  ++draft.xxh3;
  one.Publish("set", {owned}, 2, 31);
  one.extents.extents[owned.id] = draft;
  one.Run(2s);
  EXPECT_FALSE(one.node->OnAsk(one.now, AskFilled{"n1", one.slots.map.version}).front());
  EXPECT_EQ(one.TakeDrops().front(), owned.id);

  one.extents.extents.clear();
  for (int round = 0; round < 3; ++round) {
    one.AnswerHoldings(Holding::kHeld);
    one.Run(1s);
  }
  const auto pulls = one.Asked<PullExtent>();
  EXPECT_TRUE(std::ranges::any_of(pulls, [&](const auto& pull) { return pull.extent == owned; }));
}

class ClusterBurialTest : public testing::Test {
 protected:
  void Bury(const ManifestExtent& extent) {
    TombstoneRecord record;
    record.grace = 10s;
    record.runs = RunsOf({extent.id});
    one_.Put(kTombstone, record.Encode());
  }
  bool IsBuried() { return one_.node->OnAsk(one_.now, AskBuried{"n1", {kTombstone}}).front(); }

  OneNode one_;
  const ManifestExtent extent_ = one_.ExtentOf(true, 21);
};

TEST_F(ClusterBurialTest, ATombstoneIsCarriedOutAfterItsGrace) {
  one_.extents.extents[extent_.id] = extent_;
  Bury(extent_);
  one_.Run(9s);
  EXPECT_TRUE(one_.TakeDrops().empty());
  EXPECT_FALSE(IsBuried());

  one_.Run(3s);
  EXPECT_EQ(one_.TakeDrops().front(), extent_.id);
  one_.extents.extents.clear();
  EXPECT_TRUE(IsBuried());
}

TEST_F(ClusterBurialTest, WhatANameRefersToStays) {
  one_.extents.extents[extent_.id] = extent_;
  one_.Publish("set", {extent_}, 2, 31);
  Bury(extent_);
  one_.Run(15s);
  EXPECT_TRUE(one_.TakeDrops().empty());
}

TEST_F(ClusterBurialTest, NothingIsConcludedWithoutALease) {
  one_.extents.extents[extent_.id] = extent_;
  Bury(extent_);
  one_.is_store_silent = true;
  one_.Run(30s);
  EXPECT_TRUE(one_.TakeDrops().empty());
  one_.extents.extents.clear();
  EXPECT_FALSE(IsBuried());
}

TEST_F(ClusterBurialTest, AGivenUpUploadLeavesWhatAnotherTombstoneLetsBeRead) {
  one_.extents.extents[extent_.id] = extent_;
  Bury(extent_);
  TombstoneRecord upload;
  upload.upload = UploadOf(extent_.id);
  one_.Put(UploadTombstoneKey(upload.upload), upload.Encode());
  one_.Run(5s);
  EXPECT_TRUE(one_.TakeDrops().empty());
}

TEST(ClusterNamesTest, ReplicasAreTheMostThatANameAsksFor) {
  OneNode one;
  const auto shared = one.ExtentOf(true, 21);
  one.Publish("three", {shared}, 3, 31);
  one.Publish("two", {shared}, 2, 32);
  const NameTable& names = one.node->view().names;
  EXPECT_EQ(names.Find(shared.id)->replicas, 3);

  one.Delete("datasets/three");
  EXPECT_EQ(names.Find(shared.id)->replicas, 2);
  one.Delete("datasets/two");
  EXPECT_EQ(names.Find(shared.id), nullptr);
}

}  // namespace
}  // namespace ffrecord::server::cluster
