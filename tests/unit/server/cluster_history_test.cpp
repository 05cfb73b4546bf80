// Goal: a node finds out by itself that the metadata was put back to an older state, and from then
// on drops nothing until an operator has confirmed it. Method: one node whose peers and store are
// in the test's hands; the store is put back.

#include <gtest/gtest.h>

#include "one_node.h"

namespace ffrecord::server::cluster {
namespace {

using namespace std::chrono_literals;
using test::OneNode;

constexpr std::uint64_t kUpload = 21;

class ClusterHistoryTest : public testing::Test {
 protected:
  explicit ClusterHistoryTest(const std::string& leader = "n2") : one_(leader) {
    HistoryRecord record;
    record.incarnation = 3;
    record.AddTerm(7, 0);
    if (leader == "n2") one_.Put(std::string(kHistoryKey), record.Encode());
    one_.Put(UploadKey(kUpload), {});
    one_.Run(5s);
    older_ = std::make_unique<MetaState>(one_.state);
  }
  // What has happened since then: more than it takes to notice that it has not.
  void GoOn() {
    one_.extents.extents[extent_.id] = extent_;
    one_.Publish("later", {extent_}, 2, 31);
    one_.Delete(UploadKey(kUpload));
    for (int i = 0; i < 20; ++i) one_.Put(std::string(kGenerationKey), {});
    one_.Run(5s);
  }
  std::optional<HistoryRecord> Record() const {
    const auto key = one_.state.Get(kHistoryKey);
    if (!key) return std::nullopt;
    return HistoryRecord::Decode(key->value).value();
  }
  void Confirm() {
    auto record = *Record();
    record.Confirm(one_.RevisionOf(std::string(kHistoryKey)));
    one_.Put(std::string(kHistoryKey), record.Encode());
  }
  // Nothing wants the extent of `later`, as far as the older state says.
  void PutTombstone() {
    TombstoneRecord tombstone;
    tombstone.upload = kUpload;
    one_.Delete(UploadKey(kUpload));
    one_.Put(UploadTombstoneKey(kUpload), tombstone.Encode());
  }
  const Continuity& History() const { return one_.node->view().continuity; }

