// Goal: what a node commits rests on everything that it has concluded from.
// Method: one node whose peers and store are in the test's hands; its commits are looked at.

#include <gtest/gtest.h>

#include "one_node.h"

namespace ffrecord::server::cluster {
namespace {

using namespace std::chrono_literals;
using test::OneNode;

constexpr std::uint64_t kUpload = 21, kAttempt = 41;

bool Compares(const MetaStore::Commit& commit, const std::string& key, std::uint64_t revision) {
  return std::ranges::any_of(commit.compares, [&](const auto& compare) {
    return compare.key == key && compare.mod_revision == revision;
  });
}
bool Puts(const MetaStore::Commit& commit, const std::string& key) {
  return std::ranges::any_of(commit.puts, [&](const auto& put) { return put.key == key; });
}
bool Deletes(const MetaStore::Commit& commit, const std::string& key) {
  return std::ranges::find(commit.deletes, key) != commit.deletes.end();
}

class ClusterPublicationTest : public testing::Test {
 protected:
  ClusterPublicationTest() {
    one_.Put(UploadKey(kUpload), {});
    one_.Run(1s);
  }
  void Begin(Publication::Mode mode, const std::vector<ManifestExtent>& extents,
             std::uint8_t replicas = 2) {
    Publication::Request request;
    request.mode = mode;
    request.name = "set";
    request.attempt = kAttempt;
    request.replicas = replicas;
    if (mode != Publication::Mode::kRemove) request.manifest = one_.ManifestOf(extents);
    request.deadline = one_.now + 60s;
    (void)one_.node->Begin(std::move(request));
    one_.Run(100ms);
  }
  void AnswerAll() {
    for (int round = 0; round < 5; ++round) {
      one_.AnswerHoldings(Holding::kHeld);
      one_.Answer<StoreBody>([](const StoreBody&) { return Result<void>(); });
      one_.Run(10ms);
    }
  }
  // What came of it; none: it goes on.
  std::optional<Result<std::uint64_t>> Outcome() {
    auto finished = one_.node->TakeFinished();
    return finished.empty() ? std::nullopt : std::optional(finished.front().result);
  }
  ErrorCode Refused() {
    const auto result = Outcome();
    return result && !*result ? result->error().code : ErrorCode::kIo;  // It was not refused.
  }

  OneNode one_;
  const ManifestExtent extent_ = one_.ExtentOf(true, kUpload);
};

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
