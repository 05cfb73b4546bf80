// Goal: a name that holds its manifest is published by one commit, which has its effect once, and
// is never without its manifest. Method: one node whose peers and store are in the test's hands;
// its commits are looked at.

#include <gtest/gtest.h>

#include "publication_fixture.h"

namespace ffrecord::server::cluster {
namespace {

using namespace std::chrono_literals;
using test::ClusterPublicationTest;
using test::Compares;
using test::Deletes;
using test::Puts;
using Fate = MetaStore::Outcome::Fate;

class OwnManifestTest : public ClusterPublicationTest {
 protected:
  OwnManifestTest() {
    RaiseTo(kOwnManifestLevel);
    one_.Put(std::string(kGenerationKey), {});
    one_.Run(1s);
    one_.commits.clear();
  }
  void RaiseTo(std::uint32_t level) {
    one_.Put(std::string(kLevelKey), LevelRecord{level}.Encode());
  }
  DatasetRecord Published() const {
    return DatasetRecord::Decode(one_.state.Get("datasets/set").value().value).value();
  }
  std::uint64_t generation() const { return one_.RevisionOf(std::string(kGenerationKey)); }
};

TEST_F(OwnManifestTest, ASmallManifestTakesOneCommitAndNoFile) {
  const std::uint64_t before = generation();
  Begin(Publication::Mode::kCreate, {extent_});
  one_.AnswerHoldings(Holding::kHeld);
  one_.Run(10ms);

  const auto result = Outcome();
  ASSERT_TRUE(result && *result);
  EXPECT_TRUE(one_.Asked<StoreBody>().empty());
  ASSERT_EQ(one_.commits.size(), 1U);
  EXPECT_FALSE(Puts(one_.commits[0], UploadKey(kAttempt)));
  // Publications of different uploads at the same time do not wait for each other.
  EXPECT_FALSE(Compares(one_.commits[0], std::string(kGenerationKey), before));
  const DatasetRecord record = Published();
  EXPECT_TRUE(record.body.empty());
  ASSERT_NE(record.manifest, nullptr);
  EXPECT_EQ(*record.manifest, one_.ManifestOf({extent_}));
  one_.Run(1ms);
  const NameTable::Name* const known = one_.node->view().names.Find("set");
  ASSERT_NE(known, nullptr);
  EXPECT_NE(known->manifest, nullptr);
  EXPECT_NE(one_.node->view().names.Find(extent_.id), nullptr);
}

TEST_F(OwnManifestTest, ALargeOneLiesInExtents) {
  std::vector<ManifestExtent> extents;
  for (std::uint32_t i = 0; i < 200; ++i) extents.push_back({MakeExtentId(kUpload, 0, i), 100, i});
  ASSERT_GT(one_.ManifestOf(extents).size(), DatasetRecord::kOwnManifestSizeMax);
  Begin(Publication::Mode::kCreate, extents);
  AnswerAll();
  ASSERT_NE(one_.RevisionOf("datasets/set"), 0U);
  EXPECT_EQ(Published().manifest, nullptr);
  EXPECT_EQ(Published().body.size(), 1U);
}

TEST_F(OwnManifestTest, BelowTheLevelASmallOneLiesInExtentsToo) {
  RaiseTo(kOwnManifestLevel - 1);
  Begin(Publication::Mode::kCreate, {extent_});
  AnswerAll();
  EXPECT_EQ(Published().manifest, nullptr);
  EXPECT_EQ(Published().body.size(), 1U);
}

// The name is gone again when a commit of the same attempt comes that was on its way for long.
TEST_F(OwnManifestTest, ACommitThatComesLateHasNoSecondEffect) {
  one_.Publish("other", {one_.ExtentOf(false, 31)}, 2, 31);
  const std::vector<std::vector<ManifestExtent>> kinds{
      {extent_}, {one_.ExtentOf(false, 31)}, {}};  // Uploaded; another name's; none.
  for (const auto& extents : kinds) {
    Begin(Publication::Mode::kCreate, extents);
    one_.AnswerHoldings(Holding::kHeld);
    one_.Run(10ms);
    const auto published = Outcome();
    ASSERT_TRUE(published && *published);
    const MetaStore::Commit late = one_.commits.back();
    one_.Delete("datasets/set");

    EXPECT_EQ(one_.state.TryCommit(late, one_.now).value().fate, Fate::kLost) << extents.size();
    one_.Run(1s);
  }
}

// Nodes may have stored its manifest, which is to be explained.
TEST_F(OwnManifestTest, AnAttemptThatBeganBelowTheLevelEndsAsItBegan) {
  for (const bool is_known : {true, false}) {
    one_.is_watch_silent = !is_known;
    one_.Put(UploadKey(kAttempt), {});
    Begin(Publication::Mode::kReplace, {extent_});
    one_.AnswerHoldings(Holding::kHeld);
    one_.Run(10ms);
    EXPECT_FALSE(Outcome());
    one_.is_watch_silent = false;
    for (int i = 0; i < 3; ++i) {  // It is told, its commit loses, and it looks again.
      one_.Run(1s);
      AnswerAll();
    }
    const auto result = Outcome();
    ASSERT_TRUE(result && *result) << is_known << (result ? result->error().message : "");
    EXPECT_EQ(Published().manifest, nullptr);
    EXPECT_EQ(one_.RevisionOf(UploadKey(kAttempt)), 0U);
    one_.Delete("datasets/set");
    one_.Run(1s);
  }
}

TEST_F(OwnManifestTest, AnAttemptWhoseNameWasRemovedSinceHasSucceeded) {
  Begin(Publication::Mode::kCreate, {extent_});
  one_.AnswerHoldings(Holding::kHeld);
  one_.Run(10ms);
  const auto first = Outcome();
  ASSERT_TRUE(first && *first);
  Begin(Publication::Mode::kRemove, {});
  ASSERT_TRUE(Outcome());
  ASSERT_EQ(one_.RevisionOf("datasets/set"), 0U);

  Begin(Publication::Mode::kCreate, {extent_});  // As by a client that has had no answer.
  const auto again = Outcome();
  ASSERT_TRUE(again && *again);
  EXPECT_EQ(again->value(), first->value());
  EXPECT_EQ(one_.RevisionOf("datasets/set"), 0U);
}

// It tells what has come of the attempt, though no node has anything to drop.
TEST_F(OwnManifestTest, ATombstoneStaysForItsGrace) {
  TombstoneRecord tombstone;
  tombstone.grace = 60s;
  tombstone.runs = RunsOf({BodyExtentOf(9)});
  one_.Put("deletes/name-1-0", tombstone.Encode());
  one_.Run(55s);
  const AskBuried question{"n1", {"deletes/name-1-0"}};
  EXPECT_EQ(one_.node->OnAsk(one_.now, question), Flags{false});
  one_.Run(10s);
  EXPECT_EQ(one_.node->OnAsk(one_.now, question), Flags{true});
}

TEST_F(OwnManifestTest, ANameWhoseOwnManifestIsDamagedIsRemovedAndItsExtentsStay) {
  DatasetRecord record;
  record.attempt = 31;
  record.manifest = std::make_shared<const Body>(std::size_t{20}, std::byte{7});
  one_.Put("datasets/set", record.Encode());
  one_.Run(1s);
  EXPECT_FALSE(one_.node->view().names.IsComplete());

  Begin(Publication::Mode::kRemove, {});
  EXPECT_EQ(one_.RevisionOf("datasets/set"), 0U);
  const auto& tombstones = one_.node->view().tombstones.all();
  ASSERT_EQ(tombstones.size(), 1U);
  EXPECT_EQ(tombstones.begin()->second.record.runs, RunsOf({BodyExtentOf(31)}));
}

}  // namespace
}  // namespace ffrecord::server::cluster