  OneNode one_;
  const ManifestExtent extent_ = one_.ExtentOf(true, kUpload);
  std::unique_ptr<MetaState> older_;
};

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

// --- Publishing again ---------------------------------------------------------------------------

KnownName NameOf(std::uint64_t attempt) {
  KnownName name;
  name.record.attempt = attempt;
  return name;
}

TEST(RebuildTest, WhatDiffersIsNamed) {
  std::map<std::string, NameTable::Name, std::less<>> names;
  const auto add = [&](const std::string& text, std::uint64_t attempt, std::uint64_t revision) {
    names[text].record.attempt = attempt;
    names[text].revision = revision;
  };
  add("same", 1, 5);
  add("replaced", 1, 6);
  add("returned", 1, 7);
  add("new", 1, 12);
  add("newer", 2, 13);
  const KnownNames known{{"same", NameOf(1)},
                         {"replaced", NameOf(2)},
                         {"lost", NameOf(3)},
                         {"newer", NameOf(1)},
                         {"removed", NameOf(4)}};

  const auto differences = Compare(
      names, known, [](const std::string&, std::uint64_t revision) { return revision <= 10; },
      [](const DatasetRecord& record) { return record.attempt == 4; });

  using Kind = Difference::Kind;
  ASSERT_EQ(differences.size(), 3U);
  EXPECT_EQ(differences[0], (Difference{Kind::kLost, "lost", NameOf(3).record, 0}));
  EXPECT_EQ(differences[1], (Difference{Kind::kReplaced, "replaced", NameOf(2).record, 6}));
  EXPECT_EQ(differences[2], (Difference{Kind::kReturned, "returned", NameOf(1).record, 7}));
}

TEST(RebuildTest, AMarkOfALaterIncarnationIsNewer) {
  HistoryRecord record;
  record.incarnation = 3;
  record.ancestors = {0, 1, 2};
  EXPECT_TRUE(IsNewer({2, 5, {}}, {1, 500, {}}, record));
  EXPECT_TRUE(IsNewer({2, 6, {}}, {2, 5, {}}, record));
  EXPECT_TRUE(IsNewer({3, 1, {}}, {2, 500, {}}, record));
  EXPECT_TRUE(IsNewer({0, 1, {}}, {9, 500, {}}, record));
  EXPECT_FALSE(IsNewer({2, 5, {}}, {2, 5, {}}, record));
  // The older state had gone on when the node listed it.
  EXPECT_TRUE(IsNewer({2, 108, {8, 105}}, {2, 143, {7, 44}}, record));
  EXPECT_FALSE(IsNewer({2, 143, {7, 44}}, {2, 108, {8, 105}}, record));
}

class ClusterRebuildTest : public ClusterHistoryTest {
 protected:
  ClusterRebuildTest() {
    GoOn();
    one_.PutBack(*older_);
    one_.Run(2s);
  }
  void Begin(bool publishes, bool removes_returned = false) {
    Rebuild::Request request;
    request.publishes = publishes;
    request.removes_returned = removes_returned;
    request.deadline = one_.now + 30s;
    (void)one_.node->Begin(request);
    one_.Run(10ms);
  }
  // The marks of the others, and the names of one of them.
  void AnswerOthers(std::uint64_t revision, const KnownNames& names = {}) {
    for (int round = 0; round < 4; ++round) {
      one_.Answer<AskKnown>([&](const AskKnown& question) {
        Known known = one_.node->OnAsk(one_.now, question);
        if (question.node != "n1") known.mark = {3, 1, {}};
        // Leaders begin again and again: who has seen more has seen a later one.
        if (question.node == "n3") known = {{3, revision, {9, revision}}, names};
        return Result<Known>(known);
      });
      one_.Run(300ms);
    }
  }
  Result<Rebuild::Report> Outcome() {
    auto rebuilt = one_.node->TakeRebuilt();
    if (rebuilt.empty()) return Error{ErrorCode::kDeadlineExceeded, "it goes on"};
    return std::move(rebuilt.front().result);
  }
};

TEST_F(ClusterRebuildTest, NamesThatWereLostArePublishedAgain) {
  Begin(true);
  AnswerOthers(1);
  const auto report = Outcome();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report.value().witness, "n1");
  EXPECT_EQ(report.value().changed_count, 1U);
  EXPECT_TRUE(report.value().differences.empty());
  const auto* const name = one_.node->view().names.Find("later");
  ASSERT_NE(name, nullptr);
  EXPECT_EQ(name->record.attempt, 31U);

  // Then nothing wants to drop its extents.
  Confirm();
  PutTombstone();
  one_.Run(10s);
  EXPECT_TRUE(one_.TakeDrops().empty());
}

TEST_F(ClusterRebuildTest, ItMayOnlyCompare) {
  const std::uint64_t revision = one_.state.revision();
  Begin(false);
  AnswerOthers(1);
  const auto report = Outcome();
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report.value().differences.size(), 1U);
  EXPECT_EQ(report.value().differences.front().name, "later");
  EXPECT_EQ(report.value().marks.size(), 4U);
  EXPECT_EQ(one_.state.revision(), revision);
}

TEST_F(ClusterRebuildTest, TheNodeThatHasSeenMostIsAskedForItsNames) {
  Begin(true);
  AnswerOthers(10'000, {{"latest", NameOf(77)}});
  const auto report = Outcome();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report.value().witness, "n3");
  EXPECT_NE(one_.RevisionOf("datasets/latest"), 0U);
  EXPECT_EQ(one_.RevisionOf("datasets/later"), 0U);
}

