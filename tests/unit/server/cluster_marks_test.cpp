// Goal: whether a store goes on from where a node has seen it is told from its record alone.
// Method: marks and records by hand.

#include <gtest/gtest.h>

#include <numeric>
#include <variant>
#include <vector>

#include "server/cluster/continuity.h"

namespace ffrecord::server::cluster {
namespace {

// Begun at revision 10, when leader 7 began; leader 8 began at 50.
HistoryRecord SomeRecord() {
  HistoryRecord record;
  record.incarnation = 3;
  record.ancestors = {1, 2};
  record.terms = {{7, 10}, {8, 0}};
  return record;
}

Relation RelateTo(const HistoryMark& mark, std::uint64_t revision) {
  const HistoryRecord record = SomeRecord();
  return Relate(mark, &record, 50, revision);
}

TEST(HistoryMarkTest, AStoreGoesOnFromAMarkThatItHasPassed) {
  EXPECT_EQ(RelateTo({}, 1), Relation::kContinues);
  EXPECT_EQ(RelateTo({3, 60, {8, 50}}, 60), Relation::kContinues);
  EXPECT_EQ(RelateTo({3, 40, {7, 10}}, 60), Relation::kContinues);
  EXPECT_EQ(RelateTo({3, 9, {}}, 60), Relation::kContinues);
  EXPECT_EQ(RelateTo({0, 40, {}}, 60), Relation::kContinues);
}

TEST(HistoryMarkTest, AStoreBeforeTheMarkIsAnOlderState) {
  EXPECT_EQ(RelateTo({3, 61, {8, 50}}, 60), Relation::kForeign);
  EXPECT_EQ(RelateTo({0, 61, {}}, 60), Relation::kForeign);
  EXPECT_EQ(Relate({3, 40, {7, 10}}, nullptr, 0, 60), Relation::kForeign);
}

TEST(HistoryMarkTest, ALeaderThatTheMarkDoesNotKnowTellsOfAnotherHistory) {
  // The node had seen revision 55, and there leader 8 had not begun at 50.
  EXPECT_EQ(RelateTo({3, 55, {7, 10}}, 60), Relation::kForeign);
  EXPECT_EQ(RelateTo({3, 55, {9, 20}}, 60), Relation::kForeign);
  EXPECT_EQ(RelateTo({3, 55, {8, 49}}, 60), Relation::kForeign);
  // So long ago that its leader is forgotten.
  EXPECT_EQ(RelateTo({3, 9, {5, 4}}, 60), Relation::kContinues);
}

TEST(HistoryMarkTest, AnIncarnationDescendsFromItsAncestors) {
  EXPECT_EQ(RelateTo({2, 500, {4, 400}}, 60), Relation::kDescends);
  EXPECT_EQ(RelateTo({4, 5, {}}, 60), Relation::kForeign);
}

TEST(HistoryMarkTest, RecordsAreReadAsTheyWereWritten) {
  HistoryRecord record = SomeRecord();
  record.is_confirmed = false;
  record.map_version_min = 9;
  record.why = "an older state";
  const auto bytes = record.Encode();
  EXPECT_EQ(HistoryRecord::Decode(bytes).value(), record);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(HistoryRecord::Decode(std::span(bytes).first(size)));
  const HistoryMark mark{3, 60, {8, 50}};
  EXPECT_EQ(HistoryMark::Decode(mark.Encode()).value(), mark);
  EXPECT_FALSE(HistoryMark::Decode(std::span(bytes).first(5)));
}

TEST(HistoryMarkTest, AnAnchorHoldsForItsMarkAlone) {
  const HistoryMark mark{3, 60, {8, 50}, {"datasets/a", 55, 7}};
  HistoryMark read{3, 60, {8, 50}};
  EXPECT_TRUE(read.DecodeAnchor(mark.EncodeAnchor()));
  EXPECT_EQ(read, mark);
  // A version of this program that knows no anchor has gone on.
  HistoryMark later{3, 61, {8, 50}};
  EXPECT_TRUE(later.DecodeAnchor(mark.EncodeAnchor()));
  EXPECT_EQ(later.anchor, Anchor());
  const auto bytes = mark.EncodeAnchor();
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(read.DecodeAnchor(std::span(bytes).first(size)));
}

TEST(HistoryMarkTest, ATermKeepsTheRevisionOfItsCommit) {
  HistoryRecord record = SomeRecord();
  record.Confirm(50);
  EXPECT_EQ(record.NewestTerm(70), (HistoryRecord::Term{8, 50}));
  record.AddTerm(9, 70);
  EXPECT_EQ(record.NewestTerm(80), (HistoryRecord::Term{9, 80}));
  for (std::uint64_t i = 0; i < HistoryRecord::kTermCountMax; ++i) record.AddTerm(100 + i, 80 + i);
  EXPECT_EQ(record.terms.size(), HistoryRecord::kTermCountMax);
  EXPECT_EQ(record.terms.front().token, 100U);
}

TEST(HistoryRecordTest, AncestorsAreInOrderEachOnceAndTheOldestAreForgotten) {
  HistoryRecord record;
  record.ancestors = {1, 3};
  record.AddAncestors(std::vector<std::uint64_t>{1, 3, 4, 5});
  EXPECT_EQ(record.ancestors, (std::vector<std::uint64_t>{1, 3, 4, 5}));
  std::vector<std::uint64_t> many(HistoryRecord::kAncestorCountMax);
  std::iota(many.begin(), many.end(), 10);
  record.AddAncestors(many);
  EXPECT_EQ(record.ancestors, many);
}

// A node that has slept since one of them would take itself for the one that knows most.
TEST(ContinuityTest, AnIncarnationDescendsFromAllThatItsNodeHasSeen) {
  const TimePoint now{std::chrono::seconds(100)};
  Continuity history({.seed = 1, .node = "n1", .mark = {5, 900, {}}, .ancestors = {1, 3, 4}});
  HistoryRecord older;
  older.incarnation = 3;
  older.ancestors = {1};
  MetaStore::Page page;
  page.revision = 60;
  page.entries = {{std::string(kHistoryKey), older.Encode(), 50}};
  Outbox out;
  history.Step(now, out);
  ASSERT_TRUE(history.Take(now, 1, {out.Take().front().id, Result<MetaStore::Page>(page)}, out));

  const auto begun = out.Take();
  ASSERT_EQ(begun.size(), 1U);
  const auto* const commit = std::get_if<MetaStore::Commit>(&begun.front().call);
  ASSERT_NE(commit, nullptr);
  const auto next = HistoryRecord::Decode(commit->puts.front().value).value();
  EXPECT_EQ(next.ancestors, (std::vector<std::uint64_t>{1, 3, 4, 5}));
}

}  // namespace
}  // namespace ffrecord::server::cluster
