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

// As after the metadata was put back to a state in which it was out already, and its slots with it.
TEST(ClusterPromisesTest, ANodeThatWasTakenOutAndIsUpMayHaveTheLastReplica) {
  OneNode one;
  const auto owned = one.ExtentOf(true, 21);
  one.Put(Key(kMemberKeys, "n9"), MemberRecord{MemberRecord::State::kOut, 1, "d-n9"}.Encode());
  one.Put(Key(kNodeKeys, "n9"), NodeRecord{1, 0, ""}.Encode());
  one.Publish("set", {owned}, 2, 31);
  for (int round = 0; round < 3; ++round) {
    one.Run(1s);
    one.Answer<AskHoldings>([&](const AskHoldings& question) {
      const Holding holding = question.node == "n9" ? Holding::kHeld : Holding::kAbsent;
      return Result<Holdings>(Holdings(question.extents.size(), holding));
    });
  }

  const auto pulls = one.Asked<PullExtent>();
  ASSERT_FALSE(pulls.empty());
  EXPECT_EQ(pulls.front().extent, owned);
  EXPECT_EQ(pulls.front().nodes, std::vector<std::string>{"n9"});
  EXPECT_TRUE(one.node->view().names.Find("set"));
}

// Repair and removal of replicas, a few at a time.
class ClusterBatchesTest : public testing::Test {
 protected:
  static constexpr std::size_t kCount = 7;

  // So many extents, all of which n1 should hold, or none of which it should.
  std::vector<ManifestExtent> Extents(bool are_owned) {
    std::vector<ManifestExtent> extents;
    for (std::uint64_t i = 0; i < kCount; ++i)
      extents.push_back(one_.ExtentOf(are_owned, (are_owned ? 100 : 200) + i));
    return extents;
  }
  // Others hold, or promise, this one alone.
  void AnswerFor(const ManifestExtent& good, Holding holding) {
    one_.Answer<AskHoldings>([&](const AskHoldings& question) {
      Holdings holdings;
      for (const ManifestExtent& extent : question.extents)
        holdings.push_back(extent.id == good.id ? holding : Holding::kAbsent);
      return Result<Holdings>(holdings);
    });
  }

  OneNode one_{"n2", 2};
};

TEST_F(ClusterBatchesTest, WhatIsLostHoldsUpNoRepair) {
  const auto extents = Extents(true);
  one_.Publish("set", extents, 2, 31);
  for (const ManifestExtent& good : extents) {
    bool is_pulled = false;
    for (int round = 0; round < 20 && !is_pulled; ++round) {
      one_.Run(1s);
      AnswerFor(good, Holding::kHeld);
      is_pulled = !one_.Asked<PullExtent>().empty();
    }
    EXPECT_TRUE(is_pulled);
    one_.Answer<PullExtent>([&](const PullExtent& pull) {
      one_.extents.extents[pull.extent.id] = pull.extent;
      return Result<void>();
    });
  }
}

TEST_F(ClusterBatchesTest, WhatIsNotPromisedHoldsUpNoDrop) {
  const auto extents = Extents(false);
  one_.Publish("set", extents, 2, 31);
  for (const auto& extent : extents) one_.extents.extents[extent.id] = extent;
  for (const ManifestExtent& good : extents) {
    std::vector<ExtentId> drops;
    for (int round = 0; round < 20 && drops.empty(); ++round) {
      one_.Run(1s);
      AnswerFor(good, Holding::kPromised);
      drops = one_.TakeDrops();
    }
    EXPECT_EQ(drops, std::vector{good.id});
  }
}

TEST_F(ClusterBatchesTest, ANodeWithoutRoomDropsWhatIsOthers) {
  const auto missing = one_.ExtentOf(true, 100), extra = one_.ExtentOf(false, 200);
  one_.Publish("set", {missing, extra}, 2, 31);
  one_.extents.extents[extra.id] = extra;
  one_.extents.has_room = false;
  std::vector<ExtentId> drops;
  for (int round = 0; round < 10 && drops.empty(); ++round) {
    one_.Run(1s);
    one_.AnswerHoldings(Holding::kPromised);
    drops = one_.TakeDrops();
  }
  EXPECT_EQ(drops, std::vector{extra.id});
}

TEST_F(ClusterBatchesTest, WhatNobodyHasIsNotAskedForAllTheTime) {
  one_.Publish("set", {one_.ExtentOf(true, 100)}, 2, 31);
  std::size_t questions = 0;
  for (int step = 0; step < 1000; ++step) {
    one_.Run(10ms);
    questions += one_.Asked<AskHoldings>().size();
    one_.AnswerHoldings(Holding::kAbsent);
  }
  EXPECT_GT(questions, 0U);
  EXPECT_LE(questions, 3U * 11);  // Of three nodes, once a second.
}