// A node that has seen more was down at first, and one that has seen less answers alone later.
TEST_F(ClusterRebuildTest, ANodeThatHasSeenMoreReplacesWhatWasPublishedByOneThatHasSeenLess) {
  const KnownNames latest{{"later", NameOf(77)}};
  Begin(true);
  AnswerOthers(1);
  ASSERT_TRUE(Outcome());
  EXPECT_EQ(one_.node->view().names.Find("later")->record.attempt, 31U);

  Begin(true);
  AnswerOthers(10'000, latest);
  auto report = Outcome();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report.value().changed_count, 1U);
  EXPECT_EQ(one_.node->view().names.Find("later")->record.attempt, 77U);

  Begin(true, true);
  AnswerOthers(1);
  report = Outcome();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report.value().changed_count, 0U);
  EXPECT_EQ(one_.node->view().names.Find("later")->record.attempt, 77U);
}

TEST_F(ClusterRebuildTest, WhatWasPublishedSinceARebuildIsNotReplaced) {
  Begin(true);
  AnswerOthers(1);
  ASSERT_TRUE(Outcome());
  one_.Publish("later", {extent_}, 2, 99);
  one_.Run(1s);
  Begin(true);
  AnswerOthers(10'000, {{"later", NameOf(77)}});
  ASSERT_TRUE(Outcome());
  EXPECT_EQ(one_.node->view().names.Find("later")->record.attempt, 99U);
}

// Else a checkpoint that was pruned meanwhile would come back with a second rebuild.
TEST_F(ClusterRebuildTest, WhatWasRemovedSinceARebuildDoesNotComeBack) {
  Begin(true);
  AnswerOthers(1);
  ASSERT_TRUE(Outcome());
  TombstoneRecord tombstone;
  tombstone.runs = RunsOf({BodyExtentOf(31)});
  one_.Delete("datasets/later");
  one_.Put(Key(kTombstoneKeys, "removal"), tombstone.Encode());
  one_.Run(1s);

  Begin(true);
  AnswerOthers(1);
  const auto report = Outcome();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report.value().changed_count, 0U);
  EXPECT_TRUE(report.value().differences.empty());
  EXPECT_EQ(one_.RevisionOf("datasets/later"), 0U);
}

// As the older state has it. It was replaced since, which nodes have known.
TEST_F(ClusterRebuildTest, WhatWasRemovedBeforeARebuildDoesNotComeBackAsItWasLater) {
  one_.Publish("later", {}, 2, 30);
  HistoryRecord record = *Record();
  record.base_revision = one_.state.revision();
  one_.Put(std::string(kHistoryKey), record.Encode());
  one_.Run(5s);
  Publication::Request removal;
  removal.mode = Publication::Mode::kRemove;
  removal.name = "later";
  removal.attempt = 5;
  removal.deadline = one_.now + 60s;
  (void)one_.node->Begin(removal);
  one_.Run(5s);
  ASSERT_EQ(one_.RevisionOf("datasets/later"), 0U);

  Begin(true);
  AnswerOthers(1);
  const auto report = Outcome();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report.value().differences.empty());
  EXPECT_EQ(one_.RevisionOf("datasets/later"), 0U);
}

TEST_F(ClusterRebuildTest, WhatARebuildHasNotedGoesOnceTheMetadataIsConfirmed) {
  one_.Delete(std::string(kLeaderKey));
  one_.Run(3s);
  ASSERT_TRUE(one_.node->leader().is_leading());
  Begin(true);
  AnswerOthers(1);
  ASSERT_TRUE(Outcome());
  EXPECT_NE(one_.RevisionOf(Key(kRebuiltKeys, "later")), 0U);
  Confirm();
  one_.Run(5s);
  EXPECT_EQ(one_.RevisionOf(Key(kRebuiltKeys, "later")), 0U);
  EXPECT_NE(one_.RevisionOf("datasets/later"), 0U);
}

