// Goal: the one who asks for a change of a name is told if it may still take effect, whatever the
// reason of the refusal, and only then.
// Method: one node whose peers and store are in the test's hands; commits get no answer.

#include <gtest/gtest.h>

#include "libffrecord/base/hex.h"
#include "publication_fixture.h"
#include "server/cluster/rebuild.h"

namespace ffrecord::server::cluster {
namespace {

using namespace std::chrono_literals;
using test::Puts;

class UnansweredCommitsTest : public test::ClusterPublicationTest {
 protected:
  // Up to its commit, which is on its way for long: that.
  MetaStore::Commit BeginDelayed(Mode mode = Mode::kCreate) {
    Begin(mode, {extent_});
    one_.AnswerHoldings(Holding::kHeld);
    one_.Run(10ms);
    one_.delays_commits = true;
    one_.Answer<StoreBody>([](const StoreBody&) { return Result<void>(); });
    EXPECT_TRUE(Puts(one_.commits.back(), "datasets/set"));
    return one_.commits.back();
  }
  bool IsCarriedOut(const MetaStore::Commit& commit) {
    const auto outcome = one_.state.TryCommit(commit, one_.now);
    return outcome && outcome.value().fate == MetaStore::Outcome::Fate::kCommitted;
  }
  static bool IsToldInDoubt(const Error& error) { return Says(error, "may still take effect"); }
};

// It may be done, whatever is waited for since.
TEST_F(UnansweredCommitsTest, ACommitWhoseAnswerWasLostIsNotCalledUndone) {
  Begin(Mode::kCreate, {extent_});
  one_.AnswerHoldings(Holding::kHeld);
  one_.Run(10ms);
  ASSERT_FALSE(one_.Asked<StoreBody>().empty());
  one_.loses_answers = true;
  one_.is_watch_silent = true;
  one_.Answer<StoreBody>([&](const StoreBody&) { return Result<void>(); });
  one_.is_store_silent = true;
  one_.Run(61s);
  const Error error = Late();
  EXPECT_EQ(error.code, ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(IsToldInDoubt(error)) << error.message;
  EXPECT_TRUE(Says(error, "the coordinator does not answer this daemon")) << error.message;
  // The same attempt finds that it was.
  ASSERT_NE(one_.RevisionOf("datasets/set"), 0U);
  one_.is_store_silent = one_.is_watch_silent = one_.loses_answers = false;
  one_.Start();
  Begin(Mode::kCreate, {extent_});
  const auto again = Outcome();
  ASSERT_TRUE(again && *again);
  EXPECT_EQ(again->value(), one_.RevisionOf("datasets/set"));
}

// What keeps it from another commit says nothing of the first one.
TEST_F(UnansweredCommitsTest, ACommitOnItsWayIsNotCalledUndoneWhereNodesGoDown) {
  const MetaStore::Commit commit = BeginDelayed();
  for (const char* const node : {"n2", "n3", "n4"}) one_.Delete(Key(kNodeKeys, node));
  one_.Run(61s);
  const Error error = Late();
  EXPECT_EQ(error.code, ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(Says(error, "1 failure domains are up")) << error.message;
  EXPECT_TRUE(IsToldInDoubt(error)) << error.message;
  EXPECT_TRUE(IsCarriedOut(commit));
}

TEST_F(UnansweredCommitsTest, ACommitOnItsWayIsNotCalledUndoneWhereAListOfFilesIsLost) {
  const MetaStore::Commit commit = BeginDelayed();
  one_.lost_bodies = {31};
  one_.Publish("other", {one_.ExtentOf(true, 77)}, 2, 31);
  one_.Run(20s);  // It does not wait until its deadline.
  const Error error = Late();
  EXPECT_EQ(error.code, ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(Says(error, "(other)")) << error.message;
  EXPECT_TRUE(IsToldInDoubt(error)) << error.message;
  EXPECT_TRUE(IsCarriedOut(commit));
}

TEST_F(UnansweredCommitsTest, ACommitOnItsWayIsNotCalledUndoneWhereAQuotaIsPassed) {
  quotas_ = {{"", 300}};
  const MetaStore::Commit commit = BeginDelayed();
  one_.Publish("other", {one_.ExtentOf(true, 77), one_.ExtentOf(true, 78), one_.ExtentOf(true, 79)},
               2, 31);
  one_.Run(1s);
  const Error error = Late();
  EXPECT_EQ(error.code, ErrorCode::kIo);
  EXPECT_TRUE(Says(error, "more than the quota of 300")) << error.message;
  EXPECT_TRUE(IsToldInDoubt(error)) << error.message;
  EXPECT_TRUE(IsCarriedOut(commit));
}

TEST_F(UnansweredCommitsTest, ACommitOnItsWayIsNotCalledUndoneWhereTheNameIsTaken) {
  (void)BeginDelayed();
  one_.Publish("set", {one_.ExtentOf(true, 77)}, 2, 31);
  one_.Run(1s);
  const Error error = Late();
  EXPECT_EQ(error.code, ErrorCode::kConflict);
  EXPECT_TRUE(IsToldInDoubt(error)) << error.message;
}

// Sizes are on record without the lists of files, so that refusal is final.
TEST_F(UnansweredCommitsTest, AQuotaThatIsPassedIsToldAtOnceThoughAListOfFilesIsMissing) {
  quotas_ = {{"", 199}};
  one_.lost_bodies = {31};
  one_.Publish("other", {one_.ExtentOf(true, 77)}, 2, 31);
  Begin(Mode::kCreate, {extent_});
  const Error error = Late();
  EXPECT_EQ(error.code, ErrorCode::kIo);
  EXPECT_TRUE(Says(error, "more than the quota of 199")) << error.message;
}

TEST_F(UnansweredCommitsTest, WhatHasNotCommittedIsNotSaidToBeInDoubt) {
  quotas_ = {{"", 99}};
  Begin(Mode::kCreate, {extent_});
  const Error full = Late();
  EXPECT_EQ(full.code, ErrorCode::kIo);
  EXPECT_FALSE(IsToldInDoubt(full)) << full.message;

  // Nor what has lost, as its answer said.
  quotas_ = {};
  Begin(Mode::kCreate, {extent_});
  one_.AnswerHoldings(Holding::kHeld);
  one_.Run(10ms);
  one_.Put(UploadKey(kUpload), {});
  one_.Answer<StoreBody>([](const StoreBody&) { return Result<void>(); });
  ASSERT_TRUE(Puts(one_.commits.back(), "datasets/set"));
  one_.Publish("set", {one_.ExtentOf(true, 77)}, 2, 31);
  one_.Run(1s);
  const Error taken = Late();
  EXPECT_EQ(taken.code, ErrorCode::kConflict);
  EXPECT_FALSE(IsToldInDoubt(taken)) << taken.message;
}

// What others have made of the name since: it is removed, or published again.
class AttemptThatIsPastTest : public UnansweredCommitsTest,
                              public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(IsRemoved, AttemptThatIsPastTest, testing::Bool());

TEST_P(AttemptThatIsPastTest, HasHadItsEffect) {
  const MetaStore::Commit commit = BeginDelayed();
  ASSERT_TRUE(IsCarriedOut(commit));
  const std::uint64_t revision = one_.RevisionOf("datasets/set");
  // Its list of files is going.
  TombstoneRecord record;
  record.grace = 60s;
  record.runs = RunsOf({BodyExtentOf(kAttempt)});
  MetaStore::Commit change{{}, {{"deletes/name-" + Hex(revision) + "-0", record.Encode()}}, {}};
  if (GetParam()) change.deletes.push_back("datasets/set");
  (void)one_.state.TryCommit(change, one_.now);
  if (!GetParam()) one_.Publish("set", {one_.ExtentOf(true, 77)}, 2, 31);
  one_.Run(1s);
  auto result = Outcome();
  ASSERT_TRUE(result && *result) << (result ? result->error().message : "it goes on");
  EXPECT_EQ(result->value(), revision);

  // Another node, which the client asks the same, knows of no try.
  one_.Start();
  Begin(Mode::kCreate, {extent_});
  one_.Run(1s);
  result = Outcome();
  ASSERT_TRUE(result && *result) << (result ? result->error().message : "it goes on");
  EXPECT_EQ(result->value(), revision);
}

// Revisions do not come again, so its commit is as good as lost.
TEST_F(UnansweredCommitsTest, ASwapIsOverOnceTheNameIsAtAnotherRevision) {
  one_.Publish("set", {one_.ExtentOf(true, 77)}, 2, 31);
  one_.Run(1s);
  expected_revision_ = one_.RevisionOf("datasets/set");
  const MetaStore::Commit commit = BeginDelayed(Mode::kSwap);
  one_.Publish("set", {one_.ExtentOf(true, 78)}, 2, 32);
  one_.Run(1s);
  const Error error = Late();
  EXPECT_EQ(error.code, ErrorCode::kConflict) << error.message;
  EXPECT_FALSE(IsToldInDoubt(error)) << error.message;
  EXPECT_FALSE(IsCarriedOut(commit));
}

// What stands under the name by then is not what was to be removed.
TEST_F(UnansweredCommitsTest, ARemovalOnItsWayWhenTheMetadataIsPutBackRemovesNoOtherState) {
  one_.Publish("set", {one_.ExtentOf(true, 77)}, 2, 31);
  HistoryRecord history;
  history.incarnation = 3;
  one_.Put(std::string(kHistoryKey), history.Encode());
  one_.Run(5s);
  const MetaState older = one_.state;
  one_.Publish("set", {one_.ExtentOf(true, 78)}, 2, 32);
  one_.Run(5s);
  one_.holds_commits = true;
  Begin(Mode::kRemove, {});
  ASSERT_EQ(one_.Asked<MetaStore::Commit>().size(), 1U);
  one_.holds_commits = false;
  one_.PutBack(older);
  one_.Run(5s);
  const Error error = Late();
  EXPECT_EQ(error.code, ErrorCode::kConflict) << error.message;
  EXPECT_TRUE(IsToldInDoubt(error)) << error.message;
  EXPECT_NE(one_.RevisionOf("datasets/set"), 0U);
}

// A rebuild brings it back.
class NameThatAnOlderStateLacksTest : public UnansweredCommitsTest,
                                      public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(TriedBefore, NameThatAnOlderStateLacksTest, testing::Bool());

TEST_P(NameThatAnOlderStateLacksTest, IsNotGone) {
  HistoryRecord history;
  history.incarnation = 3;
  one_.Put(std::string(kHistoryKey), history.Encode());
  one_.Run(5s);
  const MetaState older = one_.state;
  one_.Publish("set", {one_.ExtentOf(true, 77)}, 2, 31);
  one_.Run(5s);
  one_.delays_commits = GetParam();
  if (GetParam()) Begin(Mode::kRemove, {});  // And it is never carried out.
  one_.PutBack(older, /*breaks_watch=*/false);
  one_.delays_commits = false;
  if (!GetParam()) Begin(Mode::kRemove, {});
  one_.Run(100ms);
  EXPECT_FALSE(Outcome());  // The node does not know yet that it is an older state.
  one_.Run(10s);
  ASSERT_TRUE(MayLackNames(one_.node->view()));
  EXPECT_EQ(Late().code, ErrorCode::kNotFound);
}

TEST_F(UnansweredCommitsTest, ACommitUnderWayWhenTheNodeStopsIsNotCalledUndone) {
  const Error stopped{ErrorCode::kUnavailable, "the daemon stops"};
  Begin(Mode::kCreate, {extent_});
  one_.node->GiveUp(stopped);
  const Error before = Late();
  EXPECT_EQ(before.code, ErrorCode::kUnavailable);
  EXPECT_FALSE(IsToldInDoubt(before)) << before.message;

  one_.asked.clear();
  Begin(Mode::kCreate, {extent_});
  one_.AnswerHoldings(Holding::kHeld);
  one_.Run(10ms);
  one_.holds_commits = true;
  one_.Answer<StoreBody>([](const StoreBody&) { return Result<void>(); });
  ASSERT_EQ(one_.Asked<MetaStore::Commit>().size(), 1U);
  one_.node->GiveUp(stopped);
  const Error after = Late();
  EXPECT_EQ(after.code, ErrorCode::kDeadlineExceeded);
  EXPECT_TRUE(Says(after, "the daemon stops")) << after.message;
  EXPECT_TRUE(IsToldInDoubt(after)) << after.message;
}

}  // namespace
}  // namespace ffrecord::server::cluster