TEST_F(ClusterBatchesTest, WhatCannotBeWrittenIsNotPulledAllTheTime) {
  one_.Publish("set", {one_.ExtentOf(true, 100)}, 2, 31);
  std::size_t pulls = 0;
  for (int step = 0; step < 1000; ++step) {
    one_.Run(10ms);
    one_.AnswerHoldings(Holding::kHeld);
    pulls += one_.Asked<PullExtent>().size();
    one_.Answer<PullExtent>([](const PullExtent&) {
      return Result<void>(Error{ErrorCode::kIo, "the disk fails"});
    });
  }
  EXPECT_GT(pulls, 0U);
  EXPECT_LE(pulls, 11U);
}

// A node walks all extents after a change alone: whatever changes is a change.
class ClusterLooksTest : public testing::Test {
 protected:
  ClusterLooksTest() {
    one_.Publish("set", {owned_, other_}, 2, 31);
    one_.extents.extents[owned_.id] = owned_;
    one_.Run(4s);
    EXPECT_TRUE(one_.Asked<AskHoldings>().empty());
  }
  bool IsAskedFor(const ManifestExtent& extent, bool with_promise) const {
    return std::ranges::any_of(one_.Asked<AskHoldings>(), [&](const AskHoldings& question) {
      return (question.promise_version != 0) == with_promise &&
             std::ranges::find(question.extents, extent) != question.extents.end();
    });
  }

  OneNode one_;
  const ManifestExtent owned_ = one_.ExtentOf(true, 21);
  const ManifestExtent other_ = one_.ExtentOf(false, 22);
};

TEST_F(ClusterLooksTest, AReplicaThatIsDamagedLaterIsRepaired) {
  one_.extents.extents.erase(owned_.id);
  one_.Run(3s);
  EXPECT_TRUE(IsAskedFor(owned_, false));
}

TEST_F(ClusterLooksTest, ANewMapIsFollowed) {
  auto changed = one_.slots;
  ++changed.map.version;
  const auto row = std::span(changed.map.rows)
                       .subspan(SlotOf(other_.id) * changed.map.row_size, changed.map.row_size);
  const std::uint16_t own = changed.map.Find("n1");
  std::ranges::replace(row, own, row.front());  // Each node is there once.
  row.front() = own;
  one_.Put(std::string(kSlotsKey), changed.Encode());
  one_.Run(3s);
  EXPECT_TRUE(IsAskedFor(other_, false));
}

TEST_F(ClusterLooksTest, WhatIsOthersIsDroppedOnceTheyAreUp) {
  const std::string owner = Key(kNodeKeys, one_.slots.OwnersOf(other_.id, 2).front());
  one_.Delete(owner);
  one_.extents.extents[other_.id] = other_;
  one_.Run(4s);
  EXPECT_TRUE(one_.Asked<AskHoldings>().empty());
  one_.Put(owner, NodeRecord{1, 0, ""}.Encode());
  one_.Run(3s);
  EXPECT_TRUE(IsAskedFor(other_, true));
}

TEST_F(ClusterLooksTest, OtherBytesAreDroppedOnceTheNodeMayConclude) {
  one_.is_store_silent = true;
  one_.Run(10s);  // Its lease ends.
  auto draft = owned_;
  ++draft.xxh3;
  one_.extents.extents[owned_.id] = draft;
  one_.Run(4s);
  EXPECT_TRUE(one_.TakeDrops().empty());
  one_.is_store_silent = false;
  one_.Answer<KeepLease>([](const KeepLease&) {
    return Result<std::optional<std::chrono::milliseconds>>(std::nullopt);
  });
  one_.Answer<MetaStore::ListRequest>(
      [&](const MetaStore::ListRequest& request) { return one_.state.List(request); });
  one_.Run(4s);
  EXPECT_EQ(one_.TakeDrops(), std::vector{owned_.id});
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

// What another thread has just written is in one of the two places where one looks.
TEST_F(ClusterBurialTest, WhatComesWhileOneLooksIsLeft) {
  Bury(extent_);
  one_.Run(12s);
  ASSERT_TRUE(IsBuried());
  one_.extents.arriving = extent_;
  EXPECT_FALSE(IsBuried());
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

TEST(ClusterNamesTest, ManifestsThatAreLostKeepNoOtherFromBeingFetched) {
  OneNode one;
  for (std::uint64_t i = 0; i < 20; ++i) {
    one.lost_bodies.insert(100 + i);
    one.Publish("lost" + std::to_string(i), {one.ExtentOf(true, 21)}, 2, 100 + i);
  }
  one.lost_bodies.insert(31);
  one.Publish("set", {one.ExtentOf(true, 21)}, 2, 31);
  one.Run(5s);
  EXPECT_EQ(one.node->view().names.Find("set")->manifest, nullptr);
  one.lost_bodies.erase(31);  // The node that has it is back.
  one.Run(5s);
  EXPECT_NE(one.node->view().names.Find("set")->manifest, nullptr);
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
