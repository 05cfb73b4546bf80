// Goal: a node finds out by itself that the metadata was put back to an older state, and from then
// on drops nothing until an operator has confirmed it. Method: one node whose peers and store are
// in the test's hands; the store is put back.

#include <gtest/gtest.h>

#include "history_fixture.h"

namespace ffrecord::server::cluster {
namespace {

using namespace std::chrono_literals;
TEST_F(ClusterHistoryTest, WhatGoesOnIsTrusted) {
  GoOn();
  one_.Run(60s);
  EXPECT_TRUE(History().is_trusted());
  EXPECT_EQ(History().mark().incarnation, 3U);
  EXPECT_EQ(History().mark().revision, one_.state.revision());
  EXPECT_EQ(Record()->incarnation, 3U);
}

TEST_F(ClusterHistoryTest, AnOlderStateIsANewIncarnationThatNobodyHasConfirmed) {
  GoOn();
  one_.PutBack(*older_);
  one_.Run(2s);

  EXPECT_TRUE(History().is_frozen());
  const auto record = Record();
  EXPECT_FALSE(record->is_confirmed);
  EXPECT_NE(record->incarnation, 3U);
  EXPECT_EQ(record->ancestors, std::vector<std::uint64_t>{3});
  EXPECT_GT(record->map_version_min, one_.slots.map.version);
  EXPECT_NE(record->why.find("n1"), std::string::npos);
  EXPECT_EQ(History().why(), record->why);
}

TEST_F(ClusterHistoryTest, NothingIsDroppedUntilTheOlderStateIsConfirmed) {
  GoOn();
  one_.PutBack(*older_);
  one_.Run(2s);
  PutTombstone();
  one_.Run(60s);
  EXPECT_TRUE(one_.TakeDrops().empty());
  EXPECT_FALSE(one_.node->OnAsk(one_.now, AskBuried{"n1", {UploadTombstoneKey(kUpload)}}).front());

  Confirm();
  one_.Run(5s);

  EXPECT_TRUE(History().is_trusted());
  EXPECT_EQ(one_.TakeDrops(), std::vector{extent_.id});
}

TEST_F(ClusterHistoryTest, ASurplusReplicaIsKeptAsWell) {
  const auto extra = one_.ExtentOf(false, 22);
  one_.Publish("set", {extra}, 2, 32);
  one_.extents.extents[extra.id] = extra;
  one_.Run(1ms);
  older_ = std::make_unique<MetaState>(one_.state);
  GoOn();
  one_.asked.clear();
  one_.PutBack(*older_);
  for (int i = 0; i < 5; ++i) {
    one_.Run(2s);
    one_.AnswerHoldings(Holding::kPromised);
  }
  EXPECT_TRUE(one_.TakeDrops().empty());
  EXPECT_EQ(one_.node->OnAsk(one_.now, AskHoldings{"n1", one_.slots.map.version, {extra}}).front(),
            Holding::kHeld);
}

TEST_F(ClusterHistoryTest, TheKeysAreThoseOfTheOlderState) {
  GoOn();
  one_.PutBack(*older_);
  one_.Run(2s);

  EXPECT_EQ(one_.node->view().names.Find("later"), nullptr);
  EXPECT_NE(one_.node->view().mirror.Find(UploadKey(kUpload)), nullptr);
  EXPECT_EQ(one_.node->view().mirror.revision(), one_.state.revision());
  one_.Put(UploadKey(99), {});
  EXPECT_NE(one_.node->view().mirror.Find(UploadKey(99)), nullptr);
}

TEST_F(ClusterHistoryTest, AWatchThatIsSilentDoesNotHideIt) {
  GoOn();
  one_.PutBack(*older_, /*breaks_watch=*/false);
  one_.Run(5s);
  EXPECT_TRUE(History().is_frozen());
  EXPECT_EQ(one_.node->view().names.Find("later"), nullptr);
}

// Its numbers are as high as those that the node has seen, or higher: leases have ended since, and
// a node that knew less has gone on from there. Nothing but the keys tells the two apart.
TEST_F(ClusterHistoryTest, AnOlderStateThatHasGoneOnIsStillAnOlderState) {
  for (const int changes : {1, 2, 30}) {
    older_ = std::make_unique<MetaState>(one_.state);
    one_.Publish("later", {extent_}, 2, 31);
    one_.Run(5s);
    ASSERT_TRUE(History().is_trusted());

    one_.PutBack(*older_);
    for (int i = 0; i < changes; ++i) one_.Put(std::string(kGenerationKey), {});
    one_.Run(5s);

    EXPECT_TRUE(History().is_frozen()) << changes;
    EXPECT_EQ(one_.node->view().names.Find("later"), nullptr);
    Confirm();
    one_.Run(5s);
  }
}

TEST_F(ClusterHistoryTest, AStoreThatHasForgottenWhatItWasThenIsBelieved) {
  one_.Publish("later", {extent_}, 2, 31);
  one_.Run(5s);
  const auto mark = History().mark();
  EXPECT_EQ(mark.anchor.key, Key(kDatasetKeys, "later"));
  one_.Delete(mark.anchor.key);
  one_.state.CompactTo(one_.state.revision());

  one_.Start(mark);
  one_.Run(5s);

  EXPECT_TRUE(History().is_trusted());
  EXPECT_EQ(History().mark().anchor.key, UploadKey(kUpload));  // The newest that is left.
}

TEST_F(ClusterHistoryTest, ACommitWhoseRevisionHasBeenBeforeTellsOfIt) {
  GoOn();
  one_.PutBack(*older_, /*breaks_watch=*/false);
  const auto request = one_.node->BeginUpload(77, one_.now + 10s);
  EXPECT_NE(request, 0U);
  one_.Run(1ms);
  // Others were faster than the node's next look.
  for (int i = 0; i < 100; ++i)
    (void)one_.state.TryCommit({{}, {{std::string(kGenerationKey), {}}}, {}}, one_.now);
  one_.Run(5s);
  EXPECT_TRUE(History().is_frozen());
  EXPECT_FALSE(Record()->is_confirmed);
}

TEST_F(ClusterHistoryTest, WhatWasTrustedLastIsKept) {
  GoOn();
  const HistoryMark mark = History().mark();
  const KnownNames known = one_.node->TrustedNames();
  ASSERT_TRUE(known.contains("later"));
  one_.PutBack(*older_);
  one_.Run(10s);
  EXPECT_EQ(History().mark(), mark);
  EXPECT_EQ(one_.node->TrustedNames(), known);

  // Also over a start.
  one_.Start(mark, known);
  EXPECT_TRUE(History().is_frozen());
  EXPECT_EQ(History().mark(), mark);
  EXPECT_EQ(one_.node->TrustedNames(), known);

  Confirm();
  EXPECT_EQ(History().mark().incarnation, Record()->incarnation);
  EXPECT_FALSE(one_.node->TrustedNames().contains("later"));
}

TEST_F(ClusterHistoryTest, ANodeThatStartsLooksBeforeItPutsAnything) {
  GoOn();
  const HistoryMark mark = History().mark();
  one_.now += 60s;
  one_.state.ExpireLeases(one_.now);
  one_.PutBack(*older_, /*breaks_watch=*/false);
  one_.commits.clear();
  one_.Start(mark, one_.node->TrustedNames());

  ASSERT_FALSE(one_.commits.empty());
  EXPECT_EQ(one_.commits.front().puts.front().key, kHistoryKey);
  EXPECT_TRUE(History().is_frozen());
}

TEST_F(ClusterHistoryTest, ANodeThatLostItsLeaseLooksBeforeItPutsItsKey) {
  GoOn();
  one_.state.RevokeLease(one_.node->view().lease.lease());
  one_.PutBack(*older_, /*breaks_watch=*/false);
  one_.state.RevokeLease(one_.node->view().lease.lease());
  one_.commits.clear();
  one_.Run(10s);
  ASSERT_FALSE(one_.commits.empty());
  EXPECT_EQ(one_.commits.front().puts.front().key, kHistoryKey);
}

TEST_F(ClusterHistoryTest, WhatAnotherNodeHasNoticedHoldsForAll) {
  HistoryRecord record = *Record();
  record.ancestors = {3};
  record.incarnation = 4;
  record.is_confirmed = false;
  record.why = "n3 has noticed";
  one_.Put(std::string(kHistoryKey), record.Encode());
  EXPECT_TRUE(History().is_frozen());
  EXPECT_EQ(History().why(), "n3 has noticed");
  EXPECT_EQ(History().mark().incarnation, 3U);
  one_.Run(30s);
  EXPECT_EQ(Record()->incarnation, 4U);

  Confirm();
  EXPECT_TRUE(History().is_trusted());
  EXPECT_EQ(History().mark().incarnation, 4U);
}

TEST_F(ClusterHistoryTest, TheRightStateEndsIt) {
  GoOn();
  const MetaState newest = one_.state;
  one_.PutBack(*older_);
  one_.Run(5s);
  ASSERT_TRUE(History().is_frozen());
  one_.PutBack(newest);
  one_.Run(5s);
  EXPECT_TRUE(History().is_trusted());
  EXPECT_NE(one_.node->view().names.Find("later"), nullptr);
  EXPECT_EQ(Record()->incarnation, 3U);
}

TEST_F(ClusterHistoryTest, NothingIsPutIntoAStoreThatWasEmptied) {
  GoOn();
  one_.commits.clear();
  const HistoryMark mark = History().mark();
  one_.PutBack(MetaState());
  (void)one_.node->BeginUpload(77, one_.now + 30s);
  one_.Run(30s);

  EXPECT_TRUE(History().finds_nothing());
  EXPECT_TRUE(History().is_frozen());
  EXPECT_EQ(History().mark(), mark);
  EXPECT_TRUE(one_.node->TrustedNames().contains("later"));
  EXPECT_TRUE(one_.commits.empty());
  EXPECT_EQ(one_.state.revision(), 0U);
}

TEST_F(ClusterHistoryTest, TheStoreOfAnotherClusterIsLeftAlone) {
  GoOn();
  HistoryRecord record = *Record();
  record.incarnation = 99;
  MetaState other;
  for (int i = 0; i < 3; ++i)
    (void)other.TryCommit({{}, {{std::string(kClusterKey), std::vector<std::byte>(16)}}, {}},
                          one_.now);
  (void)other.TryCommit({{}, {{std::string(kHistoryKey), record.Encode()}}, {}}, one_.now);
  one_.commits.clear();
  one_.PutBack(other);
  one_.Run(10s);

  EXPECT_TRUE(History().is_frozen());
  EXPECT_EQ(Record()->incarnation, 99U);
  EXPECT_LT(one_.commits.size(), 30U);  // It tries again now and then.
}

TEST_F(ClusterHistoryTest, AStoreOfBeforeTheRecordIsAnOlderStateToo) {
  GoOn();
  MetaState before;
  (void)before.TryCommit({{}, {{std::string(kClusterKey), std::vector<std::byte>(16)}}, {}},
                         one_.now);
  one_.PutBack(before);
  one_.Run(2s);
  EXPECT_FALSE(History().finds_nothing());
  ASSERT_TRUE(Record());
  EXPECT_EQ(Record()->ancestors, std::vector<std::uint64_t>{3});
}

TEST_F(ClusterHistoryTest, WithoutAnAnswerNothingIsConcluded) {
  GoOn();
  PutTombstone();
  one_.Delete("datasets/later");
  one_.is_store_silent = true;
  MetaState same = one_.state;
  one_.PutBack(same);
  EXPECT_FALSE(History().is_checked());
  EXPECT_FALSE(one_.node->view().MayConclude(one_.now));
}

class LeadingHistoryTest : public ClusterHistoryTest {
 protected:
  LeadingHistoryTest() : ClusterHistoryTest("") {}
};

TEST_F(LeadingHistoryTest, ALeaderBeginsATerm) {
  ASSERT_TRUE(one_.node->leader().is_leading());
  ASSERT_TRUE(Record());
  EXPECT_TRUE(Record()->is_confirmed);
  EXPECT_EQ(Record()->terms.size(), 1U);
  EXPECT_EQ(History().mark().term.revision, one_.RevisionOf(std::string(kHistoryKey)));
}

TEST_F(LeadingHistoryTest, UploadsOfAnOlderStateAreNotGivenUpAndItsSlotMapIsANewOne) {
  GoOn();
  const std::uint32_t version = one_.node->view().slots.map.version;
  one_.PutBack(*older_);
  for (int i = 0; i < 20; ++i) {
    one_.Run(10s);
    one_.Answer<AskHeard>([](const AskHeard& question) {
      return Result<Flags>(Flags(question.uploads.size(), false));
    });
  }
  EXPECT_NE(one_.RevisionOf(UploadKey(kUpload)), 0U);
  EXPECT_EQ(one_.RevisionOf(UploadTombstoneKey(kUpload)), 0U);
  EXPECT_GT(one_.node->view().slots.map.version, version);

  // Once it is confirmed they have their whole time.
  Confirm();
  for (int i = 0; i < 4; ++i) {
    one_.Run(10s);
    one_.Answer<AskHeard>([](const AskHeard& question) {
      return Result<Flags>(Flags(question.uploads.size(), false));
    });
  }
  EXPECT_NE(one_.RevisionOf(UploadKey(kUpload)), 0U);
}

}  // namespace
}  // namespace ffrecord::server::cluster