TEST_F(ClusterRebuildTest, WhatHasReturnedIsRemovedIfThatIsWanted) {
  // As the older state has it; who knows more has seen its removal.
  one_.Put("datasets/old", NameOf(5).record.Encode());
  HistoryRecord record = *Record();
  record.base_revision = one_.state.revision();
  one_.Put(std::string(kHistoryKey), record.Encode());
  one_.Run(1s);

  Begin(true);
  AnswerOthers(1);
  auto report = Outcome();
  ASSERT_TRUE(report) << report.error().message;
  ASSERT_EQ(report.value().differences.size(), 1U);
  EXPECT_EQ(report.value().differences.front().kind, Difference::Kind::kReturned);
  EXPECT_NE(one_.RevisionOf("datasets/old"), 0U);

  Begin(true, true);
  AnswerOthers(1);
  report = Outcome();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report.value().differences.empty());
  EXPECT_EQ(one_.RevisionOf("datasets/old"), 0U);
}

TEST_F(ClusterRebuildTest, ASilentNodeIsNamed) {
  Begin(true);
  one_.Answer<AskKnown>([&](const AskKnown& question) {
    if (question.node == "n4") return Result<Known>(Error{ErrorCode::kUnavailable, "down"});
    return Result<Known>(one_.node->OnAsk(one_.now, question));
  });
  AnswerOthers(1);
  const auto report = Outcome();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report.value().silent, std::set<std::string>{"n4"});
  EXPECT_FALSE(report.value().marks.contains("n4"));
}

// Else a list would be taken for all that there is, and a run would resume with an old checkpoint.
TEST_F(ClusterRebuildTest, NamesMayBeMissingUntilARebuildHasHeardEveryNode) {
  const View& view = one_.node->view();
  EXPECT_TRUE(MayLackNames(view));
  Begin(false);
  AnswerOthers(1);
  ASSERT_TRUE(Outcome());
  EXPECT_TRUE(MayLackNames(view));
  Begin(true);
  one_.Answer<AskKnown>([&](const AskKnown& question) {
    if (question.node == "n4") return Result<Known>(Error{ErrorCode::kUnavailable, "down"});
    return Result<Known>(one_.node->OnAsk(one_.now, question));
  });
  AnswerOthers(1);
  ASSERT_TRUE(Outcome());
  EXPECT_TRUE(MayLackNames(view));

  Begin(true);
  AnswerOthers(1);
  const auto report = Outcome();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report.value().changed_count, 0U);
  EXPECT_FALSE(MayLackNames(view));
  // That rebuild says nothing of what is put back after it.
  HistoryRecord next = *Record();
  ++next.incarnation;
  one_.Put(std::string(kHistoryKey), next.Encode());
  one_.Run(1s);
  EXPECT_TRUE(MayLackNames(view));
  Confirm();
  EXPECT_FALSE(MayLackNames(view));
}

TEST_F(ClusterRebuildTest, WhatIsConfirmedIsNotRebuilt) {
  Confirm();
  Begin(true);
  const auto report = Outcome();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kConflict);
  EXPECT_EQ(report.error().message.find("take effect"), std::string::npos);
  EXPECT_EQ(one_.RevisionOf("datasets/later"), 0U);
}

TEST_F(ClusterRebuildTest, NamesOfACommitWithoutAnAnswerAreCounted) {
  one_.loses_answers = true;
  Begin(true);
  AnswerOthers(1);
  const auto report = Outcome();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report.value().changed_count, 1U);
  EXPECT_TRUE(report.value().differences.empty());
}

TEST_F(ClusterRebuildTest, ACommitOnItsWayIsNotCalledUndoneWhereTheMetadataIsConfirmed) {
  one_.delays_commits = true;
  Begin(true);
  AnswerOthers(1);
  Confirm();
  one_.Run(1s);
  const auto report = Outcome();
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, ErrorCode::kConflict);
  EXPECT_NE(report.error().message.find("may still take effect"), std::string::npos)
      << report.error().message;
}

TEST_F(ClusterRebuildTest, ItEndsByItsDeadline) {
  Begin(true);
  one_.Run(31s);
  const auto report = Outcome();
  ASSERT_FALSE(report);
  EXPECT_NE(report.error().message.find("repeat"), std::string::npos);
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
