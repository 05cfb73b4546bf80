// Goal: a rebuild publishes again what an older state lacks of what nodes have known, and nothing
// that was removed or replaced since. Method: one node whose peers and store are in the test's
// hands; the store is put back.

#include "server/cluster/rebuild.h"

#include <gtest/gtest.h>

#include "history_fixture.h"

namespace ffrecord::server::cluster {
namespace {

using namespace std::chrono_literals;

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
  // n3; the others are down.
  void AnswerAlone(const Known& known) {
    for (int round = 0; round < 4; ++round) {
      one_.Answer<AskKnown>([&](const AskKnown& question) {
        if (question.node != "n3") return Result<Known>(Error{ErrorCode::kUnavailable, "down"});
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

// The older state is newer than all that it has seen, and the nodes that have seen more are down.
TEST_F(ClusterRebuildTest, WhatANodeHasSleptThroughIsNotUndoneByWhatItKnows) {
  one_.Publish("kept", {}, 2, 40);
  const std::uint64_t slept_at = one_.RevisionOf("datasets/kept");
  one_.Publish("replaced", {}, 2, 41);
  one_.Publish("new", {}, 2, 42);
  HistoryRecord record = *Record();
  record.base_revision = one_.state.revision();
  one_.Put(std::string(kHistoryKey), record.Encode());
  one_.Run(1s);
  const auto name = [](std::uint64_t attempt, std::uint64_t revision) {
    return KnownName{NameOf(attempt).record, revision};
  };
  const KnownNames names{
      {"kept", {one_.node->view().names.Find("kept")->record, slept_at}},
      {"replaced", name(39, slept_at - 1)},
      {"removed", name(38, slept_at - 2)},
  };

  Begin(true, true);
  AnswerAlone({{3, slept_at, {7, 1}}, names});
  const auto report = Outcome();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report.value().witness, "n3");
  EXPECT_TRUE(report.value().differences.empty());
  EXPECT_EQ(report.value().changed_count, 0U);
  EXPECT_EQ(one_.node->view().names.Find("replaced")->record.attempt, 41U);
  EXPECT_NE(one_.RevisionOf("datasets/new"), 0U);
  EXPECT_EQ(one_.RevisionOf("datasets/removed"), 0U);
}

// Of a backup that was put into another store: its revisions say nothing beside those of the mark.
TEST_F(ClusterRebuildTest, WhatOtherRevisionsSayIsNotBelieved) {
  one_.Publish("kept", {}, 2, 40);
  one_.Publish("replaced", {}, 2, 41);
  HistoryRecord record = *Record();
  record.base_revision = one_.state.revision();
  one_.Put(std::string(kHistoryKey), record.Encode());
  one_.Run(1s);
  const KnownNames names{
      {"kept", {one_.node->view().names.Find("kept")->record, 2}},
      {"replaced", {NameOf(77).record, 4}},
      {"lost", {NameOf(78).record, 1}},
  };

  Begin(true);
  AnswerAlone({{3, 5, {7, 1}}, names});
  const auto report = Outcome();
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report.value().changed_count, 2U);
  EXPECT_EQ(one_.node->view().names.Find("replaced")->record.attempt, 77U);
  EXPECT_NE(one_.RevisionOf("datasets/lost"), 0U);
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

}  // namespace
}  // namespace ffrecord::server::cluster
