// Goal: what a node commits rests on everything that it has concluded from.
// Method: one node whose peers and store are in the test's hands; its commits are looked at.

#include <gtest/gtest.h>

#include "publication_fixture.h"

namespace ffrecord::server::cluster {
namespace {

using namespace std::chrono_literals;
using test::ClusterPublicationTest;
using test::Compares;
using test::Deletes;
using test::OneNode;
using test::Puts;

TEST_F(ClusterPublicationTest, ItsCommitRestsOnTheNameAndTheUploadAndPutsThatAnew) {
  const std::uint64_t upload = one_.RevisionOf(UploadKey(kUpload));
  Begin(Publication::Mode::kCreate, {extent_});
  const std::uint64_t attempt = one_.RevisionOf(UploadKey(kAttempt));
  AnswerAll();

  const auto result = Outcome();
  ASSERT_TRUE(result && *result);
  const MetaStore::Commit& commit = one_.commits.back();
  EXPECT_TRUE(Compares(commit, "datasets/set", 0));
  EXPECT_TRUE(Compares(commit, UploadKey(kUpload), upload));
  EXPECT_TRUE(Compares(commit, UploadKey(kAttempt), attempt));
  EXPECT_TRUE(Puts(commit, UploadKey(kUpload)));
  EXPECT_TRUE(Puts(commit, "generation"));
  EXPECT_TRUE(Deletes(commit, UploadKey(kAttempt)));
}

TEST_F(ClusterPublicationTest, ANameThatHasVersionsIsNotPublishedItself) {
  one_.Publish("set/.catalogue/step-00000000000000000000", {one_.ExtentOf(true, 5)}, 2, 99);
  one_.Run(1s);
  for (const auto mode : {Publication::Mode::kCreate, Publication::Mode::kReplace}) {
    Begin(mode, {extent_});
    AnswerAll();
    const Error error = Late();
    EXPECT_EQ(error.code, ErrorCode::kConflict);
    EXPECT_TRUE(Says(error, "set has versions")) << error.message;
  }
  EXPECT_EQ(one_.RevisionOf("datasets/set"), 0U);
}

TEST_F(ClusterPublicationTest, AnotherPublicationOfTheUploadComesBetween) {
  Begin(Publication::Mode::kCreate, {extent_});
  one_.Put(UploadKey(kUpload), {});
  AnswerAll();
  EXPECT_EQ(one_.RevisionOf("datasets/set"), 0U);  // Lost: it looks again,

  one_.Run(1s);
  AnswerAll();
  EXPECT_NE(one_.RevisionOf("datasets/set"), 0U);  // and finds that all is well.
}

TEST_F(ClusterPublicationTest, NothingIsConcludedFromAMirrorThatIsOlderThanTheGeneration) {
  one_.is_watch_silent = true;
  TombstoneRecord record;
  record.grace = 60s;
  record.runs = RunsOf({MakeExtentId(kAttempt, 0xFFFFFFFF, 0)});
  one_.Put("deletes/name-1-0", record.Encode());
  one_.Put("generation", {});
  Begin(Publication::Mode::kReplace, {extent_});
  AnswerAll();
  EXPECT_FALSE(Outcome());
  EXPECT_EQ(one_.RevisionOf(UploadKey(kAttempt)), 0U);  // It has not even begun.

  one_.is_watch_silent = false;
  one_.Run(1s);
  EXPECT_EQ(Refused(), ErrorCode::kConflict);
}

TEST_F(ClusterPublicationTest, ASilentHolderIsAskedAgain) {
  Begin(Publication::Mode::kCreate, {extent_});
  for (int round = 0; round < 4; ++round) {
    one_.Answer<AskHoldings>([](const AskHoldings&) {
      return Result<Holdings>(Error{ErrorCode::kDeadlineExceeded, "no answer"});
    });
    one_.Run(1s);
  }
  EXPECT_FALSE(Outcome());
  AnswerAll();
  EXPECT_NE(one_.RevisionOf("datasets/set"), 0U);
}

TEST_F(ClusterPublicationTest, AManifestIsStoredAsOftenAsAskedForThoughNodesDrain) {
  Begin(Publication::Mode::kCreate, {extent_}, 3);
  one_.AnswerHoldings(Holding::kHeld);
  one_.Run(10ms);
  ASSERT_EQ(one_.Asked<StoreBody>().size(), 3U);
  int answers = 0;
  one_.Answer<StoreBody>([&](const StoreBody&) {
    return ++answers < 3 ? Result<void>() : Error{ErrorCode::kUnavailable, "down"};
  });

  auto nodes = one_.slots.map.nodes;
  nodes[2].weight = nodes[3].weight = 0;
  SlotsRecord changed;
  changed.map = Place(one_.slots.map, nodes, {.row_size = 3, .allow_short = true}).value();
  one_.Put(std::string(kSlotsKey), changed.Encode());
  one_.Run(2s);

  EXPECT_FALSE(Outcome());
  EXPECT_EQ(one_.RevisionOf("datasets/set"), 0U);
}

TEST_F(ClusterPublicationTest, AnUploadThatTheMirrorDoesNotShowYetIsWaitedFor) {
  one_.is_watch_silent = true;
  one_.Put(UploadKey(22), {});
  Begin(Publication::Mode::kCreate, {one_.ExtentOf(true, 22)});
  EXPECT_FALSE(Outcome());

  one_.is_watch_silent = false;
  one_.Run(1s);
  AnswerAll();
  EXPECT_NE(one_.RevisionOf("datasets/set"), 0U);
}

TEST_F(ClusterPublicationTest, AnUploadThatTheStoreDoesNotHaveIsRefused) {
  Begin(Publication::Mode::kCreate, {one_.ExtentOf(true, 22)});
  EXPECT_EQ(Refused(), ErrorCode::kConflict);
}

TEST_F(ClusterPublicationTest, TooFewHoldersAreRefused) {
  Begin(Publication::Mode::kCreate, {extent_});
  for (int round = 0; round < 4; ++round) one_.AnswerHoldings(Holding::kAbsent);
  EXPECT_EQ(Refused(), ErrorCode::kConflict);
}

TEST_F(ClusterPublicationTest, ReplicasOfANameWithFewerDoNotCount) {
  one_.Publish("other", {extent_}, 1, 31);
  Begin(Publication::Mode::kCreate, {extent_}, 2);
  EXPECT_EQ(Refused(), ErrorCode::kConflict);
}

TEST_F(ClusterPublicationTest, SharedExtentsRestOnTheirName) {
  one_.Publish("other", {extent_}, 2, 31);
  const std::uint64_t other = one_.RevisionOf("datasets/other");
  Begin(Publication::Mode::kCreate, {extent_}, 2);
  AnswerAll();
  EXPECT_TRUE(Compares(one_.commits.back(), "datasets/other", other));
  EXPECT_NE(one_.RevisionOf("datasets/set"), 0U);
}

TEST_F(ClusterPublicationTest, AnAttemptWhoseNameWasRemovedIsRefused) {
  TombstoneRecord record;
  record.grace = 60s;
  record.runs = RunsOf({MakeExtentId(kAttempt, 0xFFFFFFFF, 0)});
  one_.Put("deletes/name-1-0", record.Encode());
  Begin(Publication::Mode::kReplace, {extent_});
  EXPECT_EQ(Refused(), ErrorCode::kConflict);
}

TEST_F(ClusterPublicationTest, ARemovalListsWhatNoOtherNameHasAndRestsOnTheGeneration) {
  const auto own = one_.ExtentOf(false, kUpload);
  one_.Publish("set", {extent_, own}, 2, 31);
  one_.Publish("other", {extent_}, 2, 32);
  one_.Put("generation", {});
  const std::uint64_t generation = one_.RevisionOf("generation");
  Begin(Publication::Mode::kRemove, {});

  const MetaStore::Commit& commit = one_.commits.back();
  EXPECT_TRUE(Compares(commit, "generation", generation));
  EXPECT_TRUE(Deletes(commit, "datasets/set"));
  const auto tombstone = TombstoneRecord::Decode(commit.puts.front().value).value();
  EXPECT_TRUE(tombstone.Names(own.id));
  EXPECT_FALSE(tombstone.Names(extent_.id));
}

TEST_F(ClusterPublicationTest, ARemovalWithoutAnAnswerIsNotMadeAgainOfWhatCameLater) {
  one_.Publish("set", {extent_}, 2, 31);
  one_.loses_answers = true;
  Begin(Publication::Mode::kRemove, {}, 2, 1ms);
  ASSERT_EQ(one_.RevisionOf("datasets/set"), 0U);
  one_.loses_answers = false;
  one_.Publish("set", {extent_}, 2, 32);  // By another client, who is told that it was published.
  one_.Run(2s);
  EXPECT_NE(one_.RevisionOf("datasets/set"), 0U);
  EXPECT_EQ(Refused(), ErrorCode::kConflict);
}

TEST_F(ClusterPublicationTest, ANameWhoseManifestIsLostIsRemovedAndItsExtentsStay) {
  one_.lost_bodies = {31, 32};
  one_.Publish("set", {extent_}, 2, 31);
  one_.Publish("other", {extent_}, 2, 32);
  one_.Run(61s);
  one_.commits.clear();
  Begin(Publication::Mode::kRemove, {});
  const auto result = Outcome();
  ASSERT_TRUE(result && *result);
  EXPECT_EQ(one_.RevisionOf("datasets/set"), 0U);
  ASSERT_EQ(one_.commits.size(), 1U);
  // Its list of files is on record as removed, for the next rebuild; nothing else is.
  const auto& tombstones = one_.node->view().tombstones.all();
  ASSERT_EQ(tombstones.size(), 1U);
  EXPECT_EQ(tombstones.begin()->second.record.runs, RunsOf({BodyExtentOf(31)}));
}

TEST_F(ClusterPublicationTest, ANameIsNotRemovedWithoutItsManifestBeforeThatWasSought) {
  one_.is_store_silent = true;
  one_.lost_bodies = {31};
  one_.Publish("other", {extent_}, 2, 31);
  one_.Publish("set", {extent_}, 2, 32);
  one_.is_store_silent = false;
  Begin(Publication::Mode::kRemove, {});
  one_.Run(5s);
  EXPECT_FALSE(Outcome());
  EXPECT_NE(one_.RevisionOf("datasets/set"), 0U);
}

// The node that has it may be away for a moment.
TEST_F(ClusterPublicationTest, ANameWhoseOwnManifestIsMissingIsNotRemovedAtOnce) {
  one_.lost_bodies = {31};
  one_.Publish("set", {extent_}, 2, 31);
  one_.Run(10s);
  Begin(Publication::Mode::kRemove, {});
  one_.Run(5s);
  EXPECT_FALSE(Outcome());
  EXPECT_NE(one_.RevisionOf("datasets/set"), 0U);
}

// One tombstone holds no more than so many runs.
TEST_F(ClusterPublicationTest, ARemovalOfManyRunsHasSeveralTombstones) {
  std::vector<ManifestExtent> extents;
  for (std::uint32_t i = 0; i < 11'000; ++i)
    extents.push_back({MakeExtentId(kUpload, 0, 2 * i), 100, i});
  one_.Publish("set", extents, 2, 31);
  one_.Put("generation", {});
  Begin(Publication::Mode::kRemove, {});

  std::map<std::string, TombstoneRecord> tombstones;
  for (const MetaStore::Put& put : one_.commits.back().puts)
    if (put.key.starts_with(kTombstoneKeys))
      tombstones.emplace(put.key, TombstoneRecord::Decode(put.value).value());
  ASSERT_EQ(tombstones.size(), 2U);
  for (const ManifestExtent& extent : extents)
    EXPECT_TRUE(std::ranges::any_of(
        tombstones, [&](const auto& entry) { return entry.second.Names(extent.id); }));
}

TEST_F(ClusterPublicationTest, ALostManifestIsNamedWhereItKeepsOthersFromBeingPublished) {
  one_.lost_bodies = {31};
  one_.Publish("other", {extent_}, 2, 31);
  one_.Run(1s);
  Begin(Publication::Mode::kCreate, {one_.ExtentOf(true, kUpload)});
  one_.Run(61s);
  const auto result = Outcome();
  ASSERT_TRUE(result && !*result);
  EXPECT_EQ(result->error().code, ErrorCode::kUnavailable);
  EXPECT_NE(result->error().message.find("(other)"), std::string::npos) << result->error().message;
}

// --- Too late: the one who asked hears what it was waited for ------------------------------------

TEST_F(ClusterPublicationTest, ACoordinatorThatDoesNotAnswerIsTheReasonGiven) {
  one_.is_store_silent = true;
  Begin(Publication::Mode::kCreate, {extent_}, 2, 61s);
  const Error error = Late();
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_TRUE(Says(error, "the coordinator does not answer this daemon")) << error.message;
  EXPECT_FALSE(Says(error, "may still take effect")) << error.message;
}

TEST_F(ClusterPublicationTest, NewsThatDoNotComeAreTheReasonGiven) {
  one_.is_watch_silent = true;
  one_.Put("generation", {});
  Begin(Publication::Mode::kCreate, {extent_}, 2, 61s);
  const Error error = Late();
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_TRUE(Says(error, "has not told this daemon of the last changes")) << error.message;
}

TEST_F(ClusterPublicationTest, NodesThatDoNotSayWhatTheyHoldAreTheReasonGiven) {
  Begin(Publication::Mode::kCreate, {extent_});
  for (int round = 0; round < 130; ++round) {
    one_.Answer<AskHoldings>([](const AskHoldings& question) {
      return Result<Holdings>(Error{ErrorCode::kUnavailable, question.node + " refuses"});
    });
    one_.Run(500ms);
  }
  const Error error = Late();
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_TRUE(Says(error, "do not say which extents they hold")) << error.message;
  EXPECT_TRUE(Says(error, ": n") && Says(error, " refuses")) << error.message;
}

TEST_F(ClusterPublicationTest, NodesThatHaveNotAnsweredAreTheReasonGiven) {
  Begin(Publication::Mode::kCreate, {extent_}, 2, 61s);
  EXPECT_TRUE(Says(Late(), "waiting for n")) << "the questions wait";
}

TEST_F(ClusterPublicationTest, NodesThatDoNotStoreTheListOfFilesAreTheReasonGiven) {
  Begin(Publication::Mode::kCreate, {extent_});
  one_.AnswerHoldings(Holding::kHeld);
  one_.Run(10ms);
  for (int round = 0; round < 130; ++round) {
    one_.Answer<StoreBody>([](const StoreBody& store) {
      return Result<void>(Error{ErrorCode::kUnavailable, store.node + " is ill"});
    });
    one_.Run(500ms);
  }
  const Error error = Late();
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_TRUE(Says(error, "stored in 0 of ")) << error.message;
  EXPECT_TRUE(Says(error, " is ill")) << error.message;
}

TEST_F(ClusterPublicationTest, AnUploadThatWasGivenUpDoesNotBeginAnew) {
  TombstoneRecord record;
  record.upload = 99;
  one_.Put(UploadTombstoneKey(99), record.Encode());
  (void)one_.node->BeginUpload(99, one_.now + 5s);
  one_.Run(1s);
  EXPECT_EQ(Refused(), ErrorCode::kConflict);
  EXPECT_EQ(one_.RevisionOf(UploadKey(99)), 0U);
}

class ClusterLeaderTest : public testing::Test {
 protected:
  ClusterLeaderTest() : one_("") {
    one_.Run(3s);
    one_.commits.clear();
  }
  std::uint64_t fence() const { return one_.RevisionOf(std::string(kLeaderKey)); }
  template <class Question>
  void AnswerFlags(bool flag) {
    one_.Answer<Question>([&](const Question& question) {
      if constexpr (std::is_same_v<Question, AskHeard>)
        return Result<Flags>(Flags(question.uploads.size(), flag));
      else
        return Result<Flags>(Flags(question.keys.size(), flag));
    });
  }

  OneNode one_;
};

TEST_F(ClusterLeaderTest, AChangeOfTheSlotMapComparesItsKey) {
  ASSERT_TRUE(one_.node->leader().is_leading());
  one_.Put("members/n4", MemberRecord{MemberRecord::State::kDraining, 1, "d-n4"}.Encode());
  one_.Run(2s);
  ASSERT_FALSE(one_.commits.empty());
  EXPECT_TRUE(Puts(one_.commits.front(), std::string(kSlotsKey)));
  EXPECT_TRUE(Compares(one_.commits.front(), std::string(kLeaderKey), fence()));
}

TEST_F(ClusterLeaderTest, OneThatWaitsIsNeitherPlacedNorAskedNorLetIn) {
  one_.Put("members/n5", MemberRecord{MemberRecord::State::kWaiting, 1, "d-n5"}.Encode());
  one_.Put(Key(kNodeKeys, "n5"), NodeRecord{1, 0, ""}.Encode());
  one_.Put("deletes/name-1-0", TombstoneRecord{}.Encode());
  one_.Run(5s);
  EXPECT_TRUE(one_.commits.empty());
  EXPECT_EQ(one_.Asked<AskBuried>().size(), 4U);
}

TEST(ClusterApprovalTest, ALeaderThatMayLetsThoseInThatWait) {
  OneNode one("", 4096, /*approves_members=*/true);
  one.Run(3s);
  one.commits.clear();
  const MemberRecord waiting{MemberRecord::State::kWaiting, 3, "d-n5"};
  one.Put("members/n5", waiting.Encode());
  one.Put("members/n6", MemberRecord{MemberRecord::State::kOut, 1, "d-n6"}.Encode());
  one.Run(2s);

  ASSERT_FALSE(one.commits.empty());
  const MetaStore::Commit& commit = one.commits.front();
  ASSERT_EQ(commit.puts.size(), 1U);
  EXPECT_EQ(commit.puts.front().key, "members/n5");
  EXPECT_EQ(MemberRecord::Decode(commit.puts.front().value).value(),
            (MemberRecord{MemberRecord::State::kIn, 3, "d-n5"}));
  EXPECT_TRUE(Compares(commit, std::string(kLeaderKey), one.RevisionOf(std::string(kLeaderKey))));
}

TEST_F(ClusterLeaderTest, ASilentUploadIsGivenUpAndOneThatGoesOnIsNot) {
  one_.Put(UploadKey(5), {});
  one_.Run(65s);
  ASSERT_EQ(one_.Asked<AskHeard>().size(), 4U);
  AnswerFlags<AskHeard>(true);
  one_.Run(50s);  // Not asked again before another grace.
  EXPECT_TRUE(one_.Asked<AskHeard>().empty());
  EXPECT_TRUE(one_.commits.empty());

  one_.Run(15s);
  AnswerFlags<AskHeard>(false);
  ASSERT_EQ(one_.commits.size(), 1U);
  EXPECT_TRUE(Deletes(one_.commits.front(), UploadKey(5)));
  EXPECT_TRUE(Puts(one_.commits.front(), UploadTombstoneKey(5)));
  EXPECT_TRUE(Compares(one_.commits.front(), std::string(kLeaderKey), fence()));
}

// It may be the one that the client sends to: it is busy, or the two cannot reach each other.
TEST_F(ClusterLeaderTest, AnUploadIsNotGivenUpWhileANodeThatIsUpDoesNotAnswer) {
  one_.Put(UploadKey(5), {});
  const auto answer_but_n3 = [this] {
    one_.Answer<AskHeard>([&](const AskHeard& question) {
      if (question.node == "n3")
        return Result<Flags>(Error{ErrorCode::kUnavailable, "it does not answer"});
      return Result<Flags>(Flags(question.uploads.size(), false));
    });
  };
  one_.Run(65s);
  ASSERT_EQ(one_.Asked<AskHeard>().size(), 4U);
  answer_but_n3();
  EXPECT_TRUE(one_.commits.empty());

  one_.Delete(Key(kNodeKeys, "n3"));  // Its lease has ended.
  one_.Run(65s);
  ASSERT_EQ(one_.Asked<AskHeard>().size(), 4U);
  answer_but_n3();
  ASSERT_FALSE(one_.commits.empty());
  EXPECT_TRUE(Deletes(one_.commits.front(), UploadKey(5)));
}

TEST_F(ClusterLeaderTest, WhatIsHeardWhileTheStoreIsInDoubtIsNotForgotten) {
  one_.Put(UploadKey(5), {});
  one_.Run(65s);
  one_.is_store_silent = true;
  one_.PutBack(one_.state);  // The watch breaks, and the store has nothing new to tell.
  AnswerFlags<AskHeard>(true);
  one_.is_store_silent = false;
  one_.Answer<MetaStore::ListRequest>(
      [&](const MetaStore::ListRequest& request) { return one_.state.List(request); });
  one_.Run(50s);
  EXPECT_TRUE(one_.Asked<AskHeard>().empty());
  one_.Run(15s);
  EXPECT_FALSE(one_.Asked<AskHeard>().empty());
}

TEST_F(ClusterLeaderTest, ATombstoneGoesWhenAllNodesSayThatNothingIsLeft) {
  one_.Put("deletes/name-1-0", TombstoneRecord{}.Encode());
  one_.Run(3s);
  int answers = 0;
  one_.Answer<AskBuried>([&](const AskBuried&) { return Result<Flags>(Flags{answers++ > 0}); });
  EXPECT_EQ(answers, 4);
  EXPECT_TRUE(one_.commits.empty());

  one_.Run(3s);
  AnswerFlags<AskBuried>(true);
  ASSERT_EQ(one_.commits.size(), 1U);
  EXPECT_TRUE(Deletes(one_.commits.front(), "deletes/name-1-0"));
}

TEST_F(ClusterLeaderTest, TombstonesInTheirGraceKeepNoOthers) {
  for (int i = 0; i < 200; ++i)
    one_.Put("deletes/name-" + std::to_string(i), TombstoneRecord{}.Encode());
  one_.Put(UploadTombstoneKey(5), TombstoneRecord{}.Encode());
  for (int round = 0; round < 20; ++round) {
    one_.Run(1s);
    one_.Answer<AskBuried>([](const AskBuried& question) {
      Flags flags;
      for (const std::string& key : question.keys) flags.push_back(key == UploadTombstoneKey(5));
      return Result<Flags>(flags);
    });
  }
  EXPECT_EQ(one_.RevisionOf(UploadTombstoneKey(5)), 0U);
}

TEST_F(ClusterLeaderTest, AMapIsAtItsEndOnceThoseWhoOwnSlotsHaveAll) {
  one_.Put("members/n4", MemberRecord{MemberRecord::State::kDraining, 1, "d-n4"}.Encode());
  const auto slots = [&] {
    return SlotsRecord::Decode(one_.state.Get(std::string(kSlotsKey))->value).value();
  };
  bool is_filled = false;  // n3.
  const auto ask = [&] {
    for (int round = 0; round < 10; ++round) {
      one_.Run(1s);
      one_.Answer<AskFilled>([&](const AskFilled& question) -> Result<Flags> {
        EXPECT_NE(question.node, "n4");  // It is to own nothing, and may be stopped already.
        return Flags{question.node != "n3" || is_filled};
      });
    }
  };
  ask();
  EXPECT_TRUE(slots().previous);
  is_filled = true;
  ask();
  EXPECT_FALSE(slots().previous);
}

TEST_F(ClusterLeaderTest, AnswersAreAboutTheTombstoneThatWasAskedAbout) {
  one_.Put("deletes/name-1-0", TombstoneRecord{}.Encode());
  one_.Run(3s);
  one_.Put("deletes/name-1-0", TombstoneRecord{}.Encode());
  AnswerFlags<AskBuried>(true);
  EXPECT_NE(one_.RevisionOf("deletes/name-1-0"), 0U);
}

TEST_F(ClusterLeaderTest, OneThatIsDeposedDoesNothing) {
  one_.Put("deletes/name-1-0", TombstoneRecord{}.Encode());
  one_.Run(3s);
  one_.Put(std::string(kLeaderKey), OneNode::Bytes("n2"));
  AnswerFlags<AskBuried>(true);
  EXPECT_FALSE(one_.node->leader().is_leading());
  EXPECT_TRUE(one_.commits.empty());
}

}  // namespace
}  // namespace ffrecord::server::cluster
